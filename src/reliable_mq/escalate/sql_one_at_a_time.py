"""Gives transactions that follow one another: of one name, one is open at a time in a database.

On PostgreSQL a lock of the transaction does it, on MySQL a lock of the connection. SQLite has one
writer. The lock ends with its process, and with its connection.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from reliable_mq.database.sql_database import Database
from reliable_mq.errors import Unavailable

WAIT_SECONDS = 30
_LOCK_LENGTH = 40  # MySQL takes 64 characters


@contextmanager
def one_at_a_time(database: Database, name: str) -> Iterator[Connection]:
    """Give a transaction; another one of the same name begins when it has ended.

    Raises:
        Unavailable: MySQL: another one has not ended in time.
    """
    digest = hashlib.sha256(f"{database.prefix} {name}".encode())
    if database.dialect != "mysql":
        with database.forgiving_engine.begin() as connection:
            if database.dialect == "postgresql":
                number = int.from_bytes(digest.digest()[:7], "big")
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": number})
            yield connection
        return
    lock = {"lock": digest.hexdigest()[:_LOCK_LENGTH], "seconds": WAIT_SECONDS}
    with database.forgiving_engine.connect() as connection:
        got = connection.scalar(text("SELECT GET_LOCK(:lock, :seconds)"), lock)
        connection.commit()  # the lock is of the connection
        if got != 1:
            raise Unavailable(f"another process has not ended its turn within {WAIT_SECONDS} s")
        try:
            with connection.begin():
                yield connection
        finally:
            connection.execute(text("SELECT RELEASE_LOCK(:lock)"), {"lock": lock["lock"]})
            connection.commit()
