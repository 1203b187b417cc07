"""Write a finished run and its findings to reconciliation's tables, in one transaction."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection, MetaData, Table, exists, insert, inspect, select, update
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.sql_people_tables import audit_table
from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.database.sql_scheduling_tables import ROWS_DUTY, retention_table
from reliable_mq.database.sql_types import set_table_options
from reliable_mq.errors import ReliableMQError
from reliable_mq.reconcile.databases.sql_ledger import open_engine
from reliable_mq.reconcile.runs.run_plan import INCREMENT

ACTOR = "reconcile"
_BATCH = 1_000
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def write_outcome(
    url: str,
    prefix: str,
    run: Mapping[str, Any],
    findings: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
    now: datetime,
) -> None:
    """Insert the run's row, and one row for each finding. `findings` are (finding, its evidence).

    Raises:
        Overtaken: another run has already continued the same previous run.
    """
    metadata = set_table_options(MetaData())
    runs, rows = run_table(metadata, prefix), finding_table(metadata, prefix)
    engine = open_engine(url)
    metadata.create_all(engine)
    with engine.begin() as connection:
        try:
            connection.execute(insert(runs), dict(run))
        except IntegrityError as error:
            raise Overtaken(
                "another increment has ended since this one began, and read the same changes:"
                " nothing of this one is kept; run it again"
            ) from error
        first = run["run_id"] if run.get("previous_run_id") else None
        rest = iter(findings)
        while batch := list(islice(rest, _BATCH)):
            seen = _first_runs(connection, rows, run, [finding for finding, _ in batch])
            connection.execute(
                insert(rows),
                [
                    {
                        "run_id": run["run_id"],
                        "message_id": finding["message_id"],
                        "consumer_group": finding["consumer_group"],
                        "topic": finding["topic"],
                        "verdict": finding["verdict"],
                        "evidence": json.dumps(evidence),
                        "create_date": now,
                        "first_run_id": seen.get(_key(finding), first),
                    }
                    for finding, evidence in batch
                ],
            )
    engine.dispose()


_Key = tuple[str, str, str]


def _key(finding: Mapping[str, Any]) -> _Key:
    return finding["message_id"], finding["consumer_group"], finding["verdict"]


def _first_runs(
    connection: Connection,
    rows: Table,
    run: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
) -> dict[_Key, str]:
    """Return, for findings that are not new, the run that found them first."""
    previous = run.get("previous_run_id")
    if previous is None:
        return {}
    row = rows.c
    ids = {finding["message_id"] for finding in findings}
    query = select(row.message_id, row.consumer_group, row.verdict, row.first_run_id)
    query = query.where(row.run_id == previous, row.message_id.in_(ids))
    return {
        (message, group, verdict): first
        for message, group, verdict, first in connection.execute(query)
        if first is not None
    }


class Overtaken(ReliableMQError):
    """Another increment has continued the same run and ended first, so this one is discarded."""


def last_increment(url: str, prefix: str) -> dict[str, Any] | None:
    """Return the row of the last increment: the one that no other follows. None: there is none."""
    runs = run_table(MetaData(), prefix)
    later = runs.alias()
    is_last = ~exists().where(later.c.previous_run_id == runs.c.run_id)
    query = select(runs).where(runs.c.kind == INCREMENT, is_last)
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(runs.name):
                return None
            row = connection.execute(query).mappings().first()
            return dict(row) if row is not None else None
    finally:
        engine.dispose()


def remembered_topics(url: str, prefix: str) -> frozenset[str]:
    """Return the topics that the newest run took as managed; empty if there was no run."""
    runs = run_table(MetaData(), prefix)
    newest = select(runs.c.managed).where(runs.c.managed.is_not(None))
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(runs.name):
                return frozenset()
            text = connection.scalar(newest.order_by(runs.c.finish_date.desc()).limit(1))
            return frozenset(json.loads(text or "[]"))
    finally:
        engine.dispose()


def allow_retention(urls: Iterable[str], prefix: str, seen: datetime) -> None:
    """Let retention remove only rows that changed before `seen`, in all databases.

    It is done after the run's row. If the process dies in between, retention only waits longer.
    """
    for url in urls:
        duties = retention_table(MetaData(), prefix)
        engine = open_engine(url)
        duties.create(engine, checkfirst=True)
        with suppress(IntegrityError), engine.begin() as connection:
            marks = dict.fromkeys(("stubs_removed_until", "logs_removed_until"), _BEGINNING)
            connection.execute(insert(duties), {"duty": ROWS_DUTY, **marks})
        with engine.begin() as connection:
            chosen = update(duties).where(duties.c.duty == ROWS_DUTY)
            connection.execute(chosen.values(reconciled_until=seen))
        engine.dispose()


def forget(urls: Iterable[str], prefix: str, now: datetime) -> int:
    """Let retention work without reconciliation again; return in how many databases it waited.

    The audit is written in the same transaction.
    """
    freed = 0
    for url in urls:
        metadata = set_table_options(MetaData())
        duties, audit = retention_table(metadata, prefix), audit_table(metadata, prefix)
        engine = open_engine(url)
        metadata.create_all(engine)
        with engine.begin() as connection:
            waits = duties.c.reconciled_until.is_not(None)
            seen = connection.scalar(select(duties.c.reconciled_until).where(waits))
            if seen is not None:
                connection.execute(update(duties).where(waits).values(reconciled_until=None))
                act = {"create_date": now, "actor": ACTOR, "action": "forget", "message_id": ""}
                detail = json.dumps({"reconciled_until": seen.isoformat()})
                connection.execute(insert(audit), {**act, "changed": 1, "detail": detail})
                freed += 1
        engine.dispose()
    return freed


def recorded_runs(url: str, prefix: str, run_ids: Collection[str]) -> set[str]:
    """Return those of `run_ids` that have a row: these runs are complete."""
    runs = run_table(MetaData(), prefix)
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(runs.name):
                return set()
            return set(connection.scalars(select(runs.c.run_id).where(runs.c.run_id.in_(run_ids))))
    finally:
        engine.dispose()
