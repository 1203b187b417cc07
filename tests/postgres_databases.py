"""Databases of a PostgreSQL server for one test each, emptied and used again.

To make one and drop it takes longer than most tests, and who comes first to a new one waits for
its catalogs to be read. `tests.parked_tables` keeps our tables in it for the next test of a module.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from tests.parked_tables import FORGET, PARK

from reliable_mq.testing.local_servers import LocalPostgres

USES_MAX = 50
"""So often one is used: what is dropped in it fills its catalogs."""

_numbers = itertools.count(1)
# With the module that used one last, and how often it was used.
_kept: defaultdict[LocalPostgres, list[tuple[str, str, int]]] = defaultdict(list)

# A session that was left behind ends, and a thread that was finds no database of the name it knows.
_TAKE_AWAY = """
ALTER DATABASE {name} ALLOW_CONNECTIONS false;
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}';
ALTER DATABASE {name} RENAME TO {kept};
ALTER DATABASE {kept} ALLOW_CONNECTIONS true;
ALTER DATABASE {kept} RESET ALL
"""
# The schema as a new database has it. A lock is held by nobody but who has prepared a commit.
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


@contextmanager
def new_database(server: LocalPostgres, module: str = "") -> Iterator[str]:
    """Give the SQLAlchemy URL of an empty database, under a name that nobody has used."""
    name = f"test_{next(_numbers)}"
    kept, last_module, uses = _kept[server].pop() if _kept[server] else ("", "", 0)
    _run(
        server.url, f"ALTER DATABASE {kept} RENAME TO {name}" if kept else f"CREATE DATABASE {name}"
    )
    if kept and module != last_module:
        _run(server.url_of(name), FORGET)
    yield server.url_of(name)
    if uses + 1 == USES_MAX:
        _run(server.url, f"DROP DATABASE {name} WITH (FORCE)")
        return
    kept = f"kept_{name}"
    _run(server.url, *_TAKE_AWAY.format(name=name, kept=kept).split(";"))
    _run(server.url_of(kept), _EMPTY)
    _kept[server].append((kept, module, uses + 1))


def _run(url: str, *statements: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
