"""The statements of check-backs on the table of stubs, one statement each.

Only the database can say whether a row exists, and only after the id is taken: by the stub or by a
tombstone. An insert waits for another open transaction that has inserted the same id. It waits one
second; if it times out, nothing is decided yet.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, insert, not_, or_, select, text, update
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_stub_table import waiting_rows
from reliable_mq.database.sql_types import READS_ONLY, dialect_family, utc_datetime
from reliable_mq.outbox.half import TOMBSTONE_CONTENT, TOMBSTONE_NOTE, HalfView
from reliable_mq.outbox.sql_stubs import SqlStubs

# How a transaction gets a short lock timeout, and how the timeout is reset.
_HURRY: Mapping[str, tuple[str, str]] = {
    "postgresql": ("SET LOCAL lock_timeout = 1000", ""),
    "mysql": (
        "SET SESSION innodb_lock_wait_timeout = 1",
        "SET SESSION innodb_lock_wait_timeout = @@GLOBAL.innodb_lock_wait_timeout",
    ),
}
_SQLITE_HURRY_MS = 1000


class SqlHalves:
    """Looks up, entombs and claims stubs for check-backs. Every method is one transaction."""

    def __init__(self, stubs: SqlStubs) -> None:
        self._engine = stubs.engine
        table = stubs.table
        stub = table.c
        this = stub.message_id == bindparam("id")
        self._look = select(
            stub.status,
            stub.broker_name.is_not(None),
            stub.required_groups != "",
            stubs.blocked,
            stub.count,
        ).where(this)
        self._entomb = insert(table)
        self._claim = (
            update(table)
            .where(
                this,
                # A stub that consumers gave up, or that has used up its sends, waits for a person,
                # who was informed.
                waiting_rows(table),
                stub.broker_name.is_(None),
                # The scheduler's message also says that it was missed; the half does not.
                not_(stub.missed),
                or_(stub.lease_until.is_(None), stub.lease_until <= bindparam("at")),
            )
            .values(
                owner=bindparam("me"),
                lease_until=bindparam("until"),
                resend_time=bindparam("until"),
            )
        )

    def read_half(self, message_id: str) -> HalfView | None:
        """Return what a committed stub's row says; None: there is none."""
        with self._engine.execution_options(**READS_ONLY).begin() as connection:
            asked = {"id": message_id, "me": "", "ids": []}
            row = connection.execute(self._look, asked).first()
        if row is None:
            return None
        status, is_stored, is_watched, is_behind, count = row
        return HalfView(
            StubStatus(status), bool(is_stored), bool(is_watched), bool(is_behind), count
        )

    def entomb(self, message_id: str, topic: str, now: float) -> bool:
        """Take the id for ever with a tombstone; False: a row has the id.

        Raises the database's error if another open transaction has inserted the id;
        `sql_faults.is_database_busy` recognises it.
        """
        at = utc_datetime(now)
        tombstone = {
            "message_id": message_id,
            "topic": topic,
            "content": TOMBSTONE_CONTENT,
            "status": StubStatus.VOIDED.value,
            "note": TOMBSTONE_NOTE,
            "create_date": at,
            "update_date": at,
        }
        try:
            with _short_wait(self._engine) as connection:
                connection.execute(self._entomb, tombstone)
        except IntegrityError:
            return False
        return True

    def claim(self, message_id: str, owner: str, now: float, lease: float) -> bool:
        """Claim an unsent stub for `lease` seconds; False: it has another owner, or was sent."""
        values = {
            "id": message_id,
            "me": owner,
            "at": utc_datetime(now),
            "until": utc_datetime(now + lease),
        }
        with _short_wait(self._engine) as connection:
            return connection.execute(self._claim, values).rowcount == 1


@contextmanager
def _short_wait(engine: Engine) -> Iterator[Connection]:
    """Run a transaction that waits at most one second for another transaction."""
    with engine.connect() as connection, _short_file_wait(connection):
        before, after = _HURRY.get(dialect_family(connection.dialect.name), ("", ""))
        with connection.begin():
            if before:
                connection.execute(text(before))
            try:
                yield connection
            finally:
                if after and not connection.invalidated:
                    connection.execute(text(after))


@contextmanager
def _short_file_wait(connection: Connection) -> Iterator[None]:
    """Shorten SQLite's wait in BEGIN, too: there all waiting happens."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    (usual_ms,) = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout = {_SQLITE_HURRY_MS}")
    try:
        yield
    finally:
        if not connection.invalidated:
            driver.execute(f"PRAGMA busy_timeout = {usual_ms}")
