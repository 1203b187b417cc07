"""Poison that looks like somebody else's fault ends in the dead letters, and takes nobody along.

A database that is away costs no attempt, however long. What only seems so must come to an end.
"""

import asyncio
from typing import Any

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect

from reliable_mq.client.consuming.pulling import received
from reliable_mq.consume.retry_decider import DOWN_TIMES_MAX, REFUSED_TIMES_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, Reject, Retry
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record, pack_host

REFUSE_B = {
    "sqlite": f"CREATE TRIGGER refuse BEFORE INSERT ON rmq_consume_log WHEN NEW.message_id = '{B}'"
    " BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    "postgresql": f"ALTER TABLE rmq_consume_log ADD CHECK (message_id <> '{B}')",
}


@pytest.mark.parametrize(("batch", "is_async"), [(1, False), (3, False), (1, True)])
def test_a_statement_that_kills_its_connection_each_time_is_not_a_database_that_is_away(
    postgres_url: str, redis: str | None, batch: int, is_async: bool
) -> None:
    """As one does that is too large for the server, or makes it run out of memory."""
    ledger = Ledger(postgres_url)
    ledger.create(A, B, C)
    calls: list[str] = []

    def kills(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        calls.append(message.message_id)
        if message.message_id == B:
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    async def kills_async(session: AsyncSession, message: ReceivedMessage) -> None:
        await session.run_sync(kills, message)

    async def scenario() -> list[Outcome]:
        options: dict[str, Any] = {"max_attempts": 2, "lease": LONG, "batch": batch}
        handler = kills_async if is_async else kills
        async with Life(postgres_url, redis, handler=handler, **options) as life:
            return await life.until_settled(*map(delivery, (A, B, C) if batch > 1 else (B,)))

    outcomes = asyncio.run(scenario())

    dead = outcomes[len(outcomes) // 2]
    assert isinstance(dead, Reject)
    assert dead.reason.startswith("attempt 2 of 2 failed: ")
    assert [each for each in outcomes if each is not dead] == [CONSUMED] * (batch - 1)
    assert ledger.effects() == ([A, C] if batch > 1 else [])
    assert ledger.logs()["payments", B] == (0, 2)
    assert ledger.stubs()[B].given_up
    if batch == 1:
        assert len(calls) == DOWN_TIMES_MAX + 2
    ledger.database.close()


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_handler_whose_other_database_is_away_uses_its_attempts_up(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    elsewhere = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    doubts: set[bool] = set()

    def asks(message: ReceivedMessage) -> None:
        doubts.add(message.in_doubt)
        with elsewhere.connect():
            raise AssertionError("port 1 has no server")

    async def scenario() -> list[Outcome]:
        options: dict[str, Any] = {"max_attempts": 2, "lease": LONG, "log_receipt": log_receipt}
        async with Life(database_url, redis, handler=asks, **options) as life:
            return [(await life.handle(delivery(A)))[0] for _ in range(DOWN_TIMES_MAX + 2)]

    *postponed, counted, dead = asyncio.run(scenario())

    assert postponed == [Retry(1.0, counts=False)] * DOWN_TIMES_MAX
    assert counted == Retry(0.01)
    assert isinstance(dead, Reject)
    assert ledger.logs() == {("payments", A): (0, 2)}
    assert doubts == {False}  # each of them ended, and we know


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_message_whose_row_is_refused_is_a_dead_letter_that_a_person_is_told_of(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    refuse(ledger)

    async def scenario() -> list[list[Outcome]]:
        options: dict[str, Any] = {"lease": LONG, "batch": 3, "log_receipt": log_receipt}
        async with Life(database_url, redis, **options) as life:
            first = await life.handle(*map(delivery, (A, B, C)))
            return [first] + [await life.handle(delivery(B)) for _ in range(REFUSED_TIMES_MAX - 1)]

    first, *others, (dead,) = asyncio.run(scenario())

    assert first == [CONSUMED, Retry(1.0, counts=False), CONSUMED]  # no neighbour waits for it
    assert others == [[Retry(1.0, counts=False)]] * (REFUSED_TIMES_MAX - 2)
    assert isinstance(dead, Reject)
    assert dead.reason.startswith("the consume log refuses it: ")
    assert ledger.effects() == [A, C]
    assert escalated(ledger) == [B]
    assert ledger.stubs()[B].given_up


def test_a_dead_letter_whose_row_is_refused_is_one_all_the_same(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    refuse(ledger)

    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG) as life:
            (outcome,) = await life.until_settled(delivery(B, b"lz4", fault="it is lz4"))
            assert isinstance(outcome, Reject)

    asyncio.run(scenario())

    assert escalated(ledger) == [B]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_message_with_an_id_that_no_table_holds_has_its_effect_once(
    database_url: str, ledger: Ledger, redis: str | None, name: str
) -> None:
    record = Record(
        topic="orders",
        body=b"{}",
        properties=encode_properties({"UNIQ_KEY": name}),
        commit_log_offset=16,
        store_host=pack_host("127.0.0.1", 10911),
    )

    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG) as life:
            for _ in range(2):
                came = received(record, MessageQueue("orders", "broker-a", 1))
                assert await life.handle(came) == [CONSUMED]

    asyncio.run(scenario())

    assert len(ledger.effects()) == 1


def refuse(ledger: Ledger) -> None:
    """Let the consume log refuse the rows of B."""
    with ledger.database.engine.begin() as connection:
        connection.execute(text(REFUSE_B[ledger.database.dialect]))


def escalated(ledger: Ledger) -> list[str]:
    """Return the dead letters that a person is to be told of."""
    table = ledger.database.escalations
    with ledger.database.engine.begin() as connection:
        return list(connection.execute(select(table.c.message_id)).scalars())
