"""`--metrics-port` of `run`, `resend`, `broker`, `namesrv` and `proxy`: serves metrics.

A library that every command imports must not listen: the second command would find the port in use.
So only commands that run for long serve metrics. There is no variable for the port: two commands
with one environment would take the same port.
"""

import errno
import socket
from collections.abc import Callable
from typing import Annotated, Any

import typer

from reliable_mq.errors import AddressRefused
from reliable_mq.extras import extra_of
from reliable_mq.limits import PORT_MAX
from reliable_mq.runtime.loop_figures import LoopFigures
from reliable_mq.telemetry.families import SampleCollector

Port = Annotated[
    int,
    typer.Option(
        "--metrics-port",
        min=0,
        max=PORT_MAX,
        help="Serve metrics to Prometheus at this port; 0: do not serve.",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--metrics-host",
        envvar="RELIABLE_MQ_METRICS_HOST",
        help="The address at which metrics are served.",
    ),
]
HERE = "127.0.0.1"


def process_registry() -> Any:
    """Return the registry of this process, which an application may use, too.

    Raises:
        ExtraMissing: prometheus_client is not installed.
    """
    with extra_of("prometheus_client"):
        from prometheus_client import REGISTRY  # noqa: PLC0415 - an extra
    return REGISTRY


def serve_metrics(host: str, port: int, registry: Any = None) -> None:
    """Serve metrics, in another thread; port 0: do nothing.

    Args:
        host: the address to listen on.
        port: the port.
        registry: the metrics; None: those of `process_registry`.

    Raises:
        AddressRefused: the system does not let us listen there.
        ExtraMissing: prometheus_client is not installed.
    """
    if not port:
        return
    with extra_of("prometheus_client"):
        from prometheus_client import start_http_server  # noqa: PLC0415 - an extra
    try:
        start_http_server(port, addr=host, registry=registry or process_registry())
    except OSError as error:
        is_host = error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror)
        raise AddressRefused(
            f"--metrics-{'host' if is_host else 'port'} {host if is_host else port}: cannot listen "
            f"at {host}:{port}: {error.strerror or error}; choose "
            + ("a host of this machine" if is_host else "another port")
        ) from error


def serve_figures(host: str, port: int, measure: Callable[[], list[LoopFigures]]) -> None:
    """Serve the figures of a server; see `serve_metrics`.

    Args:
        host: the address to listen on.
        port: the port; 0: do nothing.
        measure: begins to note figures on the running loop; called only with a port.
    """
    if not port:
        return
    registry = process_registry()
    for each in measure():
        registry.register(SampleCollector(each.samples, each.source))
    serve_metrics(host, port, registry)
