"""Reads which processes report to one database, and its clock beside this machine's."""

import time
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from sqlalchemy import select

from reliable_mq.database.sql_clock import measure
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.measuring.sql_throughput import STATEMENT_SECONDS

PROCESSES_MAX = 1_000
SILENT_SECONDS = 180.0
"""A process reports once a minute. One that is silent for this time has ended or hangs."""


class SeenProcess(NamedTuple):
    """A process that has relayed, consumed or resent within a day.

    `clock_ahead`: seconds that its clock was ahead of the database's. `slowest`: the longest
    handling of each consumer group in its last minute, in seconds. `silent`: seconds since its last
    report.
    """

    owner: str
    application: str
    host: str
    pid: int
    version: str
    clock_ahead: float
    slowest: dict[str, float]
    started: datetime
    seen: datetime
    silent: float

    @property
    def is_silent(self) -> bool:
        """Whether it has not reported for some minutes."""
        return self.silent > SILENT_SECONDS


class Machines(NamedTuple):
    """The processes of a database, the newest report first, and its clock.

    `clock_ahead`: seconds that it is ahead of this machine's. `clock_error`: the possible error.
    """

    processes: list[SeenProcess]
    clock_ahead: float
    clock_error: float


def machines_of(database: Database) -> Machines:
    """Return the processes of a database, and its clock."""
    row = database.processes.c
    wanted = select(database.processes).order_by(row.seen_date.desc()).limit(PROCESSES_MAX)
    with database.forgiving_engine.begin() as connection:
        limit_statements(connection, STATEMENT_SECONDS)
        ahead, error = measure(connection, time.time)
        rows = connection.execute(wanted).all()
    now = datetime.fromtimestamp(time.time() + ahead, UTC)
    found = [
        SeenProcess(
            *(each.owner, each.application, each.host, each.pid, each.package_version),
            *(each.clock_ahead, _slowest(each.handling), each.start_date, each.seen_date),
            max(0.0, (now - each.seen_date).total_seconds()),
        )
        for each in rows
    ]
    return Machines(found, ahead, error)


def _slowest(handling: str) -> dict[str, float]:
    try:
        return msgspec.json.decode(handling or "{}", type=dict[str, float])
    except msgspec.MsgspecError:
        return {}
