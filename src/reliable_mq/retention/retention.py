"""Retention: remove settled rows that are older than every window, a few rows at a time (P7).

Receives the time, and tells the ledgers which rows are old enough. One instance at a time has the
duty, by a lease that every removal renews. An instance that lost the duty removes nothing. It works
only a small part of the time, so that it does not slow down senders.

The age of a row is not taken from one clock alone: see `watched_time`. This module is the only
place that removes rows by age, so that this rule protects all of them.
"""

import logging
import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from reliable_mq.configuration.setting_choices import RetentionWaits
from reliable_mq.database.days import DAY_SECONDS, DAYS_SPARED
from reliable_mq.errors import ConfigurationError
from reliable_mq.telemetry import application_events
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
"""Seconds between two checks of the partitions."""


class RemovedRows(msgspec.Struct, frozen=True):
    """How many rows one transaction removed, and whether there may be more to check."""

    rows: int
    is_full: bool


class RetentionLedgers(Protocol):
    """The database operations of retention; see `sql_retention`."""

    def take_duty(self, now: float, owner: str, lease: float) -> bool: ...

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
    """The operations of retention on tables with a partition for each day; see `sql_partitions`."""

    def ensure(self, now: float) -> list[str]: ...

    def remove_stub_days(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...

    def remove_log_days(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None: ...


class RetentionCounts(msgspec.Struct, frozen=True):
    """The result of one run: the numbers of removed rows, and of removed days (partitions).

    Attributes:
        held: seconds that a stub is kept beyond its window, because the clock jumped.
        has_duty: whether this instance has the duty. If not, another one has it.
        is_full: there may be more rows to remove at this moment.
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
        """The numbers of removed rows, by the name of their kind."""
        return {
            "stubs": self.stubs,
            "logs": self.logs,
            "calls": self.calls,
            "days": self.days,
            "keys": self.keys,
            "escalations": self.escalations,
        }


class Retention:
    """Removes old rows of one database.

    Invariant: it removes only while it has the duty, and only rows that are older than their window
    both by the clock and by watched time.

    Args:
        ledgers: the database.
        owner: this instance's name, different for each instance.
        stub_retention: seconds that a stub is kept after it was settled.
        log_retention: seconds that a consume log is kept after the effect, and at least as long as
            the stub exists. A closed escalation is kept for the same time.
        look: () -> one reading of two clocks: the clock that dates rows, and a monotonic clock.
        lease: seconds that the duty lasts. Default 60.
        batch: most rows of one transaction. Default 1000.
        waits: whether rows stay until reconciliation has seen them: "yes", "no" or "auto". "auto"
            means yes if the database is reconciled in increments. Default "auto".
        days: the partitions, if the tables have some. A partition is dropped as a whole. If some
            of its rows must stay longer, its rows are removed one by one.

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
        """Remove one batch each of stubs, logs, free keys, call results and closed escalations.

        Removes nothing if another instance has the duty. Raises what the database raises; each
        batch is one transaction, so none is half done.
        """
        if not self._ledgers.take_duty(now, self._owner, self._lease):
            return RetentionCounts(has_duty=False)
        until = now + self._lease
        known = self._check_clocks(until)
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

    def _check_clocks(self, until: float) -> WatchedTime | None:
        """Read the clocks, and log a jump; None: another instance has the duty now."""
        # A new reading instead of `now`: the database may have made `take_duty` wait.
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
        if jump := jump_text(known, earlier, self._stub_retention, **names):
            application_events.RETENTION_CLOCK_JUMPED.log(log, problem=jump)
        return known

    def _gate(self) -> float:
        """Return the time from which all rows stay, because they are not reconciled yet."""
        reconciled = self._ledgers.reconciled_until()
        if self._waits == "no" or (self._waits == "auto" and reconciled is None):
            return math.inf
        return 0.0 if reconciled is None else reconciled

    def _whole_days(
        self, known: WatchedTime, gate: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        """Make future partitions and drop old ones, if there are any, every `LOOK_SECONDS`."""
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
