"""Results of sends in PostgreSQL, while consumers hold the rows of their stubs."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, Ledger, Life, delivery, write_effect
from tests.waiting_database import until_somebody_waits

from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Position
from reliable_mq.outcomes import CONSUMED, Outcome, Reject

LOCK = text("UPDATE rmq_message_stub SET tag = 'locked' WHERE message_id = :id")
PLACES = text("SELECT broker_name FROM rmq_message_stub ORDER BY message_id")


@pytest.fixture
def ledger(postgres_url: str) -> Iterator[Ledger]:
    made = Ledger(postgres_url)
    yield made
    made.database.close()


def stubs_of(ledger: Ledger) -> SqlStubs:
    return SqlStubs(ledger.database.engine, ledger.database.stubs)


def sent(name: str, broker: str = "broker-a") -> SendOutcome:
    return SendOutcome(name, 1, 130.0, position=Position(broker, 0, 7))


def places(ledger: Ledger) -> list[str | None]:
    with ledger.database.engine.connect() as connection:
        return list(connection.execute(PLACES).scalars())


def test_a_record_of_many_sends_locks_rows_in_the_order_of_their_ids(ledger: Ledger) -> None:
    """Consumers confirm many stubs in this order, too: neither waits for what the other holds."""
    ledger.create(B, A)  # the later id has the earlier row
    stubs = stubs_of(ledger)

    with ThreadPoolExecutor(1) as threads, ledger.database.engine.begin() as consumer:
        consumer.execute(LOCK, {"id": A})
        recording = threads.submit(stubs.record, [sent(B), sent(A)], "relay", 101.0)
        until_somebody_waits(ledger.database)
        consumer.execute(LOCK, {"id": B})
        consumer.commit()
        recording.result(60)

    assert stubs.sendable([A, B], "relay") == {}


def test_a_late_record_leaves_out_rows_that_are_locked_until_they_are_free(ledger: Ledger) -> None:
    ledger.create(A, B)
    stubs, outcomes = stubs_of(ledger), [sent(A), sent(B), sent("gone")]

    with ledger.database.engine.begin() as consumer:
        consumer.execute(LOCK, {"id": B})
        assert stubs.record_late(outcomes, "relay", 101.0) == {B}
        assert places(ledger) == ["broker-a", None]
        consumer.rollback()

    assert stubs.record_late([sent(B)], "relay", 102.0) == set()
    assert places(ledger) == ["broker-a", "broker-a"]
    assert [each.count for each in ledger.stubs().values()] == [1, 1]


def test_a_relay_does_not_wait_for_the_handlers_of_a_batch_with_a_reject(
    postgres_url: str, redis_url: str, ledger: Ledger
) -> None:
    """The rejected stub is locked until the end of the batch, which then wants the other one."""
    ledger.create(A, B)
    stubs, left = stubs_of(ledger), []

    with ThreadPoolExecutor(1) as threads:

        def handler(message: ReceivedMessage, session: Session) -> None:
            if message.message_id == B:
                raise Reject("wrong")
            recording = threads.submit(stubs.record_late, [sent(A), sent(B)], "relay", 101.0)
            left.append(recording.result(20))
            write_effect(session, message)

        async def scenario() -> list[Outcome]:
            async with Life(postgres_url, redis_url, handler=handler, batch=2, lease=LONG) as life:
                return await life.handle(delivery(B), delivery(A))

        rejected, consumed = asyncio.run(scenario())

    assert (isinstance(rejected, Reject), consumed) == (True, CONSUMED)
    assert left == [{B}]
    assert stubs.record_late([sent(B)], "relay", 102.0) == set()
    assert places(ledger) == ["broker-a", "broker-a"]


def test_a_result_that_the_table_refuses_holds_up_no_other(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.create(A, B)
    caplog.set_level(logging.WARNING, "reliable_mq")

    assert stubs_of(ledger).record_late([sent(A, "bro\0ker"), sent(B)], "relay", 101.0) == set()

    assert places(ledger) == [None, "broker-a"]
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"relay: the table refuses where message {A} is stored: ")


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("topic", "place"), [("orders", "broker-a"), ("copies", None)])
def test_a_confirmation_records_where_the_stubs_own_message_is_not_a_copy_in_another_topic(
    postgres_url: str, redis_url: str, ledger: Ledger, batch: int, topic: str, place: str | None
) -> None:
    """A bridge may copy messages under their ids into another topic, which the group consumes."""
    ledger.create(A, B)
    queue = MessageQueue(topic, "broker-a", 1)
    copies = [replace(delivery(name), topic=topic, queue=queue) for name in (A, B)]

    async def scenario() -> list[Outcome]:
        async with Life(postgres_url, redis_url, batch=batch, topic=topic, lease=LONG) as life:
            return await life.handle(*copies)

    assert asyncio.run(scenario()) == [CONSUMED] * 2
    assert places(ledger) == [place, place]
    assert [each.status for each in ledger.stubs().values()] == [1, 1]
