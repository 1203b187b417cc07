"""The thread that tells other databases: what travels together, and what when nobody hears."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from tests.waiting import until

from reliable_mq.confirm import thread_notices
from reliable_mq.confirm.sql_owed_notices import OwedNotice
from reliable_mq.confirm.thread_notices import Notices, NoticeThread
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus

HERE, THERE = "rmq_notices_1", "rmq_notices_2"


class Broker:
    """Stores what is sent, unless it is away or not sure."""

    def __init__(self) -> None:
        self.stored: list[Message] = []
        self.failure: Exception | None = None
        self.status = SendStatus.SEND_OK

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        if self.failure is not None:
            raise self.failure
        self.stored += messages
        return [
            SendResult(
                status=self.status,
                message_id=message.message_id,
                offset_message_id="",
                queue=MessageQueue(message.topic, "broker-a", 0),
                queue_offset=0,
            )
            for message in messages
        ]

    def bodies(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(message.body) for message in self.stored]


class Debts:
    """What is due, in memory."""

    def __init__(self, *due: OwedNotice) -> None:
        self.due = list(due)
        self.settled: list[OwedNotice] = []
        self.looks = 0
        self.failure: Exception | None = None

    def claim(self, now: float, limit: int) -> list[OwedNotice]:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        found, self.due = self.due[:limit], self.due[limit:]
        return found

    def record_acknowledged(self, owed: Sequence[OwedNotice]) -> None:
        self.settled += owed


def test_a_notice_carries_many_messages_and_each_only_once() -> None:
    """Given the same message failed, then consumed and told again, its notice names it once."""
    broker, debts = Broker(), Debts(OwedNotice(HERE, "g", "a", is_consumed=False, retry_at=109.0))
    notices = Notices(debts, broker)
    notices.accept([OwedNotice(HERE, "g", str(number)) for number in range(700)])
    notices.accept(
        [OwedNotice(HERE, "g", "a"), OwedNotice(THERE, "g", "b"), OwedNotice(HERE, "h", "b")]
    )

    counts = notices.run_once(100.0, looks=True)

    found = [
        (message.topic, body["group"], len(body["consumed"]), "failed" in body)
        for message, body in zip(broker.stored, broker.bodies(), strict=True)
    ]
    assert found == [
        (HERE, "g", 500, False),
        (HERE, "g", 201, False),
        (THERE, "g", 1, False),
        (HERE, "h", 1, False),
    ]
    assert (counts.sent, counts.failed, len(debts.settled)) == (703, 0, 703)


def test_a_failure_is_told_in_seconds_from_now_so_that_clocks_may_be_apart() -> None:
    """Ten minutes ahead of everybody else, or late: a wait is a wait."""
    broker, ahead = Broker(), 10_600.0
    debts = Debts(
        OwedNotice(HERE, "g", "a", is_consumed=False, retry_at=ahead + 60),
        OwedNotice(HERE, "g", "b", is_consumed=False, retry_at=ahead - 5),
        OwedNotice(HERE, "g", "c", is_consumed=False, retry_at=ahead + 1e9),
        OwedNotice(HERE, "g", "d", is_consumed=False, retry_at=ahead, note="no such customer"),
    )

    Notices(debts, broker).run_once(ahead, looks=True)

    (body,) = broker.bodies()
    assert body == {
        "group": "g",
        "failed": {"a": 60.0, "b": 0.0, "c": 30 * 86_400.0},
        "given_up": {"d": "no such customer"},
    }


@pytest.mark.parametrize("way", ["away", "not flushed"])
def test_what_the_broker_has_not_stored_for_sure_stays_owed(way: str) -> None:
    broker, debts = Broker(), Debts()
    if way == "away":
        broker.failure = ConnectionError("away")
    else:
        broker.status = SendStatus.FLUSH_DISK_TIMEOUT
    notices = Notices(debts, broker)
    notices.accept([OwedNotice(HERE, "g", "a")])

    counts = notices.run_once(100.0, looks=False)

    assert (counts.sent, counts.failed, debts.settled) == (0, 1, [])
    assert notices.last_error in ("away", "SendStatus.FLUSH_DISK_TIMEOUT")


Started = Callable[[Debts, Broker], NoticeThread]


@pytest.fixture
def started() -> Iterator[Started]:
    threads = []

    def start(debts: Debts, broker: Broker) -> NoticeThread:
        thread = NoticeThread(Notices(debts, broker), lambda: 100.0, "billing")
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.close(0.0)


def test_it_looks_for_what_others_left_behind_as_soon_as_it_starts(started: Started) -> None:
    broker, debts = Broker(), Debts(OwedNotice(HERE, "g", "a"))

    started(debts, broker)

    until(lambda: debts.settled)
    assert debts.looks == 1


def test_what_is_handed_over_at_the_same_moment_travels_together(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a moment as long as an hour, when a look is asked for, it is over."""
    monkeypatch.setattr(thread_notices, "GATHER_SECONDS", 3600.0)
    monkeypatch.setattr(thread_notices, "LOOK_SECONDS", 3600.0)
    broker, debts = Broker(), Debts()
    thread = started(debts, broker)
    until(lambda: debts.looks)

    owed = [OwedNotice(HERE, "g", str(number)) for number in range(20)]
    handing = [threading.Thread(target=thread.accept_committed, args=([each],)) for each in owed]
    for each in handing:
        each.start()
    for each in handing:
        each.join()
    thread.look_soon()

    until(lambda: len(debts.settled) == 20)
    assert len(broker.stored) == 1


def test_asked_to_it_looks_before_its_time(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_notices, "LOOK_SECONDS", 3600.0)
    broker, debts = Broker(), Debts()
    thread = started(debts, broker)
    until(lambda: debts.looks)
    debts.due.append(OwedNotice(HERE, "g", "a", is_consumed=False, retry_at=109.0))

    thread.look_soon()

    until(lambda: debts.settled)


def test_a_database_that_is_away_ends_nothing(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_notices, "LOOK_SECONDS", 0.01)
    broker, debts = Broker(), Debts(OwedNotice(HERE, "g", "a"))
    debts.failure = ConnectionError("away")
    started(debts, broker)
    until(lambda: debts.looks > 2)

    debts.failure = None

    until(lambda: debts.settled)


def test_what_is_in_hand_is_sent_before_it_ends(started: Started) -> None:
    broker, debts = Broker(), Debts()
    thread = started(debts, broker)
    until(lambda: debts.looks)
    thread.accept_committed([OwedNotice(HERE, "g", "a")])

    thread.close(timeout=60.0)

    assert [owed.message_id for owed in debts.settled] == ["a"]
