"""`reliable-mq broker`: runs the bundled broker as a process."""

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from reliable_mq.broker_core.config import ASYNC_MASTER, SLAVE
from reliable_mq.cli import log_options, metrics, server_properties
from reliable_mq.cli.broker_grpc import check_endpoint, started_endpoint
from reliable_mq.cli.broker_store import change_store, check_action
from reliable_mq.cli.serving import beat_until, stop_signals
from reliable_mq.errors import AddressRefused, ConfigurationError
from reliable_mq.host_and_port import port_of
from reliable_mq.limits import PORT_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.addresses import advertised_ip
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.controlled_broker import ControlledBroker, is_controlled
from reliable_mq.runtime.freed_memory import keep_freed_memory
from reliable_mq.runtime.garbage import keep_collections_short
from reliable_mq.runtime.tls_settings import take_tls
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.addresses import split_addresses

log = limited_log(__name__)

_HOST = "127.0.0.1"
_PORT = 10911
_NAME_SERVER_PORT = 9876
_NOT_HERE = os.strerror(errno.EADDRNOTAVAIL).lower()


Action = Annotated[
    str,
    typer.Argument(
        metavar="[promote|demote|truncate]",
        help="Change a stopped store instead: make it a master's or a slave's, or cut its log.",
        show_default=False,
    ),
]
Number = Annotated[
    int, typer.Option("--id", min=0, help="brokerId of a demoted store.", show_default=False)
]
Offset = Annotated[
    int,
    typer.Option(
        min=-1,
        metavar="OFFSET",
        help="Log offset at which a slave's log is truncated.",
        show_default=False,
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        help="Port for Apache RocketMQ's 5.x clients, which speak gRPC; 0: a free one; default:"
        " none.",
        min=0,
        max=PORT_MAX,
        show_default=False,
    ),
]


def command(
    action: Action = "",
    store: Annotated[
        Path | None,
        typer.Option(help="Folder of the store; created if missing.", show_default=False),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help=f"Address to listen on; 0.0.0.0 for all; default: {_HOST}.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help=f"Port of the broker; 0: a free one; default: {_PORT}.",
            min=0,
            max=PORT_MAX,
            show_default=False,
        ),
    ] = None,
    namesrv_port: Annotated[
        int,
        typer.Option(
            help="Port of the name server in this process; 0: a free one.", min=0, max=PORT_MAX
        ),
    ] = _NAME_SERVER_PORT,
    namesrv: Annotated[
        str | None,
        typer.Option(
            help="Other name servers, HOST:PORT;…; then none runs in this process.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A file with properties of Apache RocketMQ, such as broker.conf.",
            show_default=False,
        ),
    ] = None,
    settings: server_properties.Settings = None,
    number: Number = 0,
    to: Offset = -1,
    grpc_port: GrpcPort = None,
    metrics_port: metrics.Port = 0,
    metrics_host: metrics.Host = metrics.HERE,
    log_format: log_options.Format = None,
    log_level: log_options.Level = None,
) -> None:
    """Run the bundled broker, with a name server in the same process unless one is named.

    When it is ready, it prints one line: "ready broker=HOST:PORT namesrv=HOST:PORT store=DIR". With
    --grpc-port, " grpc=HOST:PORT" follows.
    SIGTERM stops it cleanly. Properties have Apache RocketMQ's names. Two defaults differ:
    flushDiskType is SYNC_FLUSH, cleanFileForciblyEnable is false. Options override properties.

    With promote, demote or truncate it changes a stopped store and ends. The next start has the new
    role, also with the same settings. A promoted store has brokerRole=ASYNC_MASTER, or what --set
    brokerRole says.
    """
    log_options.write_log(log_format, log_level)
    properties = server_properties.read_server_properties(config, settings or [])
    if action:
        check_action(action)
        print(change_store(action, _folder(properties, store), _role(properties), number, to))
        return
    options = _options(properties, store, host, port, namesrv_port, namesrv)
    if uvloop.run(_serve(options, (metrics_host, metrics_port), grpc_port)):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell


