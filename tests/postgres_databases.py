"""Databases of a PostgreSQL server for one test each, emptied and used again.

To make one and drop it takes longer than most tests, and who comes first to a new one waits for
its catalogs to be read. `tests.parked_tables` keeps our tables in it for the next test of a module.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from tests.parked_tables import FORGET, PARK

from reliable_mq.testing.local_servers import LocalPostgres

USES_MAX = 50
"""So often one is used: what is dropped in it fills its catalogs."""

_numbers = itertools.count(1)
_kept: defaultdict[LocalPostgres, list["Kept"]] = defaultdict(list)
_sessions: dict[LocalPostgres, psycopg.Connection] = {}
# In two parts: who connects meanwhile is seen by the second one.
_TAKE_AWAY = (
    "ALTER DATABASE {name} ALLOW_CONNECTIONS false",
    """
    SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}';
    ALTER DATABASE {name} RENAME TO {other};
    ALTER DATABASE {other} ALLOW_CONNECTIONS true;
    ALTER DATABASE {other} RESET ALL
    """,
)
"""A session that was left behind ends, and a thread that was finds no database of its name."""
_EMPTY = rf"""
SET lock_timeout = '10s';
{PARK};
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname NOT LIKE 'pg\_%' AND nspname NOT IN ('information_schema', 'parked')
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
END $$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC
"""
"""The schema as a new database has it. A lock is held by nobody but who has prepared a commit."""


class Kept(NamedTuple):
    """An empty database, which module used it last, and how often it was used."""

    name: str
    module: str
    uses: int


@contextmanager
def new_database(server: LocalPostgres, module: str = "") -> Iterator[str]:
    """Give the SQLAlchemy URL of an empty database, under a name that nobody has used."""
    if _kept[server]:
        name, last_module, uses = _kept[server].pop()
    else:
        name, last_module, uses = f"test_{next(_numbers)}", module, 0
        _as_admin(server, f"CREATE DATABASE {name}")
    if module != last_module:
        _within(server.url_of(name), FORGET)
    yield server.url_of(name)
    if uses + 1 == USES_MAX:
        _as_admin(server, f"DROP DATABASE {name} WITH (FORCE)")
        return
    other = f"test_{next(_numbers)}"
    _as_admin(server, *(part.format(name=name, other=other) for part in _TAKE_AWAY))
    _within(server.url_of(other), _EMPTY)
    _kept[server].append(Kept(other, module, uses + 1))


def _within(url: str, statements: str) -> None:
    with _connection(url) as connection:
        connection.execute(statements.encode())


def _as_admin(server: LocalPostgres, *parts: str) -> None:
    """Do each part as a transaction, in a session that stays: a test may have ended it."""
    session = _sessions.get(server)
    if session is not None:
        try:
            session.execute("SELECT 1")
        except psycopg.OperationalError:
            session.close()
            session = None
    if session is None:
        session = _sessions[server] = _connection(server.url)
    for part in parts:
        session.execute(part.encode())


def _connection(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
