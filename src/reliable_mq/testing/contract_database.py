"""The database of a contract: its tables, and what tests of all kinds do with them."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, func, select

from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.idempotency.sql_calls import SqlCalls
from reliable_mq.idempotency.sql_consume_log import LogEntry, LogLookup, SqlConsumeLog
from reliable_mq.idempotency.sql_key_log import KeyEntry, SqlKeyLog
from reliable_mq.outbox.sql_stub_rows import stub_of
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.due import ClaimedStubs, ClaimRequest, DueKind
from reliable_mq.resend.sql_due import SqlDue

T = TypeVar("T")
LEASE = 10.0
A, B = "A" * 32, "B" * 32
WAITED_SECONDS = 0.3
"""How long a transaction has time to end that should wait for another one."""
ANYTHING = bytes(range(256)) * 4096
"""One MiB with every byte there is."""


class Undo(Exception):
    """Ends a savepoint or a transaction."""


class ContractDatabase:
    """A database with our tables, empty before each test."""

    @pytest.fixture
    def database(self) -> Database:
        """Give a database that nobody else uses; its tables need not be there yet."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _prepared(self, database: Database) -> Iterator[None]:
        database.create_tables()
        self.tables = database
        self.stubs = SqlStubs(database.engine, database.stubs)
        self.due = SqlDue(self.stubs, database.logs, confirmation_of(database))
        self.log = SqlConsumeLog(database.logs, database.dialect)
        self.keys = SqlKeyLog(database.keys, database.logs, database.dialect)
        self.calls = SqlCalls(database.calls, database.watched_time)
        yield
        database.close()

    def commit(self, work: Callable[[Connection], T]) -> T:
        """Do something in a transaction of its own."""
        with self.tables.engine.begin() as connection:
            return work(connection)

    def write(self, *stubs: Stub, owner: str | None = "relay") -> list[Stub]:
        """Commit stubs at 100 s, under a lease of their relay."""
        return self.commit(lambda it: self.stubs.insert(it, stubs, owner, 100.0, LEASE))

    def stored(self) -> dict[str, Stub]:
        """Return the stubs that are committed."""
        rows = self.commit(lambda it: it.execute(select(self.tables.stubs)).all())
        return {row.message_id: stub_of(row) for row in rows}

    def status(self, name: str = A) -> StubStatus:
        """Return the status of a stub."""
        column = self.tables.stubs.c
        statement = select(column.status).where(column.message_id == name)
        return StubStatus(self.commit(lambda it: it.execute(statement).scalar_one()))

    def claim(
        self, owner: str, now: float, limit: int = 100, kind: DueKind = DueKind.UNSENT
    ) -> ClaimedStubs:
        """Let a scheduler claim what is due."""
        return self.due.claim(
            ClaimRequest(
                kind=kind,
                topic="orders",
                now=now,
                owner=owner,
                lease=LEASE,
                limit=limit,
                count_max=16,
            )
        )

    def receive(self, *entries: LogEntry, now: float = 100.0) -> list[LogLookup]:
        """Begin attempts, committed."""
        answers = self.commit(lambda it: self.log.receive(it, entries, now, LEASE))
        return [answers[each.message_id] for each in entries]

    def count(self) -> int:
        """Return how many consume-log rows there are."""
        rows = select(func.count()).select_from(self.tables.logs)
        return int(self.commit(lambda it: it.execute(rows).scalar_one()))


def stub(name: str, **more: Any) -> Stub:
    """Return a stub of the message `name` that waits for the group "payments"."""
    given = {"topic": "orders", "content": b"{}", "required_groups": ("payments",)}
    return Stub(seq=0, message_id=name, **{**given, **more})


def entry(name: str, token: str = "one", group: str = "payments") -> LogEntry:
    """Return a delivery of the message `name`."""
    return LogEntry(
        group=group,
        message_id=name,
        topic="orders",
        broker_name="broker-a",
        queue_id=1,
        offset=7,
        token=token,
    )


def key_entry(name: str) -> KeyEntry:
    """Return the same for the one business key of these tests."""
    return KeyEntry(
        group="payments",
        message_id="digest",
        topic="orders",
        broker_name="broker-a",
        queue_id=1,
        offset=7,
        token=name,
        holder=name,
        shown="order 7",
    )
