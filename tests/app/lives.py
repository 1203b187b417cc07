"""Lives of one consumer process: the protocol over a real database and Redis, without a broker."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.orm import Session
from tests.app.kill_switch import KillSwitch
from tests.waiting import eventually

from reliable_mq.confirm import sql_confirmation
from reliable_mq.consume import sql_failed_attempts
from reliable_mq.consume.asyncio_delivery import HandlerGate, MessageProcessing
from reliable_mq.consume.consumer import Consumer, plan_of
from reliable_mq.consume.sql_consume_transaction import ConsumeTransaction
from reliable_mq.database import sql_database
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_tables import our_tables
from reliable_mq.idempotency.redis_leases import RedisLeases
from reliable_mq.idempotency.sql_consume_log import SqlConsumeLog
from reliable_mq.idempotency.sql_key_log import SqlKeyLog
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.outcomes import Consumed, Outcome, Reject, Retry

LEASE = 0.02
LONG = 30.0
"""A lease that does not pass while a test runs."""
A, B, C = "A" * 32, "B" * 32, "C" * 32
Handler = Callable[..., Any]
MakeAttempts = Callable[..., ConsumeTransaction]


def delivery(name: str, body: bytes = b"{}", **more: Any) -> ReceivedMessage:
    """Return a delivery of the message `name`."""
    return ReceivedMessage(
        topic="orders",
        body=body,
        message_id=name,
        queue=MessageQueue("orders", "broker-a", 1),
        queue_offset=7,
        **more,
    )


def write_effect(session: Session, message: ReceivedMessage) -> None:
    """The handler of these tests: one effect row."""
    session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})


class Ledger:
    """What is left in the database, whoever died: effects, consume log, stubs."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=2)

    def create(self, *names: str, groups: tuple[str, ...] = ("payments",)) -> None:
        """Create the tables, and committed stubs that were sent."""
        self.database.create_tables()
        stubs = SqlStubs(self.database.engine, self.database.stubs)
        with self.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS effects (id TEXT)"))
            ours = (self.database.stubs.name, self.database.logs.name, self.database.keys.name)
            for table in ("effects", *ours):
                connection.execute(text(f"DELETE FROM {table}"))
            for name in names:
                stub = Stub(
                    seq=0, message_id=name, topic="orders", content=b"{}", required_groups=groups
                )
                stubs.insert(connection, [stub], "relay", 100.0, 5.0)

    def effects(self) -> list[str]:
        with self.database.engine.begin() as connection:
            return sorted(connection.execute(text("SELECT id FROM effects")).scalars())

    def logs(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return (state, attempt) by (consumer group, message id)."""
        table = self.database.logs
        with self.database.engine.begin() as connection:
            return {
                (row.consumer_group, row.message_id): (row.state, row.attempt)
                for row in connection.execute(select(table))
            }

    def stubs(self) -> dict[str, Any]:
        table = self.database.stubs
        with self.database.engine.begin() as connection:
            return {row.message_id: row for row in connection.execute(select(table))}

    def insert_log(self, **values: Any) -> None:
        with self.database.engine.begin() as connection:
            connection.execute(insert(self.database.logs), values)


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls `make` once for each arguments, and returns copies of what it made."""
    made = cache(make)
    return lambda *given, **named: copy(made(*given, **named))


_SHARED = (
    (sql_database, "our_tables", cache(our_tables)),
    (sql_confirmation, "SqlConfirmation", _once(sql_confirmation.SqlConfirmation)),
    (sql_failed_attempts, "SqlConsumeLog", _once(SqlConsumeLog)),
    (sql_failed_attempts, "SqlKeyLog", _once(SqlKeyLog)),
)


@contextmanager
def _statements_are_shared() -> Iterator[None]:
    """Let the lives of a process of tests share their statements, but not what they learned.

    To make them, and to compile them, takes longer than a life itself; there are thousands.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module, name, shared in _SHARED:
            patch.setattr(module, name, shared)
        yield


class Life:
    """One life of a process that consumes for one group."""

    def __init__(
        self,
        url: str,
        redis: str | None,
        switch: KillSwitch | None = None,
        *,
        handler: Handler = write_effect,
        make_attempts: MakeAttempts = ConsumeTransaction,
        renews: bool = False,
        clock: Callable[[], float] = time.time,
        gate: HandlerGate | None = None,
        **options: Any,
    ) -> None:
        self.switch = switch or KillSwitch()
        self._redis = redis
        self._renews = renews
        self._gate = gate or HandlerGate()
        options = {"lease": LEASE, "group": "payments", "topic": "orders", **options}
        plan = plan_of(handler)
        if not plan.is_async:
            plan = plan._replace(function=self.switch.inside(handler))
        consumer = Consumer(plan=plan, **options)
        with _statements_are_shared():
            self.database = Database(url, prefix="rmq_", connections=8, local_clock=clock)
            self.switch.watch(self.database.engine)
            self.attempts = make_attempts(consumer, self.database, retry_waits=(0.01,))

    async def __aenter__(self) -> "Life":
        self.leases = None
        if self._redis is not None:
            self.leases = RedisLeases(self._redis, duplicate_window=60, timeout=5.0)
            self.switch.watch_leases(self.leases)
        self._threads = ThreadPoolExecutor(8)
        self.deliveries = MessageProcessing(self.attempts, self.leases, self._threads, self._gate)
        if self._renews:  # by the clock, so it would take its steps between any two others
            self.deliveries.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.deliveries.close()
        if self.leases is not None and not self.switch.dead:
            await self.leases.close()
        self._threads.shutdown()
        await self.database.close_async()
        self.database.close()

    async def handle(self, *messages: ReceivedMessage) -> list[Outcome]:
        return await self.deliveries.handle(messages)

    async def until_settled(self, *messages: ReceivedMessage) -> list[Outcome]:
        """Deliver again what is to come later, as a broker would; return the final outcomes."""
        final: dict[str, Outcome] = {}
        waiting = list(messages)

        async def are_settled() -> bool:
            outcomes = await self.handle(*waiting)
            later = []
            for message, outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, Retry):
                    later.append(message)
                else:
                    assert isinstance(outcome, Consumed | Reject)
                    final[message.message_id] = outcome
            waiting[:] = later
            return not waiting

        await eventually(are_settled, lambda: [message.message_id for message in waiting])
        return [final[message.message_id] for message in messages]
