"""What is answered when a broker asks for a half: from the table of stubs, by any process."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import DBAPIError
from tests.outbox.half_world import FIRST, HalfWorld, Life
from tests.waiting import until

from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import HalfRolledBack, MessageRefused, Unavailable, UsageError
from reliable_mq.escalate.sql_settlement import operator_actions_of, settlement_of
from reliable_mq.message import Decision
from reliable_mq.outbox.half import TOMBSTONE_NOTE

LATER = 1000.0


@pytest.fixture
def world(database_url: str) -> HalfWorld:
    return HalfWorld(database_url)


@pytest.fixture
def producer(world: HalfWorld) -> Iterator[Life]:
    with world.life() as life:
        yield life


@pytest.fixture
def other(world: HalfWorld, producer: Life) -> Iterator[Life]:
    """Give another process, long after."""
    with world.life() as life:
        life.now = LATER
        yield life


def commit_one(life: Life, name: str = "order", **options: Any) -> str:
    with life.transaction() as tx:
        return tx.send("orders", name, **options)


def place(life: Life) -> None:
    with life.transaction() as tx:
        tx.session.execute(text("INSERT INTO orders VALUES (1, 'order')"))
        tx.send("orders", "order")


def bodies(world: HalfWorld) -> list[str]:
    return [body for _, body in world.broker.stored]


def test_a_committed_stub_is_sent_by_whoever_is_asked_and_that_is_written_down(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    commit_one(producer)

    assert other.answer(FIRST) is None  # it has committed the half by itself

    (row,) = other.stubs()
    assert bodies(world) == ["order"]
    assert (row.status, row.count, row.broker_name) == (StubStatus.CONFIRMED, 1, "b")
    assert row.owner is None


def test_a_half_whose_stub_somebody_wants_sent_again_is_left_to_the_scheduler(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    """The half cannot say that its message comes again, nor who has consumed it."""
    stub = commit_one(producer, required_groups=("payments",))
    with other.database.engine.begin() as connection:
        operator_actions_of(other.database).retry(connection, [stub], "ann", "", LATER)

    assert other.answer(FIRST) is Decision.UNKNOWN
    other.scheduler.run_once(LATER)
    assert other.answer(FIRST) is Decision.ROLLBACK

    assert bodies(world) == ["order"]


@pytest.mark.parametrize("gone", ["given up by its group", "sends used up"])
def test_a_half_whose_stub_waits_for_a_person_is_not_sent_by_a_late_check_back(
    world: HalfWorld, producer: Life, other: Life, gone: str
) -> None:
    """Its group was faster than the row that says that it was sent, and it rejected the message."""
    stub = commit_one(producer, required_groups=("payments",))
    with other.database.engine.begin() as connection:
        if gone == "sends used up":
            connection.execute(text("UPDATE rmq_message_stub SET resend_time = NULL"))
        else:
            settlement_of(other.database).exhaust(
                connection, stub, group="payments", reason="no", now=9.0, topic="orders"
            )

    assert other.answer(FIRST) is Decision.UNKNOWN

    (row,) = other.stubs()
    assert (bodies(world), row.count, row.resend_time) == ([], 0, None)


def test_without_a_stub_a_tombstone_is_written_before_the_half_is_rolled_back(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    block = producer.transaction()
    tx = block.__enter__()
    message_id = tx.send("orders", "order")
    tx.session.rollback()
    tx.session.begin()
    with pytest.raises(UsageError, match="has taken back 1 message"):
        block.__exit__(None, None, None)

    world.broker.pending = dict(world.broker.halves)  # its rollback did not arrive
    assert other.answer(FIRST) is Decision.ROLLBACK

    (row,) = other.stubs()
    assert (row.message_id, row.status, bytes(row.content)) == (message_id, 2, b"")
    assert row.note == TOMBSTONE_NOTE
    assert (bodies(world), world.broker.pending) == ([], {})


def test_the_second_answer_is_the_first_one_again(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    with producer.transaction() as tx:
        savepoint = tx.session.begin_nested()
        tx.send("orders", "order")
        savepoint.rollback()

    assert other.answer(FIRST) is Decision.ROLLBACK
    assert other.answer(FIRST) is Decision.ROLLBACK
    assert len(other.stubs()) == 1


def answered_elsewhere(life: Life) -> Decision | None:
    """Let another thread answer: a transaction of the same one would wait for itself in SQLite."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(life.answer, FIRST).result()