def _options(
    properties: dict[str, str],
    store: Path | None,
    host: str | None,
    port: int | None,
    name_server_port: int,
    name_servers: str | None,
) -> BrokerOptions:
    """Combine the command line and the properties.

    Raises:
        ConfigurationError: something is missing or impossible.
    """
    folder = _folder(properties, store)
    bound = properties.pop("bindAddress", _HOST)
    listen_on = bound if host is None else host
    listed = properties.get("namesrvAddr", "") if name_servers is None else name_servers
    properties.setdefault("brokerIP1", advertised_ip(listen_on))
    configured_port = _port(properties)
    return BrokerOptions(
        store=folder,
        host=listen_on,
        port=configured_port if port is None else port,
        name_server_port=name_server_port,
        name_servers=";".join(split_addresses(listed)) if listed.strip(" ;,") else "",
        tls=take_tls(properties),
        properties=properties,
    )


def _folder(properties: dict[str, str], store: Path | None) -> Path:
    """Return the folder of the store, and take it out of the properties.

    Raises:
        ConfigurationError: when none is named.
    """
    folder = properties.pop("storePathRootDir", "")
    if store is None and not folder:
        raise ConfigurationError("--store is missing: name the folder of the store")
    return Path(folder) if store is None else store


def _role(properties: dict[str, str]) -> str:
    """Return the role of a promoted store. The settings of a slave say SLAVE."""
    role = properties.get("brokerRole", SLAVE)
    return ASYNC_MASTER if role == SLAVE else role


def _port(properties: dict[str, str]) -> int:
    text = properties.get("listenPort", str(_PORT))
    port = port_of(text)
    if port is None:
        raise ConfigurationError(f"listenPort={text}: a port is 0..{PORT_MAX}")
    return port


async def _serve(
    options: BrokerOptions, metrics_at: tuple[str, int], grpc_port: int | None = None
) -> bool:
    """Serve until the broker is stopped; return whether it must start again."""
    if grpc_port is not None:
        check_endpoint(options)
    with stop_signals() as stop:
        server = ControlledBroker(options) if is_controlled(options) else BrokerServer(options)
        server.role.on_end = stop.set
        keep_collections_short()
        keep_freed_memory()
        if not await _started(server, options, stop):
            return False
        endpoint = None
        if grpc_port is not None and isinstance(server, BrokerServer):
            endpoint = await started_endpoint(server, options, grpc_port)
        measures = [server.measure, *([] if endpoint is None else [endpoint.measure])]
        metrics.serve_figures(*metrics_at, lambda: [each for one in measures for each in one()])
        where = f"broker={server.address} namesrv={server.name_server_address}"
        grpc = "" if endpoint is None else f" grpc={endpoint.address}"
        print(f"ready {where} store={options.store}{grpc}", flush=True)
        await beat_until(stop)
        if endpoint is not None:
            await endpoint.close()
        address, ending = server.address, server.role.ending
        await server.close()
        broker_events.SERVER_STOPPED.log(log, server="broker", address=address)
        if ending is not None and ending.error is not None:
            raise ending.error
        return ending is not None


async def _started(
    server: BrokerServer | ControlledBroker, options: BrokerOptions, stop: asyncio.Event
) -> bool:
    """Start; return False when the process is stopped while the broker waits for a controller."""
    starting = asyncio.ensure_future(_start(server, options))
    if isinstance(server, ControlledBroker):
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return False
    await starting
    return True


async def _start(server: BrokerServer | ControlledBroker, options: BrokerOptions) -> None:
    try:
        await server.start()
    except AddressRefused as error:
        ports = {options.port: "--port", options.name_server_port: "--namesrv-port"}
        named = (option for port, option in ports.items() if f":{port}:" in str(error))
        option = f"{next(named, '--set haListenPort=PORT')} (0: a free one)"
        if _NOT_HERE in str(error).lower():
            option = "--host (it must be one of this machine's, or 0.0.0.0)"
        raise AddressRefused(f"{error}: {option}") from error
