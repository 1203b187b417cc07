"""Empties our ledgers for the next test, in databases that are for tests only.

A world must not deliver what another test has left. It must not destroy a developer's rows either.
So it empties a database if its name says that it is for tests, or if it was empty when the first
world of this process began. In any other one, stubs that wait are refused.
"""

import re
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from sqlalchemy import URL, Connection, Select, Table, func, literal, select

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import UsageError

_NAMED = re.compile(r"(?:^|[^a-z])tests?(?:[^a-z]|$)")
_found_empty: set[tuple[str, str]] = set()  # the places of this process, by URL and table prefix


def begin_empty(database: Database, *, empties: bool | None) -> None:
    """Empty the ledgers of a database before a world begins.

    Args:
        database: the database; its tables are there.
        empties: True: in any case; False: never; None: if the database is for tests only.

    Raises:
        UsageError: stubs wait in a database that may be a developer's.
    """
    if empties is False:
        return
    place = (database.url.render_as_string(hide_password=False), database.prefix)
    with database.engine.begin() as connection:
        if empties or place in _found_empty or is_for_tests(database.url):
            empty(connection, database)
            return
        if not any(map(connection.scalar, map(_has_rows, ledgers(database)))):
            _found_empty.add(place)
            return
        stub = database.stubs.c
        is_waiting = (stub.status == StubStatus.UNCONFIRMED.value) & stub.given_up.is_(False)
        waiting = connection.scalar(select(func.count()).where(is_waiting))
    if waiting:
        raise UsageError(
            f"{waiting} message(s) wait in the database {database.url.render_as_string()}, and a "
            "world would deliver them: give tests a database whose name has the word test "
            "(shop_test), or write MessageWorld(mq, empties=True), which deletes all rows of ours "
            "there, or empties=False, which keeps and delivers them"
        )


def empty(connection: Connection, database: Database) -> None:
    """Delete all rows of our ledgers. Who uses the database, and since when, is kept."""
    for table in ledgers(database):
        connection.execute(table.delete())


def ledgers(database: Database) -> list[Table]:
    """Return the tables that a test must find empty."""
    return [
        database.stubs,
        database.logs,
        database.confirmations,
        database.keys,
        database.calls,
        database.resend_topics,
        database.alerts,
        database.escalations,
        database.audit,
        database.periodic,
        database.periodic_ticks,
    ]


def is_for_tests(url: URL) -> bool:
    """Return whether a URL says that its database is for tests: by its name, or as a file in /tmp.

    `test_shop`, `shop_test` and `tests` are such names, `latest` is none.
    """
    name = url.database or ""
    if url.get_backend_name() == "sqlite":
        if name in ("", ":memory:") or Path(gettempdir()).resolve() in Path(name).resolve().parents:
            return True
        name = Path(name).stem
    return _NAMED.search(name.lower()) is not None


def _has_rows(table: Table) -> Select[Any]:
    return select(literal(1)).select_from(table).limit(1)
