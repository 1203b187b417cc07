"""A file of SQLite gets a write-ahead log, also while others open it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from reliable_mq.database.sql_transactions import use_write_ahead_log


class EndsReader:
    """A cursor that ends the other connection's read when it fails the first time."""

    def __init__(self, cursor: sqlite3.Cursor, reader: sqlite3.Connection) -> None:
        self._cursor = cursor
        self._reader = reader
        self.attempts = 0

    def execute(self, statement: str) -> None:
        self.attempts += 1
        try:
            self._cursor.execute(statement)
        except sqlite3.OperationalError:
            if self._reader.in_transaction:
                self._reader.execute("COMMIT")
            raise


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "application.db"


@pytest.fixture
def reader(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that is in a read of a file without a write-ahead log."""
    with closing(sqlite3.connect(file, isolation_level=None)) as made:
        made.execute("CREATE TABLE orders (id INTEGER)")
        made.execute("BEGIN")
        made.execute("SELECT * FROM orders").fetchall()
        yield made


def test_a_file_that_is_locked_for_a_moment_gets_a_write_ahead_log(
    file: Path, reader: sqlite3.Connection
) -> None:
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as opened:
        cursor = EndsReader(opened.cursor(), reader)

        use_write_ahead_log(cursor)

        assert cursor.attempts == 2
        assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_another_failure_is_not_tried_again(file: Path, reader: sqlite3.Connection) -> None:
    opened = sqlite3.connect(file)
    cursor = EndsReader(opened.cursor(), reader)
    opened.close()

    with pytest.raises(sqlite3.ProgrammingError):
        use_write_ahead_log(cursor)

    assert cursor.attempts == 1
