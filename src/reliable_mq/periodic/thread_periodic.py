"""Fires the ticks of periodic messages, in a thread of the resend scheduler's process.

Receives the declarations and the time. One transaction has the stubs of a tick, its row, and what
its function did in the session. So a tick is fired exactly once. Any number of processes may try:
the lock on a row decides, and the others read that the tick was fired.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection

from reliable_mq.database.sql_faults import FaultLog, known_fault
from reliable_mq.database.sql_handler_session import HandlerSession
from reliable_mq.errors import ReliableMQError, error_text
from reliable_mq.outbox.thread_outboxes import OpenOutbox
from reliable_mq.periodic.declaration import PeriodicMessage, PeriodicState, Tick
from reliable_mq.periodic.due import DueTick, due_tick, is_turned_back
from reliable_mq.periodic.sql_ticks import PeriodicRow, SqlTicks
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

RETRY_SECONDS = (1.0, 5.0, 15.0, 60.0)
"""The waits after failed tries of a tick; the last one repeats."""
LOCKED_SECONDS = 1.0
"""After this time it looks again at a row that another process has locked."""
SOON_SECONDS = 0.05
OVERDUE_SECONDS = 120.0
"""If a tick was not fired for so long, no scheduler runs, or its function fails."""
_STEPPED_SECONDS = 1.0  # a clock that goes back by less was corrected, not set
_ROUNDS_MAX = 100  # ticks of one periodic message in one run, before the others have their turn
_WRITTEN_AT_ONCE = 500


class PeriodicCounts(msgspec.Struct, frozen=True):
    """What one run did. `is_full`: more ticks may be due at this moment."""

    ticks: int = 0
    messages: int = 0
    skipped: int = 0
    failed: int = 0
    is_full: bool = False


class PeriodicSender:
    """Fires the due ticks of periodic messages in one database.

    Invariant U1: a tick that was fired has a row, which was committed with its stubs.

    Args:
        messages: the periodic messages of this database.
        ticks: their rows.
        session: returns a new session for a function.
        outbox: returns the outbox of the database; called when a tick is due.
    """

    def __init__(
        self,
        messages: Sequence[PeriodicMessage],
        ticks: SqlTicks,
        session: Callable[[], HandlerSession],
        outbox: Callable[[], OpenOutbox],
    ) -> None:
        self._messages = messages
        self._ticks = ticks
        self._session = session
        self._outbox = outbox
        self._look_at: dict[str, float] = {}  # when the next tick or try of each may be due
        self._declared: set[str] = set()
        self._seen = 0.0

    @property
    def next_time(self) -> float | None:
        """When the next tick or try may be due, as of the last run; None: look at once."""
        if len(self._look_at) < len(self._messages):
            return None
        return min(self._look_at.values(), default=None)

    def run_once(self, now: float) -> PeriodicCounts:
        """Fire what is due at `now`, in seconds since the epoch.

        Raises what the database raises. A function that raises does not stop the others.
        """
        if now < self._seen - _STEPPED_SECONDS:
            self._look_at.clear()  # the clock was set back
        self._seen = now
        done, is_full = PeriodicCounts(), False
        for message in self._messages:
            if now < self._look_at.get(message.name, 0.0):
                continue
            for _ in range(_ROUNDS_MAX):
                counts = self._fire_next(message, now)
                if counts is None:
                    break
                done = _sum(done, counts)
            else:
                is_full = True
        return msgspec.structs.replace(done, is_full=is_full)

    def states(self, now: float) -> list[PeriodicState]:
        """Return what is known of each periodic message."""
        rows, found = self._ticks.rows(), []
        for message in self._messages:
            row, zone = rows.get(message.name), message.schedule.zone
            first = message.schedule.first(now)
            state = PeriodicState(
                name=message.name,
                schedule=message.schedule.text,
                topic=message.topic,
                database=message.database,
                next_tick=None if first is None else datetime.fromtimestamp(first, zone),
            )
            if row is not None:
                last = None if row.last_tick is None else row.last_tick.astimezone(zone)
                decided = row.decided_until.timestamp()
                late = message.schedule.newest(decided, now - OVERDUE_SECONDS)
                state = msgspec.structs.replace(
                    state,
                    last_tick=last,
                    fire_date=row.fire_date,
                    message_id=row.last_message_id,
                    fired=row.fired,
                    failures=row.failures,
                    note=row.note,
                    overdue=None if late is None else datetime.fromtimestamp(late, zone),
                )
            found.append(state)
        return found

    def _fire_next(self, message: PeriodicMessage, now: float) -> PeriodicCounts | None:
        """Decide the next due tick of a periodic message; None: none is due."""
        name = message.name
        if name not in self._declared:
            self._ticks.declare(name, message.schedule.text, now)
            self._declared.add(name)
        with self._session() as session:
            session.begin()
            connection = session.connection()
            row = self._ticks.lock(connection, name)
            if row is None:
                session.rollback()
                self._look_at[name] = now + LOCKED_SECONDS
                # Locked: the row may have the schedule of a newer release, which must stay.
                if not self._ticks.has_row(name):  # a person has removed it
                    self._declared.discard(name)
                return None
            due = self._due(message, row, connection, now)
            if due is None:
                session.commit()
                return None
            if due.tick is None:
                self._ticks.decide(connection, name, due.decided_until, now)
                session.commit()
                _log_skipped(message, due)
                return PeriodicCounts(skipped=due.skipped)
            return self._fire(message, session, connection, row, due, due.tick, now)

    def _fire(
        self,
        message: PeriodicMessage,
        session: HandlerSession,
        connection: Connection,
        row: PeriodicRow,
        due: DueTick,
        tick: float,
        now: float,
    ) -> PeriodicCounts:
        """Fire a due tick in the transaction that has the lock of its row."""
        try:
            message_ids = self._call(message, session, tick, due.skipped)
            at = row.fired + 1
            self._ticks.fire(connection, message.name, tick, at, message_ids, now)
            session.commit()
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - logged by `_failed`
            error = session.cause_of(raised) if isinstance(raised, Exception) else raised
            session.rollback()
            return self._failed(message, tick, row, error, now)
        _log_skipped(message, due)
        application_events.TICK_FIRED.log(
            log,
            periodic=message.name,
            tick=_time_text(message, tick),
            messages=len(message_ids),
            message_id=message_ids[0] if message_ids else None,
        )
        return PeriodicCounts(ticks=1, messages=len(message_ids), skipped=due.skipped)

    def _due(
        self, message: PeriodicMessage, row: PeriodicRow, connection: Connection, now: float
    ) -> DueTick | None:
        """Return what is due by a locked row; note in memory when to look again if nothing is."""
        name, schedule, decided = message.name, message.schedule, row.decided_until
        if is_turned_back(decided, now):
            application_events.TICKS_TURNED_BACK.log(
                log,
                periodic=name,
                decided=_time_text(message, decided),
                now=_time_text(message, now),
            )
            decided = now
            self._ticks.decide(connection, name, now, now)
        retry = row.retry_time or 0.0
        if now < retry <= now + RETRY_SECONDS[-1]:  # later than that, the clock was set back
            self._look_at[name] = retry
            return None
        while due := due_tick(schedule, decided, now, message.catch_up):
            if due.tick is None or not self._ticks.is_fired(connection, name, due.tick):
                return due
            decided = due.tick  # fired when the clock was ahead
            self._ticks.decide(connection, name, decided, now)
        self._look_at[name] = schedule.first(max(decided, now)) or float("inf")
        return None

    def _call(
        self, message: PeriodicMessage, session: HandlerSession, tick: float, skipped: int
    ) -> list[str]:
        """Call the function, and write a stub for each payload; return the message ids."""
        given: dict[str, Any] = {}
        if message.tick is not None:
            moment = datetime.fromtimestamp(tick, message.schedule.zone)
            given[message.tick] = Tick(name=message.name, time=moment, skipped=skipped)
        if message.session is not None:
            given[message.session] = session
        message_ids: list[str] = []
        with session.held():
            payloads = _payloads(message.function(**given))
            while some := list(islice(payloads, _WRITTEN_AT_ONCE)):
                message_ids += self._outbox().outbox.write_many(
                    session, message.topic, some, **message.options
                )
        if session.is_in_doubt:
            session.check_transaction(undo=False)
        return message_ids

    def _failed(
        self,
        message: PeriodicMessage,
        tick: float,
        row: PeriodicRow,
        error: BaseException,
        now: float,
    ) -> PeriodicCounts:
        failures, why = row.failures + 1, error_text(error)
        wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1]
        if not self._ticks.fail(message.name, row, now + wait, why, now):
            wait = 0.0  # another process has tried, too: look again at once
        is_plain = isinstance(error, ReliableMQError) or failures > 1
        application_events.TICK_FAILED.log(
            log,
            traceback_of=None if is_plain or known_fault(error) else error,
            periodic=message.name,
            tick=_time_text(message, tick),
            times=failures,
            seconds=wait,
            error=why,
        )
        self._look_at[message.name] = now + wait
        return PeriodicCounts(failed=1)


def _payloads(answer: object) -> Iterator[Any]:
    """Return the payloads in what a function returned: none, one, or those of a generator."""
    if isinstance(answer, Iterator):
        return answer
    return iter(() if answer is None else (answer,))


def _log_skipped(message: PeriodicMessage, due: DueTick) -> None:
    if due.skipped:
        application_events.TICKS_SKIPPED.log(
            log,
            periodic=message.name,
            skipped=due.skipped,
            tick=_time_text(message, due.tick or due.decided_until),
        )


def _time_text(message: PeriodicMessage, seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, message.schedule.zone)
    return moment.isoformat(timespec="seconds")


def _sum(one: PeriodicCounts, other: PeriodicCounts) -> PeriodicCounts:
    return PeriodicCounts(
        one.ticks + other.ticks,
        one.messages + other.messages,
        one.skipped + other.skipped,
        one.failed + other.failed,
    )


def fire_forever(
    sender: PeriodicSender,
    stopped: StopSignal,
    *,
    interval: float,
    clock: Callable[[], float] = time.time,
) -> None:
    """Fire due ticks until `stopped`. It looks at the clock every `interval` seconds or earlier.

    It has a thread of its own: a slow function must not delay the resend scheduler.
    """
    faults = FaultLog(log, "periodic messages")
    while not stopped.is_set():
        wait = interval
        try:
            counts = sender.run_once(clock())
            faults.note_success()
            if counts.is_full:
                continue
            if sender.next_time is not None:
                wait = min(interval, max(sender.next_time - clock(), SOON_SECONDS))
        except Exception as error:  # noqa: BLE001 - logged there
            faults.log_fault(error)
        stopped.wait(wait)
