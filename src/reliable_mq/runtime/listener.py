"""A listening socket and its connections, for brokers and name servers."""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable
from typing import Protocol, cast

from reliable_mq.broker_core.state import Connection
from reliable_mq.errors import ConfigurationError, FrameError
from reliable_mq.wire.command import Command, decode_command
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.record import pack_host

log = logging.getLogger(__name__)

_IDLE_SECONDS = 120  # Apache RocketMQ closes a channel that is silent this long
_UNSENT_MAX = 64 * 1024 * 1024  # a peer that asks but does not read is cut off


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Owner(Protocol):
    """Who gets the commands of a listener's connections."""

    def received(self, connection: Connection, commands: Iterable[Command]) -> None:
        """Take the commands that one read brought."""

    def disconnected(self, connection: Connection) -> None:
        """Note that a connection is gone."""


class Listener:
    """Accepts connections; `send` answers on them by id."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._ids = itertools.count(1)
        self._open: dict[int, _ServerConnection] = {}
        self._server: asyncio.Server | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. With port 0 the system chooses one; `port` tells which.

        Raises:
            ConfigurationError: when the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _ServerConnection(self, self._owner), host, port, backlog=1024
            )
        except OSError as error:
            raise ConfigurationError(
                f"{host}:{port}: cannot listen here ({error.strerror}); choose another port"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._check_idle()

    def send(self, connection_id: int, frames: list[bytes]) -> None:
        """Write frames to a connection; one that is gone gets nothing."""
        connection = self._open.get(connection_id)
        if connection is not None:
            connection.send(frames)

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self._open.values()):
            connection.close_if_idle(loop.time() - _IDLE_SECONDS)
        self._idle_check = loop.call_later(_IDLE_SECONDS / 4, self._check_idle)

    def opened(self, connection: "_ServerConnection") -> int:
        """Note a new connection and return its id."""
        connection_id = next(self._ids)
        self._open[connection_id] = connection
        return connection_id

    def closed(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        if self._open.pop(connection.id, None) is not None:
            self._owner.disconnected(connection)

    def stop_reading(self) -> None:
        """Take no more commands; answers to those that came can still be sent."""
        if self._server is not None:
            self._server.close()
        for connection in self._open.values():
            connection.stop_reading()

    async def close(self) -> None:
        """Stop listening and close the connections; what was written to them still leaves."""
        if self._idle_check:
            self._idle_check.cancel()
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._open.values()):
            connection.close()
        await self._server.wait_closed()


class _ServerConnection(asyncio.Protocol):
    """One peer. Bytes that are no frame close it, with one line in the log."""

    def __init__(self, listener: Listener, owner: Owner) -> None:
        self._listener = listener
        self._owner = owner
        self._reader = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._last_read = self._loop.time()
        self._transport: asyncio.Transport
        self._connection: Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        ip, port = transport.get_extra_info("peername")[:2]
        self._connection = Connection(
            self._listener.opened(self), pack_host(ip, port), f"{ip}:{port}"
        )

    def data_received(self, data: bytes) -> None:
        self._last_read = self._loop.time()
        try:
            frames = self._reader.feed(data)
            commands = [decode_command(frame) for frame in frames]
        except FrameError as error:
            log.warning("%s: closed, %s", self._connection.address, error)
            self._transport.abort()
            return
        if commands:
            self._owner.received(self._connection, commands)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._reader.kept_size:
            log.warning(
                "%s: closed by the peer within a frame, %d bytes of it had come",
                self._connection.address,
                self._reader.kept_size,
            )
        self._listener.closed(self._connection)

    def send(self, frames: list[bytes]) -> None:
        if self._transport.is_closing():
            return
        self._transport.writelines(frames)
        if self._transport.get_write_buffer_size() > _UNSENT_MAX:
            log.warning("%s: closed, it does not read its answers", self._connection.address)
            self._transport.abort()

    def close_if_idle(self, silent_since: float) -> None:
        if self._last_read < silent_since:
            log.info("%s: closed, silent for %d s", self._connection.address, _IDLE_SECONDS)
            self._transport.close()

    def stop_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def close(self) -> None:
        self._transport.close()
