"""`reliable-mq proxy`: runs the gRPC endpoint before a cluster, as a process without a state."""

import asyncio
import os
import socket
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from reliable_mq.cli import log_options, metrics, server_properties
from reliable_mq.cli.serving import beat_until, stop_signals
from reliable_mq.errors import AddressRefused, ConfigurationError
from reliable_mq.limits import PORT_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.connection_limits import take_limits
from reliable_mq.runtime.freed_memory import keep_freed_memory
from reliable_mq.runtime.fresh_context import context_of_client
from reliable_mq.runtime.garbage import keep_collections_short
from reliable_mq.runtime.self_signed import endpoint_tls
from reliable_mq.runtime.tls_settings import take_tls
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.addresses import split_addresses

log = limited_log(__name__)


def command(
    namesrv: Annotated[
        str | None,
        typer.Option(
            help="Name servers of the cluster, HOST:PORT;…; also namesrvAddr of --config.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: a free one.", min=0, max=PORT_MAX)] = 8081,
    config: Annotated[
        Path | None,
        typer.Option(help="A file with properties, such as those of TLS.", show_default=False),
    ] = None,
    settings: server_properties.Settings = None,
    metrics_port: metrics.Port = 0,
    metrics_host: metrics.Host = metrics.HERE,
    log_format: log_options.Format = None,
    log_level: log_options.Level = None,
) -> None:
    """Run a gRPC endpoint for Apache RocketMQ's 5.x clients, before a cluster of ours or Apache's.

    It keeps nothing: run as many as you like. When it is ready, it prints one line: "ready
    namesrv=HOST:PORT grpc=HOST:PORT". SIGTERM stops it.
    """
    log_options.write_log(log_format, log_level)
    properties = server_properties.read_server_properties(config, settings or [])
    listed = properties.pop("namesrvAddr", "") if namesrv is None else namesrv
    names = list(split_addresses(listed)) if listed.strip(" ;,") else []
    if not names:
        raise ConfigurationError("--namesrv is missing: name the name servers of the cluster")
    uvloop.run(_serve(names, (host, port), properties, (metrics_host, metrics_port)))


async def _serve(
    names: list[str], at: tuple[str, int], properties: dict[str, str], metrics_at: tuple[str, int]
) -> None:
    from reliable_mq.gateway.asyncio_gateway import Gateway  # noqa: PLC0415 - it needs an extra
    from reliable_mq.runtime.grpc_server import GrpcServer  # noqa: PLC0415
    from reliable_mq.runtime.grpc_trust import TrustCheck  # noqa: PLC0415
    from reliable_mq.runtime.grpc_upstream import (  # noqa: PLC0415
        GrpcUpstream,
        take_signed,
        take_user,
    )
    from reliable_mq.runtime.grpc_users import signer_of, users_of_cluster  # noqa: PLC0415

    tls_settings = take_tls(properties)
    limits = take_limits(properties)
    user, is_signed = take_user(properties), take_signed(properties)
    if properties:
        raise ConfigurationError(f"{min(properties)} is no setting of the proxy")
    if is_signed and user is None:
        raise ConfigurationError(
            "authenticationEnabled=true needs innerClientAuthenticationCredentials, a super user "
            "of the brokers: the proxy asks them for users; write it into the file of --config"
        )
    upstream = GrpcUpstream(user, context_of_client(tls_settings))
    gateway = Gateway(upstream.ask, names, f"{socket.gethostname()}@{os.getpid()}@grpc")
    upstream.on_request = gateway.asked
    tls = endpoint_tls(tls_settings)
    find = users_of_cluster(gateway.upstream)
    authenticate = partial(signer_of, find=find) if is_signed else None
    server = GrpcServer(gateway, tls=tls, limits=limits, authenticate=authenticate)
    with stop_signals() as stop:
        keep_collections_short()
        keep_freed_memory()
        try:
            await server.bind(*at)
        except AddressRefused as error:
            raise AddressRefused(f"{error}: --port (0: a free one)") from error
        if tls_settings.is_serving:
            tls.watch()
        await server.serve()
        metrics.serve_figures(*metrics_at, server.measure)
        print(f"ready namesrv={';'.join(names)} grpc={server.address}", flush=True)
        check = TrustCheck(gateway.upstream, user, needs_users=is_signed)
        checking = asyncio.create_task(check.run())
        await beat_until(stop)
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        tls.close()
        await server.close()
        await upstream.close()
        broker_events.SERVER_STOPPED.log(log, server="proxy", address=server.address)
