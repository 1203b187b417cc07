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
from typing import NamedTuple

import msgspec

from reliable_mq.access.guard import Guard
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import StoreCorrupt
from reliable_mq.limits import REGISTRATIONS_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.name_server.core import NameServerConfig, NameServerCore
from reliable_mq.name_server.name_server_limits import NameServerLimits
from reliable_mq.name_server.registration_queue import RegistrationQueue
from reliable_mq.runtime.audit_file import AuditFile, AuditSizes
from reliable_mq.runtime.connection_limits import ConnectionLimits
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.loop_figures import LoopFigures, connection_samples
from reliable_mq.runtime.name_server_acts import Act, NameServerActs
from reliable_mq.runtime.server_connection import TurnShares, now_ms
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.families import Sample
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

log = limited_log(__name__)

_EXPIRY_SECONDS = 5.0
_REST = 2.0  # how many times as long as a slice took
_SETTINGS_CHANGES = frozenset({RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG})


class _Answered(NamedTuple):
    """A command with its answer; `act`: it may change something, and comes from a stranger."""

    connection: int
    command: Command
    answer: Command
    act: Act | None


class NameServer:
    """A name server that listens on one port.

    Args:
        settings_file: the file of settings that tools and brokers put (`kvConfig.json`). None:
            settings are not saved.
        config: the properties that clients see and change.
        limits: of the connections.
        tables: of the registrations, and of the audit.
        guard: who may change something; None: everybody. The owner may set it later.
        audit: has the requests that change something; the caller closes it. None: no notes.
        tls: the mode and the certificate; the caller closes it. None: all connections are plain.
        turns: of the event loop; None: no broker is on it.
    """

    small_answers: frozenset[int] = frozenset()

    def __init__(
        self,
        settings_file: Path | None = None,
        *,
        config: NameServerConfig | None = None,
        limits: ConnectionLimits | None = None,
        tables: NameServerLimits | None = None,
        guard: Guard | None = None,
        audit: AuditFile | None = None,
        tls: ServerTls | None = None,
        turns: TurnShares | None = None,
    ) -> None:
        self._settings_file = settings_file
        tables = tables or NameServerLimits()
        self.audit_sizes: AuditSizes = tables
        self._core = NameServerCore(config, tables)
        self._acts = NameServerActs(self._core, guard)
        self._audit = audit
        self._tls = tls
        self.listener = Listener(self, limits=limits, tls=tls, turns=turns)
        self._expiry: asyncio.TimerHandle | None = None
        self._registrations = RegistrationQueue(
            lambda connection, command: self._core.begin(connection, command, now_ms())
        )
        self._next_slice: asyncio.Handle | None = None
        self._registering: dict[int, Act | None] = {}  # by connection
        self._unsaved: list[_Answered] = []
        self._saving: asyncio.Task[None] | None = None
        self._is_closing = False
        self._refused_registrations = 0  # since the start

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.listener.port

    @property
    def ips(self) -> list[str]:
        """The addresses at which it listens."""
        return self.listener.ips

    @property
    def guard(self) -> Guard | None:
        """Who may change something; None: everybody."""
        return self._acts.guard

    @guard.setter
    def guard(self, guard: Guard | None) -> None:
        self._acts.guard = guard

    @property
    def limits(self) -> ConnectionLimits:
        """The limits of its connections; they may be changed."""
        return self.listener.limits

    @limits.setter
    def limits(self, limits: ConnectionLimits) -> None:
        self.listener.limits = limits

    async def private_socket(self) -> socket.socket:
        """Return a connected socket for a broker in this process; see `Listener`."""
        return await self.listener.private_socket()

    async def start(self, host: str, port: int) -> None:
        """Listen; see `Listener.bind`.

        Raises:
            StoreCorrupt: when the file of settings cannot be decoded.
        """
        self._load()
        await self.listener.bind(host, port)
        self._core.listen_port = self.port
        await self.listener.serve()
        self._expire()

    def measure(self) -> list[LoopFigures]:
        """Note figures for metrics from now on, on the running loop; return them."""
        return [LoopFigures(self._samples, "name server")]

    def _samples(self) -> Iterator[Sample]:
        routes, prefix = self._core.routes, "reliable_mq_name_server_"
        yield Sample(f"{prefix}brokers", routes.broker_count)
        yield Sample(f"{prefix}topics", routes.topic_count)
        yield Sample(f"{prefix}refused_registrations_total", self._refused_registrations)
        yield Sample(f"{prefix}refused_access_total", self._acts.refused)
        yield from connection_samples(prefix, self.listener, self._tls)

    def _expire(self) -> None:
        self._expiry = asyncio.get_running_loop().call_later(_EXPIRY_SECONDS, self._expire)
        for connection_id in self._core.routes.expire(now_ms()):
            self.listener.close_connection(connection_id)

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
            act = None if connection.is_own else self._acts.begin(connection, command, now)
            if act is not None and act.refusal is not None:
                self._answer(_Answered(number, command, act.refusal, act))
            elif command.code == RequestCode.REGISTER_BROKER:
                self._register(number, command, act)
                if number in self._registrations:
                    return True
            else:
                answer = self._core.receive(number, command, now)
                if act is not None:
                    self._acts.done(act)
                self._done(_Answered(number, command, answer, act))
        return False

    def _register(self, connection: int, command: Command, act: Act | None) -> None:
        """Queue a registration; refuse it when the queue is full."""
        if not self._registrations.add(connection, command):
            remark = f"registrations of {REGISTRATIONS_SIZE_MAX} bytes wait, try again later"
            answer = reply(command, ResponseCode.SYSTEM_BUSY, remark)
            self._answer(_Answered(connection, command, answer, act))
            return
        self._registering[connection] = act
        if self._next_slice is None:
            self._next_slice = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Work on queued registrations for one time slice, then rest: others come first."""
        began = time.monotonic()
        end = began + self.listener.turns.now.works
        for answered in self._registrations.work(lambda: time.monotonic() > end):
            act = self._registering.pop(answered[0], None)
            if act is not None:
                self._acts.done(act)
            self._answer(_Answered(*answered, act))
            self.listener.wake(answered[0])
        self._next_slice = None
        if self._registrations:
            rest = _REST * (time.monotonic() - began)
            self._next_slice = asyncio.get_running_loop().call_later(rest, self._work)

    def _done(self, answered: "_Answered") -> None:
        """Answer a handled command. A change of settings is answered after it is saved."""
        if answered.command.code in _SETTINGS_CHANGES and self._core.settings.is_dirty:
            self._unsaved.append(answered)
            if self._saving is None:
                self._saving = asyncio.get_running_loop().create_task(self._save())
        else:
            self._answer(answered)

    def _answer(self, answered: "_Answered") -> None:
        """Write the line of the audit, if there is one, and send the answer."""
        connection, command, answer, act = answered
        if command.code == RequestCode.REGISTER_BROKER and answer.code != ResponseCode.SUCCESS:
            self._refused_registrations += 1
        if act is not None and (lines := self._acts.tell(act, answer)) and self._audit is not None:
            self._audit.write(lines, self.audit_sizes, now_ms())
        if not command.is_oneway:
            self.listener.send(connection, [encode_answer(answer)])

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
                for each in waiting:
                    if fault:
                        failed = reply(each.command, ResponseCode.SYSTEM_ERROR, fault)
                        self._answer(each._replace(answer=failed))
                    else:
                        self._answer(each)
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
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def received_known(self, connection: PeerConnection, command: Command) -> bool:
        """Answer the one command of a read; see `received`."""
        return self.received(connection, (command,))

    def disconnected(self, connection: PeerConnection) -> None:
        """Forget the brokers that registered over a connection."""
        self._registrations.drop(connection.id)
        self._registering.pop(connection.id, None)
        self._core.routes.disconnected(connection.id)

    async def close(self) -> None:
        """Accept no more requests, save changed settings, and stop."""
        if self._expiry:
            self._expiry.cancel()
        self._is_closing = True  # changes that never stop would otherwise keep it open
        self.listener.stop_reading()
        if self._saving:
            await self._saving
        if self._next_slice:
            self._next_slice.cancel()
        await self.listener.close()
