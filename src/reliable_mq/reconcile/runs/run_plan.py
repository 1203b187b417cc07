"""The plan of an increment: what it reads, and the row that the next increment needs. Pure.

A run that ends writes one row (`sql_run_tables.run_table`). An increment begins with the row of the
run before it. It reads a table by the times at which rows changed. It starts a margin before the
moment up to which all changes were visible. It reads a log by exact offsets: the log's, or its
queues'.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.queue_ranges import (
    QueueEnds,
    QueueRanges,
    behind,
    by_queue,
    by_topic,
    shortened,
    unread,
)
from reliable_mq.reconcile.judgement.increments import Increment
from reliable_mq.reconcile.report.summary import LOG

FULL, INCREMENT = "full", "increment"
NO_RUN = "0" * 32
"""The id of the run before the first increment. The table has it once: one increment is first."""
MARGIN = timedelta(minutes=1)
"""The largest difference between the clocks of processes that write the times of rows."""


@dataclass(frozen=True)
class LedgerEnds:
    """The end of what was read: a moment for each database, an offset for each log.

    Attributes:
        read_to: database URL -> moment.
        log_ends: broker with a store -> log offset.
        queue_ends: broker of a running cluster -> queue -> offset.
    """

    read_to: Mapping[str, datetime]
    log_ends: Mapping[str, int]
    queue_ends: Mapping[str, QueueEnds] = field(default_factory=dict)

    @property
    def watermark(self) -> datetime:
        """The moment before which every change in every database has been read."""
        return min(self.read_to.values())

    @property
    def brokers(self) -> set[str]:
        """How each broker is read, as texts for people."""
        stores = {f"{name or '--store'}" for name in self.log_ends}
        return stores | {f"{name} of the cluster" for name in self.queue_ends}


@dataclass(frozen=True)
class LogBounds:
    """The present bounds of logs: the begins of stores' logs, and the queues of a cluster."""

    log_begins: Mapping[str, int]
    queues: Mapping[str, QueueRanges] = field(default_factory=dict)


@dataclass(frozen=True)
class PreviousIncrement:
    """The increment before this one.

    Attributes:
        run_id: its id. `NO_RUN`: there was none.
        ends: how far it read the ledgers. None: this increment reads everything.
        state: the URI of the events that it carried.
    """

    run_id: str = NO_RUN
    ends: LedgerEnds | None = None
    state: str | None = None


@dataclass(frozen=True)
class RunPlan:
    """The plan of an increment.

    Attributes:
        previous: the increment before.
        ends: how far this increment reads the ledgers.
        increment: the time range of the tables.
        log_ranges: broker with a store -> log offsets to read.
        queue_ranges: as in `BrokerLogs`.
        lost: ledger -> the part that was removed before any run read it, as a text.
    """

    previous: PreviousIncrement
    ends: LedgerEnds
    increment: Increment
    log_ranges: Mapping[str, tuple[int, int]]
    queue_ranges: Mapping[str, QueueRanges]
    lost: Mapping[str, str]


def previous_of(row: Mapping[str, Any] | None, *, anew: bool) -> PreviousIncrement:
    """Return the increment of a row of the run table.

    Args:
        row: the row of the last increment. None: there was none.
        anew: read everything again.
    """
    if row is None:
        return PreviousIncrement()
    if anew:
        return PreviousIncrement(row["run_id"])
    read_to = {
        place: datetime.fromisoformat(moment)
        for place, moment in json.loads(row["read_to"]).items()
    }
    ends = json.loads(row["log_ends"])
    logs = {name: end for name, end in ends.items() if isinstance(end, int)}
    queues = {name: by_queue(end) for name, end in ends.items() if name not in logs}
    return PreviousIncrement(row["run_id"], LedgerEnds(read_to, logs, queues), row["state"])


def since_of(previous: PreviousIncrement | None) -> datetime | None:
    """Return the moment from which the tables are read after `previous`; None: read everything."""
    if previous is None or previous.ends is None:
        return None
    return previous.ends.watermark - MARGIN