def test_a_transaction_that_goes_on_is_not_rolled_back_however_long_it_takes(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    with producer.transaction() as tx:
        tx.send("orders", "order")
        for _ in range(2):  # more often than a broker asks
            assert answered_elsewhere(other) is Decision.UNKNOWN

    assert other.answer(FIRST) is None
    assert bodies(world) == ["order"]


def test_who_asks_while_the_transaction_commits_hears_that_it_did(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    answers: list[Decision | None] = []
    asking = threading.Thread(target=lambda: answers.append(other.answer(FIRST)))
    with producer.transaction() as tx:
        tx.send("orders", "order")
        asking.start()
    asking.join()

    def is_decided() -> bool:  # it was asked before, and may have given up waiting
        answers.append(other.answer(FIRST))
        return answers[-1] is not Decision.UNKNOWN

    if answers[-1] is Decision.UNKNOWN:
        until(is_decided)
    assert (answers[-1], bodies(world)) == (None, ["order"])


def test_a_transaction_that_is_slower_than_the_check_back_fails_with_its_business(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    send = producer.send

    def slow_send(stubs: Any) -> None:
        send(stubs)
        if producer.database.dialect != "sqlite":  # there the writer of the order has the lock
            assert other.answer(FIRST) is Decision.ROLLBACK

    producer.send = slow_send  # type: ignore[method-assign]
    if producer.database.dialect == "sqlite":
        pytest.skip("an SQLite transaction holds the write lock from its beginning")
    with pytest.raises(HalfRolledBack, match="run the transaction again"):
        place(producer)

    assert (producer.orders(), bodies(world)) == ([], [])


def test_a_stub_that_was_sent_by_other_means_is_not_sent_twice(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    commit_one(producer, required_groups=("payments",))
    other.resend()
    assert bodies(world) == ["order"]

    assert other.answer(FIRST) is Decision.ROLLBACK
    assert bodies(world) == ["order"]


def test_what_nobody_would_miss_is_rather_stored_twice(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    message_id = commit_one(producer)  # the broker's acknowledgement is all that is asked for
    other.resend()
    assert [row.status for row in other.stubs()] == [StubStatus.CONFIRMED]

    assert other.answer(FIRST) is Decision.COMMIT
    assert world.broker.stored == [(message_id, "order")] * 2


def test_a_stub_that_somebody_is_sending_is_left_to_him(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    commit_one(producer)
    other.now = producer.now + 1  # the relay's lease goes on

    assert other.answer(FIRST) is Decision.UNKNOWN
    assert bodies(world) == []


def test_a_later_stub_of_a_key_waits_for_the_earlier_one(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    commit_one(producer, "first", ordering_key="k")
    commit_one(producer, "second", ordering_key="k")

    assert other.answer(FIRST + 1) is Decision.UNKNOWN
    assert other.answer(FIRST) is None
    assert other.answer(FIRST + 1) is None
    assert bodies(world) == ["first", "second"]


def test_a_stub_that_a_person_voided_is_rolled_back(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    message_id = commit_one(producer)
    with other.database.engine.begin() as connection:
        voided = operator_actions_of(other.database).void(
            connection, [message_id], "ann", "", LATER
        )
    assert voided == {message_id: True}

    assert other.answer(FIRST) is Decision.ROLLBACK
    assert bodies(world) == []


def test_nobody_can_send_a_tombstone(world: HalfWorld, producer: Life, other: Life) -> None:
    with producer.transaction() as tx:
        savepoint = tx.session.begin_nested()
        message_id = tx.send("orders", "order")
        savepoint.rollback()
    other.answer(FIRST)

    with other.database.engine.begin() as connection:
        retried = operator_actions_of(other.database).retry(
            connection, [message_id], "ann", "", LATER
        )
    assert retried == {message_id: False}
    other.resend()
    assert bodies(world) == []


def test_a_half_that_the_broker_lost_is_sent_as_a_message(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    commit_one(producer)
    world.broker.halves.clear()
    world.broker.pending.clear()

    producer.run_relay()
    (row,) = other.stubs()
    assert (row.count, row.broker_name) == (1, None)

    other.resend()
    assert bodies(world) == ["order"]


def test_a_half_that_no_broker_takes_fails_the_transaction(
    world: HalfWorld, producer: Life
) -> None:
    world.broker.is_away = True
    with pytest.raises(Unavailable):
        place(producer)
    assert (producer.orders(), producer.stubs()) == ([], [])


def test_a_delayed_half_is_refused(world: HalfWorld, producer: Life) -> None:
    from datetime import timedelta

    with pytest.raises(MessageRefused, match="delayed"), producer.transaction() as tx:
        tx.send("orders", "order", delay=timedelta(seconds=1))
    assert world.broker.halves == {}


def test_while_the_database_is_away_nothing_is_said(
    world: HalfWorld, producer: Life, other: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_one(producer)
    away = DBAPIError("", None, OSError("gone"), connection_invalidated=True)

    def fail(message_id: str) -> None:
        raise away

    monkeypatch.setattr(other.check_backs._halves, "read_half", fail)
    assert other.answer(FIRST) is Decision.UNKNOWN


def test_a_row_that_was_tampered_with_is_no_reason_to_roll_back(
    world: HalfWorld, producer: Life, other: Life
) -> None:
    message_id = commit_one(producer)
    table = other.database.stubs
    with other.database.engine.begin() as connection:
        connection.execute(update(table).where(table.c.message_id == message_id).values(status=9))

    with pytest.raises(ValueError, match="9"):
        other.answer(FIRST)
    assert world.broker.pending


def test_ids_of_the_users_own_are_taken_once(world: HalfWorld, producer: Life) -> None:
    mine = "order-7".ljust(32, "-")
    commit_one(producer, message_id=mine)
    with pytest.raises(MessageRefused, match="is used already"):
        commit_one(producer, message_id=mine)
    assert len(producer.stubs()) == 1
    assert list(world.broker.pending) == [FIRST]
