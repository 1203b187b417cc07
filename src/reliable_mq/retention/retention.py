"""Retention: what is settled and past every window is removed, a few rows at a time (P7).

Receives the time; hands on what is old enough to the ledgers. One instance at a time has the duty,
by a lease that every removal renews: who lost it removes nothing. Whoever has it works a small part
of the time, so that senders do not notice. How old a row is, is not taken from a clock alone: see
`watched_time`. What is removed by age anywhere in the tables is removed here, by that one guard.
"""

import logging
import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from reliable_mq.database.days import DAY_SECONDS, DAYS_SPARED
from reliable_mq.errors import ConfigurationError
from reliable_mq.settings import RetentionWaits
from reliable_mq.watched_time import (
    ClockReading,
    WatchedTime,
    first_look,
    is_worth_noting,
    jump_text,
    unwatched_max,
)

log = logging.getLogger(__name__)

LOOK_SECONDS = 600.0
"""How often partitions are looked at."""


class RemovedRows(msgspec.Struct, frozen=True):
    """How many rows one transaction removed, and whether there may be more to look at."""

    rows: int
    is_full: bool


class RetentionLedgers(Protocol):
    """What retention needs of a database; see `sql_retention`."""

    def take(self, now: float, owner: str, lease: float) -> bool: ...

    def reconciled_until(self) -> float | None: ...

    def watched(self) -> WatchedTime | None: ...

    def newest(self, now: float) -> float | None: ...

    def note_watched(self, known: WatchedTime, owner: str, until: float) -> bool: ...

    def remove_stubs(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...

    def remove_logs(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...

    def remove_free_keys(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...

    def remove_calls(
        self, now: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...

    def remove_escalations(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...


class DayTables(Protocol):
    """What retention needs of tables that are partitioned by day; see `sql_partitions`."""

    def ensure(self, now: float) -> list[str]: ...

    def remove_stub_days(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...

    def remove_log_days(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...


class RetentionCounts(msgspec.Struct, frozen=True):
    """What one run removed.

    `has_duty`: False when another instance has it. `is_full`: there may be more at this moment.
    `held`: for how many seconds longer than its window a stub is kept, because the clock jumped.
    """

    stubs: int = 0
    logs: int = 0
    calls: int = 0
    days: int = 0
    keys: int = 0
    escalations: int = 0
    held: float = 0.0
    has_duty: bool = True
    is_full: bool = False

    @property
    def rows(self) -> dict[str, int]:
        """The rows that were removed, by what they are; every kind of them."""
        return {
            "stubs": self.stubs,
            "logs": self.logs,
            "calls": self.calls,
            "days": self.days,
            "keys": self.keys,
            "escalations": self.escalations,
        }


class Retention:
    """Removes what nobody can need any more.

    Invariant: it removes only while it has the duty, and nothing that is younger than its window by
    the clock or by the time that was watched.

    Args:
        ledgers: one database.
        owner: this instance's name; no two may share it.
        stub_retention: seconds after its end for which a stub is kept.
        log_retention: seconds after its effect for which the log of a message is kept, and longer,
            as long as its stub is there. An escalation that was closed is kept as long.
        look: () -> the clock that dates rows, and one that nobody sets, both at one moment.
        lease: seconds for which the duty is held.
        batch: rows of one transaction.
        waits: for reconciliation, so that nothing goes that it has not seen: "yes", "no", or
            "auto", wherever it was done in increments.
        days: the partitions, where the tables have some: they go whole, and what has to stay longer
            than the rest of its day goes row by row.

    Raises:
        ConfigurationError: when a number is not positive.
    """

    def __init__(
        self,
        ledgers: RetentionLedgers,
        *,
        owner: str,
        stub_retention: float,
        log_retention: float,
        look: Callable[[], ClockReading],
        lease: float = 60.0,
        batch: int = 1000,
        waits: RetentionWaits = "auto",
        days: DayTables | None = None,
    ) -> None:
        if min(stub_retention, log_retention, lease, batch) <= 0:
            raise ConfigurationError("windows, lease and batch of retention must be positive")
        self._ledgers = ledgers
        self._owner = owner
        self._stub_retention = stub_retention
        self._log_retention = log_retention
        self._read = look
        self._lease = lease
        self._batch = batch
        self._waits = waits
        self._days = days
        self._spared = 0.0 if days is None else DAYS_SPARED * DAY_SECONDS
        self._looked_at = -math.inf

    def run_once(self, now: float) -> RetentionCounts:
        """Remove one batch of each: stubs, logs, free keys, results of calls, closed escalations.

        Nothing is removed when another instance has the duty. Raises whatever the database raises;
        nothing is half done then.
        """
        if not self._ledgers.take(now, self._owner, self._lease):
            return RetentionCounts(has_duty=False)
        until = now + self._lease
        known = self._look(until)
        if known is None:
            return RetentionCounts(has_duty=False)
        gate = self._gate()
        args = (self._owner, until, self._batch)
        stubs_before = min(known.before(self._stub_retention + self._spared), gate)
        logs_before = min(known.before(self._log_retention + self._spared), gate)
        ledgers = self._ledgers
        removed = {
            "days": self._whole_days(known, gate, *args),
            "stubs": ledgers.remove_stubs(stubs_before, *args),
            "logs": ledgers.remove_logs(logs_before, *args),
            "keys": ledgers.remove_free_keys(logs_before, *args),
            "calls": ledgers.remove_calls(known.slowest(), *args),
            "escalations": ledgers.remove_escalations(known.before(self._log_retention), *args),
        }
        ours = {name: each for name, each in removed.items() if each is not None}
        if len(ours) < len(removed):
            return RetentionCounts(has_duty=False)
        counts = RetentionCounts(
            held=known.held(self._stub_retention),
            is_full=any(each.is_full for each in ours.values()),
        )
        rows = {name: each.rows for name, each in ours.items()}
        return msgspec.structs.replace(counts, **rows)

    def _look(self, until: float) -> WatchedTime | None:
        """Look at the clocks and tell of a jump; None: the duty is another's by now."""
        # Not `now`: the database may have kept `take` waiting since then.
        reading, gap = self._read(), unwatched_max(self._stub_retention)
        earlier = self._ledgers.watched()
        known = (
            first_look(reading, self._ledgers.newest(reading.wall), unwatched_max=gap)
            if earlier is None
            else earlier.looked(reading, unwatched_max=gap)
        )
        if not is_worth_noting(known, earlier):
            return known
        if not self._ledgers.note_watched(known, self._owner, until):
            return None
        names = {"clock": "the database's clock", "things": "rows"}
        if told := jump_text(known, earlier, self._stub_retention, **names):
            log.warning("retention: %s", told)
        return known

    def _gate(self) -> float:
        """Return the time from which everything stays because it was not reconciled."""
        reconciled = self._ledgers.reconciled_until()
        if self._waits == "no" or (self._waits == "auto" and reconciled is None):
            return math.inf
        return 0.0 if reconciled is None else reconciled

    def _whole_days(
        self, known: WatchedTime, gate: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        """Make partitions ahead and drop old ones, where there are some; now and then is enough."""
        now, args = known.last.wall, (owner, until, limit)
        if self._days is None or self._looked_at <= now < self._looked_at + LOOK_SECONDS:
            return RemovedRows(0, False)
        self._days.ensure(now)
        stubs = self._days.remove_stub_days(min(known.before(self._stub_retention), gate), *args)
        logs = self._days.remove_log_days(min(known.before(self._log_retention), gate), *args)
        if stubs is None or logs is None:
            return None
        is_full = stubs.is_full or logs.is_full
        self._looked_at = -math.inf if is_full else now
        return RemovedRows(stubs.rows + logs.rows, is_full)
