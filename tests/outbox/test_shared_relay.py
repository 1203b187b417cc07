"""Relays that are shared: whoever runs one sends what no process owns, told or by looking."""

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from tests.outbox.benches import Bench
from tests.waiting import until

from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_unowned import SqlUnowned, channel_of
from reliable_mq.outbox.thread_listener import CommitListener
from reliable_mq.outbox.thread_relay import RelayThread

WAIT = 20.0


class Broker:
    """Acknowledges everything, and tells who waits."""

    def __init__(self) -> None:
        self._stored = threading.Condition()
        self.stored: list[str] = []

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        with self._stored:
            self.stored += [message.message_id for message in messages]
            self._stored.notify_all()
        return [
            SendResult(
                status=SendStatus.SEND_OK,
                message_id=message.message_id,
                offset_message_id="",
                queue=MessageQueue(message.topic, "broker-a", 0),
                queue_offset=number,
            )
            for number, message in enumerate(messages)
        ]

    def wait_for(self, count: int) -> None:
        with self._stored:
            assert self._stored.wait_for(lambda: len(self.stored) >= count, WAIT), self.stored


class Process:
    """One process that runs a shared relay."""

    def __init__(self, bench: Bench, broker: Broker, name: str, *, listens: bool = True) -> None:
        database = bench.database
        stubs = SqlStubs(database.engine, database.stubs)
        relay = Relay(stubs, broker, lambda _count, now, _due: now + 60, owner=name, lease=30.0)
        told = threading.Event()
        self.is_told = told
        self.thread = RelayThread(
            relay,
            unowned=SqlUnowned(stubs, owner=name, lease=30.0),
            is_told=lambda: self.listener.is_listening,
        )

        def hear() -> None:
            self.thread.wake()
            told.set()

        self.listener = CommitListener(database.engine, channel_of(database.stubs), hear)
        if listens:
            self.listener.start()
        self.thread.start()

    def close(self) -> None:
        self.listener.close()
        self.thread.close()


@pytest.fixture
def shared(database_url: str) -> Iterator[Bench]:
    made = Bench(database_url, owner=None)
    yield made
    made.database.close()


@pytest.fixture
def start(shared: Bench) -> Iterator[Callable[..., Process]]:
    running: list[Process] = []

    def started(broker: Broker, name: str, **options: Any) -> Process:
        running.append(Process(shared, broker, name, **options))
        return running[-1]

    yield started
    for process in running:
        process.close()


Start = Callable[..., Process]


def test_a_shared_relay_sends_what_a_process_without_one_has_committed(
    shared: Bench, start: Start
) -> None:
    with shared.transaction() as tx:
        before = tx.send("orders", {"id": 1})
    broker = Broker()
    start(broker, "relay-1")
    broker.wait_for(1)
    with shared.transaction() as tx:
        after = tx.send_many("orders", [{"id": 2}, {"id": 3}])
    broker.wait_for(3)

    assert broker.stored == [before, *after]


def test_a_commit_wakes_relays_that_would_not_have_looked_by_themselves(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given relays that look once in an hour, a commit of another process is sent at once."""
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.UNOWNED_SECONDS", (3600.0, 3600.0))
    shared, broker = Bench(postgres_url, owner=None), Broker()
    process = Process(shared, broker, "relay-1")
    try:
        assert process.is_told.wait(WAIT)  # it listens
        with shared.transaction() as tx:
            tx.send("orders", {"id": 1})
            savepoint = tx.session.begin_nested()
            tx.send("orders", {"id": 2})
            savepoint.rollback()
        broker.wait_for(1)
        # A stub that no application of ours wrote: the channel is the table's name.
        with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
            connection.execute(
                "INSERT INTO rmq_message_stub (message_id, topic, content, resend_time, "
                "create_date, update_date) VALUES (%s, 'orders', 'x', now(), now(), now())",
                ("F" * 32,),
            )
            connection.execute("NOTIFY rmq_message_stub")
        broker.wait_for(2)
    finally:
        process.close()
        shared.database.close()

    assert broker.stored[1] == "F" * 32


def test_a_listener_whose_connection_is_cut_says_so_in_a_line_and_listens_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("reliable_mq.outbox.thread_listener._AGAIN_SECONDS", 0.01)
    bench = Bench(postgres_url)
    told = threading.Semaphore(0)
    listener = CommitListener(bench.database.engine, "rmq_message_stub", told.release)
    listener.start()
    try:
        assert told.acquire(timeout=WAIT)
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            )
            assert told.acquire(timeout=WAIT)  # what was committed meanwhile is looked for
            admin.execute("NOTIFY rmq_message_stub")
            assert told.acquire(timeout=WAIT)
    finally:
        listener.close()
        bench.database.close()

    (record,) = caplog.records
    assert "it searches at intervals: its connection was lost: " in record.getMessage()
    assert record.exc_info is None


def test_two_relays_share_the_work_and_send_nothing_twice(shared: Bench, start: Start) -> None:
    first, second = Broker(), Broker()
    start(first, "relay-1", listens=False)
    start(second, "relay-2", listens=False)
    ids = []
    for number in range(40):
        with shared.transaction() as tx:
            ids += tx.send_many("orders", [{"id": number}] * 5, ordering_key=f"c{number % 3}")

    def sent() -> int:
        with shared.database.engine.begin() as connection:
            found = text("SELECT count(*) FROM rmq_message_stub WHERE broker_name IS NOT NULL")
            return int(connection.execute(found).scalar_one())

    until(lambda: sent() == len(ids))

    assert sorted(first.stored + second.stored) == sorted(ids)
    assert {row._mapping["count"] for row in shared.stubs()} == {1}


def test_what_is_to_arrive_beyond_the_range_of_brokers_is_no_relays(shared: Bench) -> None:
    with shared.transaction() as tx:
        far = tx.send("orders", {}, delay=timedelta(days=3, seconds=1))
        near = tx.send("orders", {}, delay=timedelta(days=3))
    stubs = SqlStubs(shared.database.engine, shared.database.stubs)
    claimed = SqlUnowned(stubs, owner="me", lease=30.0).claim(100.0, 9)

    assert [stub.message_id for stub in claimed] == [near]
    assert stubs.sendable([far, near], "me").keys() == {near}


def test_unowned_stubs_are_claimed_once_and_in_the_order_of_their_rows(shared: Bench) -> None:
    with shared.transaction() as tx:
        ids = tx.send_many("orders", [{"id": number} for number in range(5)])
    stubs = SqlStubs(shared.database.engine, shared.database.stubs)
    mine = SqlUnowned(stubs, owner="me", lease=30.0)
    theirs = SqlUnowned(stubs, owner="them", lease=30.0)

    assert [stub.message_id for stub in mine.claim(100.0, 3)] == ids[:3]
    assert [stub.message_id for stub in theirs.claim(100.0, 3)] == ids[3:]
    assert mine.claim(100.0, 3) == []
    assert stubs.sendable(ids, "me") == dict.fromkeys(ids[:3], False)
