"""`reliable-mq broker`: the bundled broker as a process."""

import asyncio
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from reliable_mq.broker_core.config import parse_properties
from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer


def command(
    store: Annotated[Path, typer.Option(help="Folder of the store; made when it is not there.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the broker; 0 for a free one.")] = 10911,
    namesrv_port: Annotated[
        int, typer.Option(help="Port of the name server in this process; 0 for a free one.")
    ] = 9876,
    namesrv: Annotated[
        str, typer.Option(help="HOST:PORT;… of other name servers; then none runs here.")
    ] = "",
    config: Annotated[
        Path | None, typer.Option(help="A broker.conf with Apache RocketMQ's properties.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="name=value, over the file; repeatable.")
    ] = None,
) -> None:
    """Run the bundled broker, with a name server unless one is named."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    options = BrokerOptions(
        store=store,
        host=host,
        port=port,
        name_server_port=namesrv_port,
        name_servers=namesrv,
        properties=_properties(config, settings or []),
    )
    uvloop.run(_serve(options))


def _properties(config: Path | None, settings: list[str]) -> dict[str, str]:
    properties: dict[str, str] = {}
    if config is not None:
        try:
            properties = parse_properties(config.read_text("utf-8"))
        except OSError as error:
            raise ConfigurationError(f"--config {config}: {error.strerror}") from error
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign:
            raise ConfigurationError(f"--set {setting}: write name=value")
        properties[name] = value
    return properties


async def _serve(options: BrokerOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = BrokerServer(options)
    await server.start()
    print(
        f"ready broker={server.address} namesrv={server.name_server_address} store={options.store}",
        flush=True,
    )
    await stop.wait()
    await server.close()
