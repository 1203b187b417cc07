"""`--metrics-port` of `run` and `resend`: serves metrics to Prometheus.

A library that every command imports must not listen: the second command would find the port in use.
So only commands that run for long serve metrics.
"""

from typing import Annotated

import typer

from reliable_mq.errors import AddressRefused
from reliable_mq.extras import extra_of
from reliable_mq.limits import PORT_MAX

Port = Annotated[
    int,
    typer.Option(
        "--metrics-port",
        min=0,
        max=PORT_MAX,
        help="Serve the metrics of prometheus_client's registry at this port; 0: do not serve.",
    ),
]
Host = Annotated[
    str, typer.Option("--metrics-host", help="The address at which metrics are served.")
]
HERE = "127.0.0.1"


def serve_metrics(host: str, port: int) -> None:
    """Serve the metrics of this process, in another thread; port 0: do nothing.

    Raises:
        AddressRefused: the system does not let us listen there.
        ConfigurationError: prometheus_client is not installed.
    """
    if not port:
        return
    with extra_of("prometheus_client"):
        from prometheus_client import start_http_server  # noqa: PLC0415 - an extra
    try:
        start_http_server(port, addr=host)
    except OSError as error:
        raise AddressRefused(
            f"--metrics-port {port}: cannot listen at {host}:{port}: {error.strerror or error}"
        ) from error
