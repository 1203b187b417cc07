"""Which run follows which: what an increment reads, and what it leaves for the next one. Pure.

The end of a run is one row (`sql_tables.run_table`); an increment begins with the row of the one
before it. Tables are read by when rows changed, a margin before the moment up to which all changes
were visible; a log by its offsets, which is exact.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.judgement.increments import Increment
from reliable_mq.reconcile.report.summary import LOG

FULL, INCREMENT = "full", "increment"
NO_RUN = "0" * 32
"""Stands for the run before the first increment: two first ones cannot both be."""
MARGIN = timedelta(minutes=1)
"""How far the clocks may differ of processes that write the times of rows."""


@dataclass(frozen=True)
class Ends:
    """How far ledgers were read: each database up to a moment, each log up to an offset."""

    read_to: Mapping[str, datetime]
    log_ends: Mapping[str, int]

    @property
    def watermark(self) -> datetime:
        """What changed before it has been read in every database."""
        return min(self.read_to.values())


@dataclass(frozen=True)
class Previous:
    """The increment before this one. `state` is the URI of what it carried, `managed` its topics.

    `ends` is None where the increments begin anew: then only its place in the row counts.
    """

    run_id: str = NO_RUN
    ends: Ends | None = None
    state: str | None = None


@dataclass(frozen=True)
class Plan:
    """What an increment reads, and the row that it ends with.

    `lost`: what nobody has read of a ledger, nor ever will.
    """

    previous: Previous
    ends: Ends
    increment: Increment
    log_ranges: Mapping[str, tuple[int, int]]
    lost: Mapping[str, str]


def previous_of(row: Mapping[str, Any] | None, *, anew: bool) -> Previous:
    """Return the increment that a row of the run table tells of; None: there was none.

    Args:
        row: of the last increment.
        anew: everything is to be read again, whatever it has read.
    """
    if row is None:
        return Previous()
    if anew:
        return Previous(row["run_id"])
    read_to = {
        place: datetime.fromisoformat(moment)
        for place, moment in json.loads(row["read_to"]).items()
    }
    return Previous(row["run_id"], Ends(read_to, json.loads(row["log_ends"])), row["state"])


def since_of(previous: Previous | None) -> datetime | None:
    """Return from when the tables are read behind an increment; None: from the beginning."""
    if previous is None or previous.ends is None:
        return None
    return previous.ends.watermark - MARGIN


def plan_of(
    previous: Previous,
    ends: Ends,
    log_begins: Mapping[str, int],
    mark: datetime | None,
    managed: frozenset[str],
) -> Plan:
    """Return what an increment reads that goes on where `previous` ended.

    Args:
        previous: the increment before it.
        ends: how far the ledgers can be read now.
        log_begins: where each broker's log begins.
        mark: what retention has removed lies before it.
        managed: the topics for which a stub was ever written.

    Raises:
        ConfigurationError: when the ledgers are not those of the increment before.
    """
    before = previous.ends
    next_since = ends.watermark - MARGIN
    if before is None:
        whole = {name: (log_begins[name], end) for name, end in ends.log_ends.items()}
        return Plan(previous, ends, Increment(None, next_since, mark, managed), whole, {})
    _check_same("databases", before.read_to, ends.read_to)
    _check_same("brokers", before.log_ends, ends.log_ends)
    ranges, lost = {}, {}
    for name, end in ends.log_ends.items():
        begin = before.log_ends[name]
        if end < begin:
            raise ConfigurationError(
                f"the log of {_named(name)} ends at {end}, but the last increment read it up to"
                f" {begin}: it is another store, or an old copy. {_ANEW}"
            )
        if begin < log_begins[name]:
            which = f"log of broker {name}" if name else LOG
            lost[which] = f"bytes {begin} to {log_begins[name]} went before they were read"
        ranges[name] = (max(begin, log_begins[name]), end)
    since = before.watermark - MARGIN
    increment = Increment(since, max(next_since, since), mark, managed)
    return Plan(previous, ends, increment, ranges, lost)


_ANEW = "--increment --full reads everything, and the increments go on from there"


def _check_same(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if before.keys() != now.keys():
        names = (", ".join(map(_named, sorted(names))) for names in (before.keys(), now.keys()))
        then, here = names
        raise ConfigurationError(
            f"the last increment read the {what} {then}; now it is {here}. {_ANEW}"
        )


def _named(broker: str) -> str:
    return broker or "--store"


def row_of(plan: Plan, carried: int) -> dict[str, Any]:
    """Return the columns of the run's row that tell the next increment where to go on."""
    read_to = {place: moment.isoformat() for place, moment in plan.ends.read_to.items()}
    return {
        "kind": INCREMENT,
        "previous_run_id": plan.previous.run_id,
        "read_to": json.dumps(read_to),
        "log_ends": json.dumps(dict(plan.ends.log_ends)),
        "watermark": plan.ends.watermark,
        "carried": carried,
        "whole": json.dumps(dict(plan.lost)),
    }


def told_of(plan: Plan, carried: int) -> dict[str, Any]:
    """Return what the summary says of an increment."""
    since = plan.increment.since
    return {
        "previous_run_id": plan.previous.run_id if plan.previous.run_id != NO_RUN else None,
        "changed_since": since.isoformat() if since is not None else None,
        "watermark": plan.ends.watermark.isoformat(),
        "carried": carried,
    }
