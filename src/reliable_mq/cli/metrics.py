"""`--metrics-port` of `run` and `resend`: what Prometheus asks for.

A program that is imported by every command must not listen by itself: the second command would find
the port taken. So the command that runs for long does.
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
        help="Serve the metrics of prometheus_client's registry here; 0: not at all.",
    ),
]
Host = Annotated[
    str, typer.Option("--metrics-host", help="The address that metrics are served at.")
]
HERE = "127.0.0.1"


def serve_metrics(host: str, port: int) -> None:
    """Serve the metrics of this process, in a thread of their own; port 0: do nothing.

    Raises:
        AddressRefused: when the system does not let us listen there.
        ConfigurationError: when prometheus_client is not installed.
    """
    if not port:
        return
    with extra_of("prometheus_client"):
        from prometheus_client import start_http_server  # noqa: PLC0415 - an extra
    try:
        start_http_server(port, addr=host)
    except OSError as error:
        raise AddressRefused(
            f"--metrics-port {port}: {host}:{port} cannot be listened at: {error.strerror or error}"
        ) from error
