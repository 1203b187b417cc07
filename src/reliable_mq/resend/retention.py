"""Retention: what is settled and past every window is removed, a few rows at a time (P7).

Receives the time; hands on what is old enough to the ledgers. One instance at a time has the duty,
by a lease that every removal renews: who lost it removes nothing. Whoever has it works a small part
of the time, so that senders do not notice.
"""

from typing import Protocol

import msgspec

from reliable_mq.errors import ConfigurationError


class Removed(msgspec.Struct, frozen=True):
    """How many rows one transaction removed, and whether there may be more to look at."""

    rows: int
    is_full: bool


class Ledgers(Protocol):
    """What retention needs of a database; see `sql_retention`."""

    def take(self, now: float, owner: str, lease: float) -> bool: ...

    def remove_stubs(
        self, before: float, owner: str, until: float, limit: int
    ) -> Removed | None: ...

    def remove_logs(
        self, before: float, owner: str, until: float, limit: int
    ) -> Removed | None: ...

    def remove_calls(self, now: float, owner: str, until: float, limit: int) -> Removed | None: ...


class RetentionCounts(msgspec.Struct, frozen=True):
    """What one run removed.

    `has_duty`: False when another instance has it. `is_full`: there may be more at this moment.
    """

    stubs: int = 0
    logs: int = 0
    calls: int = 0
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
        batch: int = 200,
    ) -> None:
        if min(stub_retention, log_retention, lease, batch) <= 0:
            raise ConfigurationError("windows, lease and batch of retention must be positive")
        self._ledgers = ledgers
        self._owner = owner
        self._stub_retention = stub_retention
        self._log_retention = log_retention
        self._lease = lease
        self._batch = batch

    def run_once(self, now: float) -> RetentionCounts:
        """Remove one batch of each: stubs, logs, results of calls; if the duty is to be had.

        Raises whatever the database raises; nothing is half done then.
        """
        if not self._ledgers.take(now, self._owner, self._lease):
            return RetentionCounts(has_duty=False)
        until = now + self._lease
        stubs = self._ledgers.remove_stubs(
            now - self._stub_retention, self._owner, until, self._batch
        )
        logs = self._ledgers.remove_logs(now - self._log_retention, self._owner, until, self._batch)
        calls = self._ledgers.remove_calls(now, self._owner, until, self._batch)
        if stubs is None or logs is None or calls is None:
            return RetentionCounts(has_duty=False)
        is_full = stubs.is_full or logs.is_full or calls.is_full
        return RetentionCounts(stubs.rows, logs.rows, calls.rows, is_full=is_full)
