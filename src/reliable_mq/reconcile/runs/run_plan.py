"""Which run follows which: what an increment reads, and what it leaves for the next one. Pure.

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
"""Stands for the run before the first increment: two first ones cannot both be."""
MARGIN = timedelta(minutes=1)
"""How far the clocks may differ of processes that write the times of rows."""


@dataclass(frozen=True)
class LedgerEnds:
    """How far ledgers were read: each database up to a moment, each log up to an offset.

    `queue_ends`: the same of the brokers of a running cluster, whose queues are read.
    """

    read_to: Mapping[str, datetime]
    log_ends: Mapping[str, int]
    queue_ends: Mapping[str, QueueEnds] = field(default_factory=dict)

    @property
    def watermark(self) -> datetime:
        """What changed before it has been read in every database."""
        return min(self.read_to.values())

    @property
    def brokers(self) -> set[str]:
        """Return how each broker is read, for people."""
        stores = {f"{name or '--store'}" for name in self.log_ends}
        return stores | {f"{name} of the cluster" for name in self.queue_ends}


@dataclass(frozen=True)
class LogBounds:
    """What logs hold now: where those of stores begin, and the queues of a cluster's brokers."""

    log_begins: Mapping[str, int]
    queues: Mapping[str, QueueRanges] = field(default_factory=dict)


@dataclass(frozen=True)
class PreviousIncrement:
    """The increment before this one. `state` is the URI of what it carried, `managed` its topics.

    `ends` is None where the increments begin anew: then only its place in the row counts.
    """

    run_id: str = NO_RUN
    ends: LedgerEnds | None = None
    state: str | None = None


@dataclass(frozen=True)
class RunPlan:
    """What an increment reads, and the row that it ends with.

    `lost`: what nobody has read of a ledger, nor ever will. `queue_ranges`: as of `BrokerLogs`.
    """

    previous: PreviousIncrement
    ends: LedgerEnds
    increment: Increment
    log_ranges: Mapping[str, tuple[int, int]]
    queue_ranges: Mapping[str, QueueRanges]
    lost: Mapping[str, str]


def previous_of(row: Mapping[str, Any] | None, *, anew: bool) -> PreviousIncrement:
    """Return the increment that a row of the run table tells of; None: there was none.

    Args:
        row: of the last increment.
        anew: everything is to be read again, whatever it has read.
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
    """Return from when the tables are read behind an increment; None: from the beginning."""
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
    """Return what an increment reads that goes on where `previous` ended.

    Args:
        previous: the increment before it.
        ends: how far the ledgers can be read now.
        bounds: what the brokers' logs hold now.
        mark: what retention has removed lies before it.
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
    """Return what is read of the logs of stores, and what of them nobody has read."""
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
            lost[which] = f"bytes {begin} to {first} went before they were read"
        ranges[name] = (max(begin, first), end)
    return ranges, lost


def _queue_ranges(
    before: LedgerEnds, bounds: LogBounds
) -> tuple[dict[str, QueueRanges], dict[str, str]]:
    """Return what is read of the queues of a cluster's brokers, and what nobody has read."""
    ranges: dict[str, QueueRanges] = {}
    lost = {}
    for name, queues in bounds.queues.items():
        read = before.queue_ends[name]
        queue = shortened(queues, read)
        if queue is not None:
            raise ConfigurationError(
                f"queue {queue[1]} of {queue[0]} in the broker {name} ends at {queues[queue][1]},"
                f" but the last increment read it up to {read[queue]}: it is another broker, or the"
                f" topic was made anew. {_ANEW}"
            )
        ranges[name] = behind(queues, read)
        gone = [
            f"{high - low} of queue {number} of {topic}"
            for (topic, number), low, high in unread(queues, read)
        ]
        if gone:
            told = ", ".join(gone)
            lost[f"log of broker {name}"] = f"messages went before they were read: {told}"
    return ranges, lost


_ANEW = "--increment --full reads everything, and the increments go on from there"


def _check_same(what: str, before: set[str], now: set[str]) -> None:
    if before != now:
        then, here = (", ".join(sorted(names)) for names in (before, now))
        raise ConfigurationError(
            f"the last increment read the {what} {then}; now it is {here}. {_ANEW}"
        )


def row_of(plan: RunPlan, carried: int) -> dict[str, Any]:
    """Return the columns of the run's row that tell the next increment where to go on."""
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


def told_of(plan: RunPlan, carried: int) -> dict[str, Any]:
    """Return what the summary says of an increment."""
    since = plan.increment.since
    return {
        "previous_run_id": plan.previous.run_id if plan.previous.run_id != NO_RUN else None,
        "changed_since": since.isoformat() if since is not None else None,
        "watermark": plan.ends.watermark.isoformat(),
        "carried": carried,
    }
