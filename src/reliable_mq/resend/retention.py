"""Retention: what is settled and past every window is removed, a few rows at a time (P7).

Receives the time; hands on what is old enough to the ledgers. One instance at a time has the duty,
by a lease that every removal renews: who lost it removes nothing. Whoever has it works a small part
of the time, so that senders do not notice.
"""

import math
from typing import Protocol

import msgspec

from reliable_mq.errors import ConfigurationError
from reliable_mq.resend.days import DAY_SECONDS, DAYS_SPARED
from reliable_mq.settings import RetentionWaits

LOOK_SECONDS = 600.0
"""How often partitions are looked at."""


class Removed(msgspec.Struct, frozen=True):
    """How many rows one transaction removed, and whether there may be more to look at."""

    rows: int
    is_full: bool


class Ledgers(Protocol):
    """What retention needs of a database; see `sql_retention`."""

    def take(self, now: float, owner: str, lease: float) -> bool: ...

    def reconciled_until(self) -> float | None: ...

    def remove_stubs(
        self, before: float, owner: str, until: float, limit: int
    ) -> Removed | None: ...

    def remove_logs(
        self, before: float, owner: str, until: float, limit: int
    ) -> Removed | None: ...

    def remove_free_keys(
        self, before: float, owner: str, until: float, limit: int
    ) -> Removed | None: ...

    def remove_calls(self, now: float, owner: str, until: float, limit: int) -> Removed | None: ...


class Days(Protocol):
    """What retention needs of tables that are partitioned by day; see `sql_partitions`."""

    def ensure(self, now: float) -> list[str]: ...

    def remove_stub_days(
        self, before: float, owner: str, until: float, limit: int
    ) -> Removed | None: ...

    def remove_log_days(
        self, before: float, owner: str, until: float, limit: int
    ) -> Removed | None: ...


class RetentionCounts(msgspec.Struct, frozen=True):
    """What one run removed.

    `has_duty`: False when another instance has it. `is_full`: there may be more at this moment.
    """

    stubs: int = 0
    logs: int = 0
    calls: int = 0
    days: int = 0
    keys: int = 0
    has_duty: bool = True
    is_full: bool = False


class Retention:
    """Removes what nobody can need any more.

    Invariant: it removes only while it has the duty, and nothing that is younger than its window.

    Args:
        ledgers: one database.
        owner: this instance's name; no two may share it.
        stub_retention: seconds after its end for which a stub is kept.
        log_retention: seconds after its effect for which the log of a message is kept, and longer,
            as long as its stub is there.
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
        ledgers: Ledgers,
        *,
        owner: str,
        stub_retention: float,
        log_retention: float,
        lease: float = 60.0,
        batch: int = 1000,
        waits: RetentionWaits = "auto",
        days: Days | None = None,
    ) -> None:
        if min(stub_retention, log_retention, lease, batch) <= 0:
            raise ConfigurationError("windows, lease and batch of retention must be positive")
        self._ledgers = ledgers
        self._owner = owner
        self._stub_retention = stub_retention
        self._log_retention = log_retention
        self._lease = lease
        self._batch = batch
        self._waits = waits
        self._days = days
        self._spared = 0.0 if days is None else DAYS_SPARED * DAY_SECONDS
        self._looked_at = -math.inf

    def run_once(self, now: float) -> RetentionCounts:
        """Remove one batch of each: stubs, logs, free keys, results of calls; if it has the duty.

        Raises whatever the database raises; nothing is half done then.
        """
        if not self._ledgers.take(now, self._owner, self._lease):
            return RetentionCounts(has_duty=False)
        until = now + self._lease
        gate = self._gate()
        days = self._whole_days(now, until, gate)
        stubbed_before = min(now - self._stub_retention - self._spared, gate)
        stubs = self._ledgers.remove_stubs(stubbed_before, self._owner, until, self._batch)
        logged_before = min(now - self._log_retention - self._spared, gate)
        logs = self._ledgers.remove_logs(logged_before, self._owner, until, self._batch)
        keys = self._ledgers.remove_free_keys(logged_before, self._owner, until, self._batch)
        calls = self._ledgers.remove_calls(now, self._owner, until, self._batch)
        if days is None or stubs is None or logs is None or keys is None or calls is None:
            return RetentionCounts(has_duty=False)
        is_full = any(each.is_full for each in (days, stubs, logs, keys, calls))
        return RetentionCounts(
            stubs.rows, logs.rows, calls.rows, days.rows, keys.rows, is_full=is_full
        )

    def _gate(self) -> float:
        """Return the time from which everything stays because it was not reconciled."""
        reconciled = self._ledgers.reconciled_until()
        if self._waits == "no" or (self._waits == "auto" and reconciled is None):
            return math.inf
        return 0.0 if reconciled is None else reconciled

    def _whole_days(self, now: float, until: float, gate: float) -> Removed | None:
        """Make partitions ahead and drop old ones, where there are some; now and then is enough."""
        if self._days is None or now < self._looked_at + LOOK_SECONDS:
            return Removed(0, False)
        self._days.ensure(now)
        args = (self._owner, until, self._batch)
        stubs = self._days.remove_stub_days(min(now - self._stub_retention, gate), *args)
        logs = self._days.remove_log_days(min(now - self._log_retention, gate), *args)
        if stubs is None or logs is None:
            return None
        is_full = stubs.is_full or logs.is_full
        self._looked_at = -math.inf if is_full else now
        return Removed(stubs.rows + logs.rows, is_full)
