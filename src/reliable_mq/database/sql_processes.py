"""Processes report once a minute that they are alive, so that the doctor can compare them.

Table `<prefix>process`: one row per process that relays, consumes or resends. No decision depends
on these rows. A process that cannot write its row continues without it.
"""

import json
import logging
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Double,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    insert,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.database.sql_types import LongText, UtcDateTime, utc_datetime
from reliable_mq.database.thread_handling_times import HandlingTimes
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

KEPT_SECONDS = 86_400.0
"""Seconds after which a silent process is forgotten."""
_HOST_LENGTH_MAX = 255


def process_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>process`: the processes that used these tables within a day.

    `clock_ahead`: seconds that the process's clock was ahead of the database's. `handling`: a JSON
    object, the longest handling by consumer group within the last minute, in seconds.
    """
    return Table(
        f"{prefix}process",
        metadata,
        Column("owner", String(64), primary_key=True),
        Column("application", String(127), nullable=False),
        Column("host", String(_HOST_LENGTH_MAX), nullable=False),
        Column("pid", Integer, nullable=False),
        Column("package_version", String(32), nullable=False),
        Column("clock_ahead", Double, nullable=False),
        Column("handling", LongText, nullable=False),
        Column("start_date", UtcDateTime, nullable=False),
        Column("seen_date", UtcDateTime, nullable=False),
    )


class SqlProcesses:
    """Writes the row of this process.

    Args:
        engine: the database.
        table: see `process_table`.
        application: the application's name.
        owner: returns the process's name as lease owner; it changes after a fork.
        times: how long its handlers took.
    """

    def __init__(
        self,
        engine: Engine,
        table: Table,
        application: str,
        owner: Callable[[], str],
        times: HandlingTimes,
    ) -> None:
        self._engine = engine
        self._application = application
        self._owner = owner
        self._times = times
        row = table.c
        self._insert = insert(table)
        self._update = (
            update(table)
            .where(row.owner == bindparam("me"))
            .values({name: bindparam(f"new_{name}") for name in _CHANGING})
        )
        self._forget = delete(table).where(row.seen_date < bindparam("before"))

    def record_alive(self, clock_ahead: float, now: float) -> None:
        """Write that this process is alive at `now` by the database's clock; never raises."""
        changing = {
            "clock_ahead": clock_ahead,
            "handling": json.dumps(self._times.take_longest()),
            "seen_date": utc_datetime(now),
        }
        try:
            with self._engine.begin() as connection:
                self._write(connection, changing, now)
        except SQLAlchemyError as error:
            application_events.PROCESS_NOT_NOTED.log(log, error=error)

    def _write(self, connection: Connection, changing: dict[str, Any], now: float) -> None:
        me = self._owner()
        values = {f"new_{name}": value for name, value in changing.items()}
        if connection.execute(self._update, {"me": me, **values}).rowcount == 1:
            return
        fixed = {
            "owner": me,
            "application": self._application,
            "host": platform.node()[:_HOST_LENGTH_MAX],
            "pid": os.getpid(),
            "package_version": _package_version(),
            "start_date": utc_datetime(now),
        }
        connection.execute(self._insert, fixed | changing)
        connection.execute(self._forget, {"before": utc_datetime(now - KEPT_SECONDS)})


_CHANGING = ("clock_ahead", "handling", "seen_date")


def _package_version() -> str:
    try:
        return version("reliable-mq")
    except PackageNotFoundError:  # run from a source tree
        return ""
