"""A name server over sockets.

It may share an event loop with a broker. So all registrations together get one time slice in each
turn of the loop. A thread writes the settings file, once for all changes since the last write.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import StoreCorrupt
from reliable_mq.limits import REGISTRATIONS_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.name_server.core import NameServerConfig, NameServerCore
from reliable_mq.name_server.registration_queue import RegistrationQueue
from reliable_mq.runtime.connection_limits import ConnectionLimits
from reliable_mq.runtime.listener import Listener, now_ms
from reliable_mq.runtime.loop_figures import LoopFigures, connection_samples
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.families import Sample
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

log = limited_log(__name__)

_EXPIRY_SECONDS = 5.0
_SLICE_SECONDS = 0.002
_REST = 2.0  # how many times as long as a slice took
_SETTINGS_CHANGES = frozenset({RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG})


class NameServer:
    """A name server that listens on one port.

    Args:
        settings_file: the file of settings that tools and brokers put (`kvConfig.json`). None:
            settings are not saved.
        config: the properties that clients see and change.
        limits: of the connections.
        tls: the mode and the certificate; the caller closes it. None: all connections are plain.
    """

    small_answers: frozenset[int] = frozenset()

    def __init__(
        self,
        settings_file: Path | None = None,
        *,
        config: NameServerConfig | None = None,
        limits: ConnectionLimits | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._settings_file = settings_file
        self._core = NameServerCore(config)
        self._tls = tls
        self._listener = Listener(self, limits=limits, tls=tls)
        self._expiry: asyncio.TimerHandle | None = None
        self._registrations = RegistrationQueue(
            lambda connection, command: self._core.begin(connection, command, now_ms())
        )
        self._next_slice: asyncio.Handle | None = None
        self._unsaved: list[tuple[int, Command, Command]] = []  # connection, command, answer
        self._saving: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    @property
    def ips(self) -> list[str]:
        """The addresses at which it listens."""
        return self._listener.ips

    @property
    def limits(self) -> ConnectionLimits:
        """The limits of its connections; they may be changed."""
        return self._listener.limits

    @limits.setter
    def limits(self, limits: ConnectionLimits) -> None:
        self._listener.limits = limits

    async def private_socket(self) -> socket.socket:
        """Return a connected socket for a broker in this process; see `Listener`."""
        return await self._listener.private_socket()

    async def start(self, host: str, port: int) -> None:
        """Listen; see `Listener.bind`.

        Raises:
            StoreCorrupt: when the file of settings cannot be decoded.
        """
        self._load()
        await self._listener.bind(host, port)
        self._core.listen_port = self.port
        await self._listener.serve()
        self._expire()

    def measure(self) -> list[LoopFigures]:
        """Note figures for metrics from now on, on the running loop; return them."""
        return [LoopFigures(self._samples, "name server")]

    def _samples(self) -> Iterator[Sample]:
        routes, prefix = self._core.routes, "reliable_mq_name_server_"
        yield Sample(f"{prefix}brokers", routes.broker_count)
        yield Sample(f"{prefix}topics", routes.topic_count)
        yield from connection_samples(prefix, self._listener, self._tls)

    def _expire(self) -> None:
        self._expiry = asyncio.get_running_loop().call_later(_EXPIRY_SECONDS, self._expire)
        for connection_id in self._core.routes.expire(now_ms()):
            self._listener.close_connection(connection_id)

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> bool:
        """Answer the commands of one read. A one-way command gets no answer.

        Returns:
            Whether commands are left in the iterator: those behind a registration in progress, or
            all when the name server is closing.
        """
        number = connection.id
        if self._is_closing or number in self._registrations:
            return True
        now = now_ms()
        for command in commands:
            if command.is_reply:
                continue
            if command.code == RequestCode.REGISTER_BROKER:
                self._register(number, command)
                if number in self._registrations:
                    return True
            else:
                self._done(number, command, self._core.receive(number, command, now))
        return False

    def _register(self, connection: int, command: Command) -> None:
        """Queue a registration; refuse it when the queue is full."""
        if not self._registrations.add(connection, command):
            remark = f"registrations of {REGISTRATIONS_SIZE_MAX} bytes wait, try again later"
            self._answer(connection, command, reply(command, ResponseCode.SYSTEM_BUSY, remark))
        elif self._next_slice is None:
            self._next_slice = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Work on queued registrations for one time slice, then rest: others come first."""
        began = time.monotonic()
        end = began + _SLICE_SECONDS
        for answered in self._registrations.work(lambda: time.monotonic() > end):
            self._answer(*answered)
        self._next_slice = None
        if self._registrations:
            rest = _REST * (time.monotonic() - began)
            self._next_slice = asyncio.get_running_loop().call_later(rest, self._work)

    def _done(self, connection: int, command: Command, answer: Command) -> None:
        """Answer a handled command. A change of settings is answered after it is saved."""
        if command.code in _SETTINGS_CHANGES and self._core.settings.is_dirty:
            self._unsaved.append((connection, command, answer))
            if self._saving is None:
                self._saving = asyncio.get_running_loop().create_task(self._save())
        else:
            self._answer(connection, command, answer)

    def _answer(self, connection: int, command: Command, answer: Command) -> None:
        if not command.is_oneway:
            self._listener.send(connection, [encode_answer(answer)])

    def _load(self) -> None:
        path = self._settings_file
        if path is None or not path.exists():
            return
        try:
            self._core.settings.load(path.read_text("utf-8"))
        except (ValueError, msgspec.MsgspecError) as error:
            raise StoreCorrupt(f"{path}: {error}; restore it from a copy") from error

    async def _save(self) -> None:
        """Save the settings and answer the commands that changed them, until none waits."""
        try:
            while self._unsaved:
                waiting, self._unsaved = self._unsaved, []
                fault = await self._fault_of_saving()
                for connection, command, answer in waiting:
                    failed = reply(command, ResponseCode.SYSTEM_ERROR, fault) if fault else answer
                    self._answer(connection, command, failed)
        finally:
            self._saving = None  # else no later change would be saved

    async def _fault_of_saving(self) -> str:
        """Save the settings; return the reason of a failure, or an empty string."""
        try:
            await asyncio.to_thread(self._write, self._core.settings.dump())
        except OSError as error:
            broker_events.SETTINGS_NOT_SAVED.log(log, error=error)
            return f"the settings cannot be saved: {error.strerror}"
        except Exception as error:  # noqa: BLE001 - the waiting commands are answered after any failure
            broker_events.SETTINGS_SAVING_BROKEN.log(log, traceback_of=True)
            return f"the settings cannot be saved: {error}"
        return ""

    def _write(self, text: str) -> None:
        path = self._settings_file
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def disconnected(self, connection: PeerConnection) -> None:
        """Forget the brokers that registered over a connection."""
        self._registrations.drop(connection.id)
        self._core.routes.disconnected(connection.id)

    async def close(self) -> None:
        """Accept no more requests, save changed settings, and stop."""
        if self._expiry:
            self._expiry.cancel()
        self._is_closing = True  # changes that never stop would otherwise keep it open
        self._listener.stop_reading()
        if self._saving:
            await self._saving
        if self._next_slice:
            self._next_slice.cancel()
        await self._listener.close()