def plan_of(
    previous: PreviousIncrement,
    ends: LedgerEnds,
    bounds: LogBounds,
    mark: datetime | None,
    managed: frozenset[str],
) -> RunPlan:
    """Return the plan of an increment that continues where `previous` ended.

    Args:
        previous: the increment before.
        ends: how far the ledgers can be read now.
        bounds: the present bounds of the brokers' logs.
        mark: retention has removed rows before this moment only. None: none.
        managed: the topics for which a stub was ever written.

    Raises:
        ConfigurationError: when the ledgers are not those of the increment before.
    """
    before = previous.ends
    next_since = ends.watermark - MARGIN
    if before is None:
        whole = {name: (bounds.log_begins[name], end) for name, end in ends.log_ends.items()}
        increment = Increment(None, next_since, mark, managed)
        return RunPlan(previous, ends, increment, whole, bounds.queues, {})
    _check_same("databases", set(before.read_to), set(ends.read_to))
    _check_same("brokers", before.brokers, ends.brokers)
    ranges, lost_bytes = _log_ranges(before, ends, bounds)
    queue_ranges, lost_messages = _queue_ranges(before, bounds)
    since = before.watermark - MARGIN
    increment = Increment(since, max(next_since, since), mark, managed)
    lost = lost_bytes | lost_messages
    return RunPlan(previous, ends, increment, ranges, queue_ranges, lost)


def _log_ranges(
    before: LedgerEnds, ends: LedgerEnds, bounds: LogBounds
) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Return the ranges to read from the logs of stores, and the parts that are lost."""
    ranges, lost = {}, {}
    for name, end in ends.log_ends.items():
        begin, first = before.log_ends[name], bounds.log_begins[name]
        if end < begin:
            raise ConfigurationError(
                f"the log of {name or '--store'} ends at {end}, but the last increment read it up"
                f" to {begin}: it is another store, or an old copy. {_ANEW}"
            )
        if begin < first:
            which = f"log of broker {name}" if name else LOG
            lost[which] = f"bytes {begin} to {first} were removed before they were read"
        ranges[name] = (max(begin, first), end)
    return ranges, lost


def _queue_ranges(
    before: LedgerEnds, bounds: LogBounds
) -> tuple[dict[str, QueueRanges], dict[str, str]]:
    """Return the ranges to read from the queues of a cluster, and the parts that are lost."""
    ranges: dict[str, QueueRanges] = {}
    lost = {}
    for name, queues in bounds.queues.items():
        read = before.queue_ends[name]
        queue = shortened(queues, read)
        if queue is not None:
            raise ConfigurationError(
                f"queue {queue[1]} of {queue[0]} in the broker {name} ends at {queues[queue][1]},"
                f" but the last increment read it up to {read[queue]}: it is another broker, or the"
                f" topic was deleted and created again. {_ANEW}"
            )
        ranges[name] = behind(queues, read)
        gone = [
            f"{high - low} of queue {number} of {topic}"
            for (topic, number), low, high in unread(queues, read)
        ]
        if gone:
            told = ", ".join(gone)
            lost[f"log of broker {name}"] = f"messages were removed before they were read: {told}"
    return ranges, lost


_ANEW = "--increment --full reads everything, and later increments continue from there"


def _check_same(what: str, before: set[str], now: set[str]) -> None:
    if before != now:
        then, here = (", ".join(sorted(names)) for names in (before, now))
        raise ConfigurationError(
            f"the last increment read the {what} {then}; now it is {here}. {_ANEW}"
        )


def row_of(plan: RunPlan, carried: int) -> dict[str, Any]:
    """Return the columns of the run's row that the next increment needs to continue."""
    read_to = {place: moment.isoformat() for place, moment in plan.ends.read_to.items()}
    queues = {name: by_topic(each) for name, each in plan.ends.queue_ends.items()}
    return {
        "kind": INCREMENT,
        "previous_run_id": plan.previous.run_id,
        "read_to": json.dumps(read_to),
        "log_ends": json.dumps(dict(plan.ends.log_ends) | queues),
        "watermark": plan.ends.watermark,
        "carried": carried,
    }


def increment_summary(plan: RunPlan, carried: int) -> dict[str, Any]:
    """Return the field of the summary about an increment."""
    since = plan.increment.since
    return {
        "previous_run_id": plan.previous.run_id if plan.previous.run_id != NO_RUN else None,
        "changed_since": since.isoformat() if since is not None else None,
        "watermark": plan.ends.watermark.isoformat(),
        "carried": carried,
    }
