"""Results of sends that are recorded a little later, for many batches in one statement."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from tests.outbox.test_relay import World
from tests.outbox.test_thread_relay import Book, HeldSender, stub
from tests.waiting import until
from tests.waiting_database import until_somebody_waits

from reliable_mq.database.sql_database import Database
from reliable_mq.outbox.relay import Relay, SendOutcome
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Position, Stub
from reliable_mq.outbox.thread_relay import RelayThread


@pytest.fixture
def world() -> World:
    made = World()
    made.relay = Relay(
        made.book,
        made.broker,
        lambda count, now, _deliver: now + 10 * count,
        owner="me",
        lease=5.0,
        may_defer=True,
    )
    return made


def recorded(world: World) -> list[str]:
    return [each.message_id for each in world.book.outcomes]


def test_the_results_of_several_batches_are_recorded_together(world: World) -> None:
    world.accept("a", "b")
    assert world.relay.run_once(1.0).sent == 2
    world.accept("c")
    assert world.relay.run_once(1.1).sent == 1
    assert recorded(world) == []

    world.relay.record(1.2)

    assert recorded(world) == ["a", "b", "c"]
    assert world.relay.unrecorded == []


def test_a_send_with_an_ordering_key_is_recorded_at_once(world: World) -> None:
    """Another process waits with the next stub of the key until the first one is recorded."""
    world.accept("a")
    world.relay.run_once(1.0)
    world.accept("k", key="k")

    world.relay.run_once(1.1)

    assert recorded(world) == ["a", "k"]


def test_a_failed_send_is_recorded_at_once(world: World) -> None:
    world.broker.refused.add("a")
    world.accept("a", "b")

    world.relay.run_once(1.0)

    assert recorded(world) == ["a", "b"]


def test_while_the_database_is_away_results_wait_and_nothing_is_sent_again(world: World) -> None:
    # Given a send whose result is not recorded yet, and a table that cannot be written
    world.accept("a")
    world.relay.run_once(1.0)

    def away(*_given: object) -> None:
        raise ConnectionError("database")

    write, world.book.record = world.book.record, away  # type: ignore[method-assign,assignment]
    with pytest.raises(ConnectionError):
        world.relay.record(1.1)
    world.relay.run_once(1.2)

    # When it is back, then the result is written, and there was one send
    world.book.record = write  # type: ignore[method-assign]
    world.relay.record(1.3)
    assert recorded(world) == ["a"]
    assert world.broker.calls == [["a"]]


def deferring(book: Book, sender: HeldSender) -> RelayThread:
    sender.let_go.set()
    owned = {"owner": "me", "lease": 1e9, "may_defer": True}
    relay = Relay(book, sender, lambda _count, now, _due: now, **owned)  # type: ignore[arg-type]
    thread = RelayThread(relay)
    thread.start()
    return thread


def test_the_thread_records_a_result_though_no_other_stub_comes() -> None:
    book = Book()
    thread = deferring(book, HeldSender())

    thread.accept_committed([stub("first")])

    until(lambda: book.recorded == ["first"])
    thread.close(60)


def test_the_end_of_the_thread_records_what_was_sent() -> None:
    book, sender = Book(), HeldSender()
    thread = deferring(book, sender)
    thread.accept_committed([stub("first")])
    assert sender.is_sending.wait(60)

    thread.close(60)

    assert book.recorded == ["first"]


def test_a_record_of_many_sends_locks_rows_in_the_order_of_their_ids(postgres_url: str) -> None:
    """Consumers confirm many stubs in this order, too: neither waits for what the other holds."""
    database = Database(postgres_url, prefix="rmq_", connections=3)
    database.create_tables()
    stubs = SqlStubs(database.engine, database.stubs)
    low, high = "A" * 32, "B" * 32
    with database.engine.begin() as connection:  # the later id has the earlier row
        for name in (high, low):
            one = Stub(seq=0, message_id=name, topic="orders", content=b"{}")
            stubs.insert(connection, [one], "me", 100.0, 5.0)
    outcomes = [SendOutcome(each, 1, 130.0, position=Position("b", 0, 7)) for each in (high, low)]
    lock = text("UPDATE rmq_message_stub SET tag = 'locked' WHERE message_id = :id")

    with ThreadPoolExecutor(1) as threads, database.engine.begin() as consumer:
        consumer.execute(lock, {"id": low})
        recording = threads.submit(stubs.record, outcomes, "me", 101.0)
        until_somebody_waits(database)
        consumer.execute(lock, {"id": high})
        consumer.commit()
        recording.result(60)

    assert stubs.sendable([low, high], "me") == {}
    database.close()
