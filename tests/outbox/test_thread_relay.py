"""The relay's thread: what was handed over before `close` goes out, also when it came late."""

import threading
from collections.abc import Collection, Sequence

import pytest
from tests.waiting import until

from reliable_mq.errors import ConnectionLost
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.relay import Relay, SendOutcome
from reliable_mq.outbox.stub import Stub
from reliable_mq.outbox.thread_relay import RelayThread, gather_seconds


class Book:
    """Every stub may be sent; what was recorded is kept."""

    def __init__(self) -> None:
        self.recorded: list[str] = []

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        return dict.fromkeys(message_ids, False)

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        self.recorded += [outcome.message_id for outcome in outcomes]

    def renew(self, message_ids: Collection[str], owner: str, until: float) -> None: ...


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


def stub(message_id: str) -> Stub:
    return Stub(seq=0, message_id=message_id, topic="orders", content=b"order", create_time=1e12)


def test_a_stub_handed_over_during_the_last_send_is_sent_before_the_thread_ends() -> None:
    """Given a send on its way, when a stub comes and then `close`, then that stub is sent too."""
    book, sender = Book(), HeldSender()
    relay = Relay(book, sender, lambda _count, now, _due: now, owner="me", lease=1e9)
    thread = RelayThread(relay)
    thread.start()
    thread.hand([stub("first")])
    assert sender.is_sending.wait(60)

    thread.hand([stub("second")])
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

    thread.hand([stub("first"), stub("second")])
    thread.hand([stub("third")])
    thread.close(timeout=60)

    (line,) = [each.getMessage() for each in caplog.records]
    assert "could not be sent, the scheduler resends them: ConnectionLost: 127.0.0.1:9" in line


def test_a_single_stub_never_waits_and_many_gather_for_a_moment() -> None:
    assert [gather_seconds(sent) for sent in (0, 1, 2, 4, 256)] == [0.0, 0.0, 0.004, 0.008, 0.03]
