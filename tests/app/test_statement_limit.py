"""A statement of a page that takes too long is ended; the application's next one has no limit."""

from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import is_statement_ended, known_fault
from reliable_mq.database.sql_statement_limit import limit_statements, limited_query

COUNTING = (
    "SELECT count(*) FROM (WITH RECURSIVE n (i) AS"
    " (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most}) SELECT i FROM n) AS counted"
)
ENDLESS, SHORT = COUNTING.format(most=10**12), COUNTING.format(most=900)
SOME_SECONDS = 0.2


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, prefix="rmq_", connections=1)
    if made.dialect == "mysql":
        with made.engine.begin() as connection:  # MariaDB and MySQL stop such queries early
            name = "max_recursive_iterations"
            is_mariadb = bool(getattr(made.engine.dialect, "is_mariadb", False))
            setting = name if is_mariadb else "cte_max_recursion_depth"
            connection.execute(text(f"SET GLOBAL {setting} = 4294967295"))
        made.engine.dispose()
    yield made
    made.close()


def counted(database: Database, query: str, seconds: float) -> int:
    """Return what a query counts in a transaction with a limit."""
    with database.engine.begin() as connection:
        limit_statements(connection, seconds)
        return int(connection.execute(text(query)).scalar_one())


def test_a_statement_that_takes_too_long_is_ended(database: Database) -> None:
    for _ in range(2):  # the second time on the same connection
        with pytest.raises(DBAPIError) as told:
            counted(database, ENDLESS, SOME_SECONDS)
        assert is_statement_ended(told.value)
        assert "took too long and was ended" in str(known_fault(told.value))


def test_the_limit_ends_with_its_transaction(database: Database) -> None:
    with database.engine.begin() as connection:
        limit_statements(connection, 0.0 if database.dialect == "sqlite" else SOME_SECONDS)
    with database.engine.connect() as connection:
        assert connection.scalar(text(COUNTING.format(most=200_000))) == 200_000


def test_each_statement_has_the_whole_time(database: Database) -> None:
    with database.engine.begin() as connection:
        limit_statements(connection, 60.0)
        for _ in range(3):
            assert connection.scalar(text(SHORT)) == 900


def test_only_queries_of_mysql_get_the_limit_in_their_text() -> None:
    query = "SELECT a FROM t"
    assert limited_query(query, 5.0, is_mariadb=False) == (
        "SELECT /*+ MAX_EXECUTION_TIME(5000) */ a FROM t"
    )
    assert limited_query(query, 0.5, is_mariadb=True) == (
        "SET STATEMENT max_statement_time=0.5 FOR SELECT a FROM t"
    )
    assert limited_query("UPDATE t SET a = 1", 5.0, is_mariadb=True) == "UPDATE t SET a = 1"
