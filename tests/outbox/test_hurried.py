"""Who answers a broker waits one second for another transaction, and not as long as usual."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import is_database_busy
from reliable_mq.outbox.sql_half import SqlHalves
from reliable_mq.outbox.sql_stubs import SqlStubs


def test_a_file_of_sqlite_is_waited_for_for_a_second_and_then_as_before(tmp_path: Path) -> None:
    """The wait is set for the one transaction, also when it fails."""
    database = Database(f"sqlite:///{tmp_path}/shop.db", prefix="rmq_", connections=1)
    database.create_tables()
    halves = SqlHalves(SqlStubs(database.engine, database.stubs))
    said: list[str] = []
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        (usual,) = driver.execute("PRAGMA busy_timeout").fetchone()
        driver.set_trace_callback(said.append)
    assert halves.entomb("M" * 32, "orders", 100.0)
    assert not halves.entomb("M" * 32, "orders", 100.0)
    assert not halves.claim("M" * 32, "me", 100.0, 5.0)
    waits = [text for text in said if text.startswith("PRAGMA busy_timeout =")]
    assert waits == ["PRAGMA busy_timeout = 1000", f"PRAGMA busy_timeout = {usual}"] * 3
    assert usual > 1000
    database.close()


@contextmanager
def holding(file: Path) -> Iterator[None]:
    """Hold the lock of a file of SQLite, as another process does."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


def test_a_transaction_that_is_open_is_told_as_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_mq.outbox.sql_half._SQLITE_HURRY_MS", 1)
    database = Database(f"sqlite:///{tmp_path}/shop.db", prefix="rmq_", connections=2)
    database.create_tables()
    halves = SqlHalves(SqlStubs(database.engine, database.stubs))
    with holding(tmp_path / "shop.db"):
        with pytest.raises(OperationalError) as error:
            halves.entomb("M" * 32, "orders", 100.0)
        assert is_database_busy(error.value)
        with pytest.raises(OperationalError):
            halves.claim("M" * 32, "me", 100.0, 5.0)
    assert halves.entomb("M" * 32, "orders", 100.0)
    database.close()
