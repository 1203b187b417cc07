"""Results of sends that are recorded a little later, for many batches in one statement."""

import logging
from collections.abc import Collection, Sequence
from sqlite3 import SQLITE_BUSY, DatabaseError

import pytest
from sqlalchemy.exc import OperationalError
from tests.outbox.test_relay import World
from tests.outbox.test_thread_relay import Book, HeldSender, stub
from tests.waiting import until

from reliable_mq.outbox.relay import Relay, SendOutcome
from reliable_mq.outbox.stub import Stub
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

    assert recorded(world) == ["k"]
    world.relay.record(1.2)
    assert recorded(world) == ["k", "a"]


def test_a_failed_send_is_recorded_at_once(world: World) -> None:
    world.broker.refused.add("a")
    world.accept("a", "b")

    world.relay.run_once(1.0)

    assert [(each.message_id, each.error is None) for each in world.book.outcomes] == [("a", False)]
    world.relay.record(1.1)
    assert recorded(world) == ["a", "b"]


def test_while_the_database_is_away_results_wait_and_nothing_is_sent_again(world: World) -> None:
    # Given a send whose result is not recorded yet, and a table that cannot be written
    world.accept("a")
    world.relay.run_once(1.0)

    def away(*_given: object) -> None:
        raise ConnectionError("database")

    write, world.book.record_late = world.book.record_late, away  # type: ignore[method-assign,assignment]
    with pytest.raises(ConnectionError):
        world.relay.record(1.1)
    world.relay.run_once(1.2)

    # When it is back, then the result is written, and there was one send
    world.book.record_late = write  # type: ignore[method-assign]
    world.relay.record(1.3)
    assert recorded(world) == ["a"]
    assert world.broker.calls == [["a"]]


@pytest.mark.parametrize(
    ("groups", "deliver_time", "is_due"),
    [(("g",), None, False), ((), None, True), (("g", "h"), None, True), (("g",), 99.0, True)],
)
def test_only_a_result_that_a_confirmation_may_record_first_can_wait(
    world: World, groups: tuple[str, ...], deliver_time: float | None, is_due: bool
) -> None:
    world.book.there.add("a")
    more = {"required_groups": groups, "deliver_time": deliver_time}
    one = Stub(seq=1, message_id="a", topic="t", content=b"x", **more)  # type: ignore[arg-type]
    world.relay.accept([one], 0.0)

    world.relay.run_once(1.0)

    assert world.relay.is_record_due is is_due
    world.relay.record(1.1)
    assert not world.relay.is_record_due


def test_a_result_that_cannot_be_written_is_dropped_when_its_lease_ends(world: World) -> None:
    """The scheduler owns the row then. Otherwise the results would grow without end."""
    world.accept("a")
    world.relay.run_once(1.0)
    tried: list[int] = []

    def away(outcomes: Sequence[SendOutcome], _owner: str, _now: float) -> list[str]:
        tried.append(len(outcomes))
        raise ConnectionError("database")

    world.book.record_late = away  # type: ignore[method-assign,assignment]
    for now in (2.0, 6.0):
        with pytest.raises(ConnectionError):
            world.relay.record(now)
    world.relay.record(7.0)

    assert tried == [1, 1]
    assert world.relay.unrecorded == []


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


def test_what_no_confirmation_records_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.RECORD_SECONDS", 3600.0)
    book = Book()
    thread = deferring(book, HeldSender())

    thread.accept_committed([stub("first")])  # without a required group

    until(lambda: book.recorded == ["first"])
    thread.close(60)


def test_results_wait_for_a_small_part_of_the_lease_only() -> None:
    """Otherwise the scheduler would send everything again before it is recorded."""
    world = World()
    for lease, pause in ((5.0, 0.1), (0.2, 0.02)):
        relay = Relay(world.book, world.broker, lambda *_: 0.0, owner="me", lease=lease)
        assert RelayThread(relay)._record_pause == pause


class BusyBook(Book):
    """It sends, but results cannot be written for a while."""

    failures = 2

    def record_late(
        self, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> Collection[str]:
        if self.failures:
            self.failures -= 1
            cause = DatabaseError("database table is locked")
            cause.sqlite_errorcode = SQLITE_BUSY
            raise OperationalError("", None, cause)
        return super().record_late(outcomes, owner, now)


def test_results_that_can_be_written_again_are_told_without_another_send(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq.outbox.thread_relay")
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.FAULT_SECONDS", 0.001)
    book = BusyBook()
    thread = deferring(book, HeldSender())

    thread.accept_committed([stub("first")])

    until(lambda: book.recorded == ["first"])
    thread.close(60)
    said = [each.getMessage() for each in caplog.records]
    assert said == [
        "relay: the database is busy: database table is locked",
        "relay works again",
    ]
