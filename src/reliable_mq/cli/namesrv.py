"""`reliable-mq namesrv`: runs a name server as a process."""

from pathlib import Path
from typing import Annotated

import typer
import uvloop

from reliable_mq.cli import log_options, metrics
from reliable_mq.cli.serving import beat_until, stop_signals
from reliable_mq.errors import AddressRefused
from reliable_mq.limits import PORT_MAX
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.wire.record import address_of


def command(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: a free one.", min=0, max=PORT_MAX)] = 9876,
    kv_config: Annotated[
        Path | None,
        typer.Option(help="File that stores settings of tools and brokers (kvConfig.json)."),
    ] = None,
    metrics_port: metrics.Port = 0,
    metrics_host: metrics.Host = metrics.HERE,
    log_format: log_options.Format = None,
    log_level: log_options.Level = None,
) -> None:
    """Run a name server: brokers register there, and clients ask it for routes.

    When it is ready, it prints one line: "ready namesrv=HOST:PORT". SIGTERM stops it.
    """
    log_options.write_log(log_format, log_level)
    uvloop.run(_serve(host, port, kv_config, (metrics_host, metrics_port)))


async def _serve(
    host: str, port: int, settings_file: Path | None, metrics_at: tuple[str, int]
) -> None:
    with stop_signals() as stop:
        server = NameServer(settings_file)
        try:
            await server.start(host, port)
        except AddressRefused as error:
            raise AddressRefused(f"{error}: --port (0: a free one)") from error
        metrics.serve_figures(*metrics_at, server.measure)
        print(f"ready namesrv={address_of(host, server.port)}", flush=True)
        await beat_until(stop)
        await server.close()
