"""The turns of a broker: commands of its connections in, batches to the log, replies out.

All commands of a loop turn become one batch, and one write to each connection. With one or two
active clients, the commands of one read already become a batch.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from operator import length_hint

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.requests.handlers import SMALL_ANSWERS
from reliable_mq.broker_core.state import PeerConnection, Turn
from reliable_mq.broker_core.store.commit_log import LogBatch
from reliable_mq.runtime.audit_file import AuditFile
from reliable_mq.runtime.broken import OnBroken
from reliable_mq.runtime.broker_chores import BrokerChores
from reliable_mq.runtime.broker_role import BrokerRole
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.registrar import Registrar
from reliable_mq.runtime.replication import Making
from reliable_mq.runtime.server_connection import now_ms, send_all
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.wire.command import Command

_FEW_SPEAKERS = 2
_SOME_SPEAKERS = 8  # if one sends much, others with single requests do not wait for its share


class BrokerTurns:
    """Runs the turns of one broker. `BrokerServer` starts it, and gives it the core.

    Args:
        on_broken: takes an unexpected exception of the broker's background work.
        make: makes what it does for its copies.
        tls: of its listener.
        audit: the file for lines of the audit.
    """

    small_answers = SMALL_ANSWERS

    def __init__(self, on_broken: OnBroken, make: Making, tls: ServerTls, audit: AuditFile) -> None:
        self._on_broken, self._audit = on_broken, audit
        self._loop: asyncio.AbstractEventLoop
        self._listener = self.listener = Listener(self, tls=tls)
        self._listener.pace.created = lambda: self._core.created
        self._turn_is_due, self._turn_began_ms = False, 0
        self._is_turn_plain = False  # whether the turn that is due has only plain sends
        self._speakers: set[int] = set()  # connections that sent since the last tick
        self.role = BrokerRole()
        self._send = partial(send_all, self._listener.connections)
        self._replication = make(self._send, self._run_turn, tls, self.role)
        self._registrar: Registrar
        self._core: BrokerCore
        self._log_writer: LogWriter
        self._chores: BrokerChores

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> bool:
        """Handle the commands of one read; return True if one takes long, and leaves the others.

        Replies and writes leave at the end of the loop turn, or at once if few clients are active.
        """
        busy = self._core.state.works.busy
        if busy and connection.id in busy:
            return True
        self._speakers.add(connection.id)
        is_shared = len(self._speakers) > _FEW_SPEAKERS and self._is_shared(commands)
        return self._handle(connection, commands, now_ms(), is_shared=is_shared)

    def received_known(self, connection: PeerConnection, command: Command) -> bool:
        """Handle the one command of a read, which was recognised; see `ConnectionOwner`."""
        busy = self._core.state.works.busy
        if busy and connection.id in busy:
            return True
        now = now_ms()
        speakers = self._speakers
        speakers.add(connection.id)
        is_shared = len(speakers) > _FEW_SPEAKERS and self._is_shared((command,))
        if not (is_shared or self._turn_is_due):
            self._chores.is_idle = False
            try:
                sends = self._core.place_alone(connection, command, now)
                if sends is not None and self._log_writer.write_alone(sends):
                    self._core.stored_alone(sends, now, now_ms(), self._send)
                    if self._replication.master is not None:
                        self._replication.master.stored()
                    return False
            except Exception as error:  # noqa: BLE001 - on_broken handles it
                self._on_broken(error)
        self._handle(connection, (command,), now, is_shared=is_shared)
        return False

    def _is_shared(self, commands: Iterable[Command]) -> bool:
        """Whether so many connections send that these commands wait for the loop's turn."""
        is_alone = self._listener.turns.many_from is not None and length_hint(commands) == 1
        return not is_alone or len(self._speakers) > _SOME_SPEAKERS

    def _handle(
        self,
        connection: PeerConnection,
        commands: Iterable[Command],
        now: int,
        *,
        is_shared: bool,
    ) -> bool:
        """Handle commands in a turn; return True if one takes long, and leaves the others."""
        self._chores.is_idle = is_long = False
        if not self._turn_is_due:
            self._turn_began_ms = now
        core, is_plain, busy = self._core, True, self._core.state.works.busy
        try:
            for command in commands:
                is_plain = core.receive(connection, command, now) and is_plain
                if busy and connection.id in busy:
                    is_long = True
                    break
        except Exception as error:  # noqa: BLE001 - on_broken handles it; the loop would drop it
            self._on_broken(error)
        if is_shared:
            self._schedule_turn(now, is_plain=is_plain)
            return is_long
        try:
            if is_plain and not self._turn_is_due:
                self._write(core.take_sends(now, now))
            else:
                self._carry_out(core.take_turn(self._turn_began_ms, now_ms(), 0))
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)
        return is_long

    def disconnected(self, connection: PeerConnection) -> None:
        """Forget a connection."""
        try:
            self._core.disconnected(connection.id)
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)
        self._schedule_turn(now_ms())

    def _schedule_turn(self, began_ms: int, *, is_plain: bool = False) -> None:
        if not self._turn_is_due:
            self._turn_is_due = self._is_turn_plain = True
            self._turn_began_ms = began_ms
            self._loop.call_soon(self._run_due_turn)
        self._is_turn_plain = is_plain and self._is_turn_plain

    def _run_due_turn(self) -> None:
        self._turn_is_due = False
        self._run_turn(self._turn_began_ms, is_plain=self._is_turn_plain)

    def _write(self, batch: LogBatch | None) -> None:
        if batch is not None:
            self._log_writer.write(batch)

    def _run_turn(self, began_ms: int = 0, *, is_plain: bool = False) -> None:
        try:
            now = now_ms()
            if is_plain:
                self._write(self._core.take_sends(began_ms, now))
                return
            began = began_ms or (self._turn_began_ms if self._turn_is_due else now)
            if self._turn_is_due or not self._core.state.works.busy:  # a turn that is due works
                self._carry_out(self._core.take_turn(began, now, 0))
                return
            before, work_us = self._core.created, 1e6 * self._listener.turns.now.works
            self._carry_out(self._core.take_turn(began, now, work_us))
            self._listener.note_created(self._core.state.works.last, before)
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)

    def _carry_out(self, turn: Turn) -> None:
        if turn.audit:  # before the first reply
            self._audit.write(turn.audit, self._core.state.config, now_ms())
        if turn.replies:
            self._send(turn.replies)
        if turn.batch or turn.files:
            self._chores.is_idle = False  # also a slave, whom nobody sends commands
            self._log_writer.write_turn(turn)
        state = self._core.state
        if turn.registered_replies or state.unregistered:
            self._registrar.register_changes(turn.registered_replies)
        waiting = state.pulls.ready or state.pops.ready or state.notifications.ready
        if waiting or state.works.busy or state.files.due or state.store.log.pending:
            self._schedule_turn(now_ms())

    def _stored(self, end: int, is_durable: bool) -> None:
        try:
            core, copies, send = self._core, self._replication, self._send
            now, report = now_ms(), copies.report
            again = core.stored(end, durable=is_durable, now_ms=now, answer=send, report=report)
            if copies.master is not None:
                copies.master.stored()
            if again:  # nothing else can become due here
                self._schedule_turn(now_ms())
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)

    def _saved(self) -> None:
        try:
            took = self._log_writer.files_seconds if self._listener.turns.is_short else 0.0
            self._core.saved(now_ms(), took, is_flood=self._listener.pace.is_on)
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)
        self._run_turn()
