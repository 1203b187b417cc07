"""The relay's thread: what was handed over before `close` goes out, also when it came late."""

import logging
import threading
import weakref
from collections.abc import Collection, Sequence

import pytest
from sqlalchemy.exc import OperationalError
from tests.waiting import until

from reliable_mq.errors import ConnectionLost
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.relay import Relay, SendOutcome, StubSender
from reliable_mq.outbox.stub import Stub
from reliable_mq.outbox.thread_relay import RelayThread, gather_seconds


class Book:
    """Every stub may be sent; what was recorded is kept."""

    def __init__(self) -> None:
        self.recorded: list[str] = []
        self.renewed: list[str] = []

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        return dict.fromkeys(message_ids, False)

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        self.recorded += [outcome.message_id for outcome in outcomes]

    def record_late(
        self, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> Collection[str]:
        self.record(outcomes, owner, now)
        return set()

    def renew(self, message_ids: Collection[str], owner: str, until: float) -> None:
        self.renewed += message_ids


class HeldSender:
    """Acknowledges everything, the first time only when it is let go."""

    def __init__(self) -> None:
        self.is_sending = threading.Event()
        self.let_go = threading.Event()

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        self.is_sending.set()
        self.let_go.wait(60)
        queue = MessageQueue("orders", "broker-a", 0)
        return [
            SendResult(
                status=SendStatus.SEND_OK,
                message_id=message.message_id,
                offset_message_id="",
                queue=queue,
                queue_offset=0,
            )
            for message in messages
        ]


def stub(message_id: str, written: float = 1e12) -> Stub:
    return Stub(seq=0, message_id=message_id, topic="orders", content=b"order", create_time=written)


def test_a_stub_handed_over_during_the_last_send_is_sent_before_the_thread_ends() -> None:
    """Given a send on its way, when a stub comes and then `close`, then that stub is sent too."""
    book, sender = Book(), HeldSender()
    relay = Relay(book, sender, lambda _count, now, _due: now, owner="me", lease=1e9)
    thread = RelayThread(relay)
    thread.start()
    thread.accept_committed([stub("first")])
    assert sender.is_sending.wait(60)

    thread.accept_committed([stub("second")])
    closer = threading.Thread(target=thread.close, args=(60,))
    closer.start()
    until(lambda: thread._closing_by is not None)  # it is asked to end while it still sends
    sender.let_go.set()
    closer.join(60)

    assert book.recorded == ["first", "second"]


class AwaySender:
    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        return [ConnectionLost("127.0.0.1:9 cannot be reached") for _ in messages]


def test_stubs_that_cannot_be_sent_are_told_of_once_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    book = Book()
    relay = Relay(book, AwaySender(), lambda _count, now, _due: now, owner="me", lease=1e9)
    thread = RelayThread(relay)
    thread.start()

    thread.accept_committed([stub("first"), stub("second")])
    thread.accept_committed([stub("third")])
    thread.close(timeout=60)

    (line,) = [each.getMessage() for each in caplog.records]
    why = "the scheduler resends them: message first: ConnectionLost: 127.0.0.1:9"
    assert f"could not be sent, {why}" in line


def test_a_single_stub_never_waits_and_many_gather_for_a_moment() -> None:
    assert [gather_seconds(sent) for sent in (0, 1, 2, 4, 256)] == [0.0, 0.0, 0.004, 0.008, 0.03]


class Unowned:
    """Stubs without an owner, given out once; keeps how many were asked for."""

    def __init__(self, *stubs: Stub) -> None:
        self.stubs = list(stubs)
        self.limits: list[int] = []

    def claim(self, now: float, limit: int) -> list[Stub]:
        self.limits.append(limit)
        found, self.stubs = self.stubs[:limit], self.stubs[limit:]
        return found


class QuickSender(HeldSender):
    """Acknowledges everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go.set()


def relay_of(book: Book, sender: StubSender) -> Relay:
    return Relay(book, sender, lambda _count, now, _due: now, owner="me", lease=1e9)


def thread_named(name: str = "reliable-mq-relay") -> threading.Thread:
    """Return the newest thread of a name: another test may have left one."""
    return [each for each in threading.enumerate() if each.name == name][-1]


def test_a_stub_that_was_handed_over_before_the_thread_began_is_sent() -> None:
    book = Book()
    thread = RelayThread(relay_of(book, QuickSender()))
    thread.accept_committed([stub("early")])
    thread.start()
    thread.close(timeout=60)
    assert book.recorded == ["early"]


def test_a_thread_that_is_not_closed_lets_the_program_end() -> None:
    thread = RelayThread(relay_of(Book(), QuickSender()))
    thread.start()
    assert thread_named().daemon
    thread.close(timeout=60)


def test_successful_sends_are_not_told_as_failures(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    thread = RelayThread(relay_of(book, QuickSender()))
    thread.start()
    for name in ("first", "second"):
        thread.accept_committed([stub(name)])
    thread.close(timeout=60)
    assert book.recorded == ["first", "second"]
    assert caplog.records == []


def test_a_shared_relay_claims_what_it_sends_at_once_when_it_is_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its stubs have no owner yet: to send one unclaimed could send it twice."""
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.UNOWNED_SECONDS", (3600.0, 3600.0))
    book, unowned = Book(), Unowned(stub("there"))
    thread = RelayThread(relay_of(book, QuickSender()), unowned=unowned)
    thread.start()
    until(lambda: book.recorded == ["there"])
    unowned.stubs = [stub("claimed")]
    thread.wake()
    until(lambda: book.recorded == ["there", "claimed"])
    unowned.stubs = [stub("woken")]
    thread.wake()
    until(lambda: book.recorded[2:] == ["woken"])
    unowned.stubs = [stub("late")]
    thread.close(timeout=60)
    assert book.recorded == ["there", "claimed", "woken"], "after `close` nothing is claimed"


def test_a_relay_that_hears_of_commits_rests_and_another_one_looks_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.UNOWNED_SECONDS", (0.001, 3600.0))
    told = Unowned()
    thread = RelayThread(relay_of(Book(), QuickSender()), unowned=told, is_told=lambda: True)
    thread.start()
    until(lambda: told.limits)
    alone = Unowned()
    other = RelayThread(relay_of(Book(), QuickSender()), unowned=alone)
    other.start()
    until(lambda: len(alone.limits) > 4)
    for each in (thread, other):
        each.close(timeout=60)
    assert len(told.limits) == 1


def test_a_shared_relay_claims_no_more_than_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.UNOWNED_MAX", 3)
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.UNOWNED_SECONDS", (3600.0, 3600.0))
    book = Book()
    unowned = Unowned(*(stub(f"{number}") for number in range(7)))
    thread = RelayThread(relay_of(book, QuickSender()), unowned=unowned)
    thread.start()
    until(lambda: len(book.recorded) == 7)
    thread.close(timeout=60)
    assert unowned.limits[:3] == [3, 3, 3]
    assert sorted(book.recorded) == [f"{number}" for number in range(7)]


class BlockedBook(Book):
    """An earlier stub of another owner must go first, until it has gone."""

    def __init__(self) -> None:
        super().__init__()
        self.is_blocked = True
        self.asked = 0

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        self.asked += 1
        return dict.fromkeys(message_ids, self.is_blocked)


def test_a_stub_that_waits_for_anothers_is_asked_for_again_and_again() -> None:
    book = BlockedBook()
    thread = RelayThread(relay_of(book, QuickSender()))
    thread.start()
    thread.accept_committed([stub("behind")])
    until(lambda: book.asked > 5)
    book.is_blocked = False
    until(lambda: book.recorded == ["behind"])
    thread.close(timeout=60)


def test_a_close_gives_up_what_cannot_be_sent_in_time() -> None:
    book = BlockedBook()
    thread = RelayThread(relay_of(book, QuickSender()))
    thread.start()
    thread.accept_committed([stub("behind")])
    until(lambda: book.asked)
    running = thread_named()
    thread.close(timeout=0.01)
    running.join(60)
    assert not running.is_alive()
    assert book.recorded == []


class FailingBook(Book):
    """Its database is away for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 3

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        if self.failures:
            self.failures -= 1
            raise OperationalError("", None, Exception("no database"))
        return super().sendable(message_ids, owner)


def test_a_database_that_is_away_is_told_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "reliable_mq.outbox.thread_relay")
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.FAULT_SECONDS", 0.001)
    book = FailingBook()
    thread = RelayThread(relay_of(book, QuickSender()))
    thread.start()
    thread.accept_committed([stub("late")])
    until(lambda: book.recorded == ["late"])
    thread.close(timeout=60)
    assert "no database" in caplog.text


def test_stubs_have_the_times_at_which_they_were_written() -> None:
    """A stub whose lease has ended is the scheduler's, and one whose lease has not is sent."""
    book = Book()
    relay = Relay(book, QuickSender(), lambda _count, now, _due: now, owner="me", lease=10.0)
    thread = RelayThread(relay, clock=lambda: 1_000.0)
    thread.accept_committed([stub("fresh", 996.0)])
    thread.accept_committed([stub("fresh, too", 1_000.0)])
    thread.start()
    thread.close(timeout=60)
    assert book.recorded == ["fresh", "fresh, too"]
    assert book.renewed == []
    late = RelayThread(relay, clock=lambda: 2_000.0)
    late.accept_committed([stub("late", 1_000.0)])
    late.start()
    late.close(timeout=60)
    assert book.renewed == ["late"]


def test_a_stub_that_waits_for_anothers_is_asked_for_at_intervals_that_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.BLOCKED_SECONDS", (3600.0, 3600.0))
    book = BlockedBook()
    thread = RelayThread(relay_of(book, QuickSender()))
    thread.start()
    thread.accept_committed([stub("behind")])
    until(lambda: book.asked == 1)
    thread.wake()
    until(lambda: book.asked >= 2)
    assert book.asked == 2
    book.is_blocked = False
    thread.wake()
    until(lambda: book.recorded == ["behind"])
    thread.close(timeout=60)


def test_a_relay_of_its_own_stubs_rests_until_one_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reliable_mq.outbox.thread_relay.UNOWNED_SECONDS", (0.001, 0.001))
    book, looks = Book(), list[float]()

    def clock() -> float:
        looks.append(0.0)
        return 0.0

    thread = RelayThread(relay_of(book, QuickSender()), clock)
    thread.start()
    for number in range(10):
        thread.accept_committed([stub(f"{number}")])
        until(lambda: len(book.recorded) == number + 1)  # noqa: B023
    assert len(looks) <= 10
    thread.close(timeout=60)


def test_a_closed_relay_keeps_no_stub_that_is_handed_to_it() -> None:
    """The resend scheduler sends it; a transaction may commit after `close`."""
    thread = RelayThread(relay_of(Book(), QuickSender()))
    thread.start()
    thread.close(timeout=60)
    stubs = [stub("late")]
    reference = weakref.ref(holder := Holder(stubs))
    thread.accept_committed(holder)
    del holder
    assert reference() is None


class Holder(list[Stub]):
    """A list that tells whether somebody keeps it."""
