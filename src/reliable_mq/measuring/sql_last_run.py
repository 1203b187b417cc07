"""Reads the newest run of reconciliation from the tables of one database."""

import json
from datetime import datetime

import msgspec
from sqlalchemy import inspect, select

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_run_tables import known_tables


class LastRun(msgspec.Struct, frozen=True):
    """A finished run: its id, its end, and how many findings of each verdict it has.

    It judged messages between `since` and `until` as they were at `as_of`; None: no bound.
    """

    run_id: str
    finished: datetime
    as_of: datetime
    since: datetime | None
    until: datetime | None
    findings: int
    is_clean: bool
    verdicts: dict[str, int]


def last_run(database: Database) -> LastRun | None:
    """Return the run that ended last; None: there was none."""
    runs = known_tables(database.prefix)[0]
    column = runs.c
    wanted = select(
        *(column.run_id, column.finish_date, column.as_of, column.since, column.until),
        *(column.findings, column.is_clean, column.verdicts),
    ).order_by(column.finish_date.desc())
    with database.reading_engine.connect() as connection:
        if not inspect(connection).has_table(runs.name):
            return None
        row = connection.execute(wanted.limit(1)).one_or_none()
    if row is None:
        return None
    return LastRun(
        *(row.run_id, row.finish_date, row.as_of, row.since, row.until),
        *(row.findings, row.is_clean, json.loads(row.verdicts or "{}")),
    )
