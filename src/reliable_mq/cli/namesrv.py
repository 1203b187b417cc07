"""`reliable-mq namesrv`: runs a name server as a process."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop

from reliable_mq.cli import log_options, metrics, server_properties
from reliable_mq.cli.serving import beat_until, stop_signals
from reliable_mq.errors import AddressRefused, ConfigurationError
from reliable_mq.limits import PORT_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.name_server.core import NameServerConfig, changed_config
from reliable_mq.name_server.name_server_limits import NameServerLimits
from reliable_mq.runtime.audit_file import AuditFile
from reliable_mq.runtime.connection_limits import take_limits, taken
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.name_server_guard import take_guard
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_settings import is_exposed, take_tls
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.addresses import address_of

log = limited_log(__name__)


def command(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: a free one.", min=0, max=PORT_MAX)] = 9876,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the audit, and of the settings (config/kvConfig.json) unless"
            " --kv-config names their file; created if missing.",
            show_default=False,
        ),
    ] = None,
    kv_config: Annotated[
        Path | None,
        typer.Option(help="File that stores settings of tools and brokers (kvConfig.json)."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A file with properties of Apache RocketMQ, such as namesrv.conf.",
            show_default=False,
        ),
    ] = None,
    settings: server_properties.Settings = None,
    metrics_port: metrics.Port = 0,
    metrics_host: metrics.Host = metrics.HERE,
    log_format: log_options.Format = None,
    log_level: log_options.Level = None,
) -> None:
    """Run a name server: brokers register there, and clients ask it for routes.

    With authenticationEnabled=true, brokers and tools that change something sign as a user of
    initAuthenticationUser or of innerClientAuthenticationCredentials. When it is ready, it prints
    one line: "ready namesrv=HOST:PORT". SIGTERM stops it.
    """
    log_options.write_log(log_format, log_level)
    properties = server_properties.read_server_properties(config, settings or [])
    tls = ServerTls(take_tls(properties))
    limits = take_limits(properties)
    tables = taken(properties, NameServerLimits, "a limit of the name server")
    guard = take_guard(properties)
    audit = AuditFile(store) if store is not None else None
    if store is not None and kv_config is None:
        kv_config = store / "config" / "kvConfig.json"
    try:
        own = changed_config(NameServerConfig(), properties)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"a property of the name server: {error}") from error
    server = NameServer(
        kv_config, config=own, limits=limits, tables=tables, guard=guard, audit=audit, tls=tls
    )
    uvloop.run(_serve(server, host, port, tls, (metrics_host, metrics_port)))
    if audit is not None:
        audit.close()


async def _serve(
    server: NameServer, host: str, port: int, tls: ServerTls, metrics_at: tuple[str, int]
) -> None:
    with stop_signals() as stop:
        try:
            await server.start(host, port)
        except AddressRefused as error:
            raise AddressRefused(f"{error}: --port (0: a free one)") from error
        if server.guard is None and is_exposed(server.ips, tls.settings):
            broker_events.NAME_SERVER_EXPOSED.log(log, address=address_of(host, server.port))
        tls.watch()
        metrics.serve_figures(*metrics_at, server.measure)
        print(f"ready namesrv={address_of(host, server.port)}", flush=True)
        await beat_until(stop)
        address = address_of(host, server.port)
        tls.close()
        await server.close()
        broker_events.SERVER_STOPPED.log(log, server="name server", address=address)
