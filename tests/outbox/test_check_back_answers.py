"""Answers to check-backs over a table in memory, which changes between two looks at it."""

from collections.abc import Sequence

import pytest
from sqlalchemy.exc import OperationalError

from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import Unavailable
from reliable_mq.message import (
    CheckBack,
    Decision,
    Half,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from reliable_mq.outbox.check_backs import CheckBacks
from reliable_mq.outbox.half import HalfView
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.stub import Position

QUEUE = MessageQueue("orders", "b", 3)
HALF = Half(message_id="M", group="g", queue=QUEUE, half_offset=1, commit_log_offset=2)
CHECK = CheckBack(HALF, ReceivedMessage(topic="orders", body=b"x", queue=QUEUE, queue_offset=0))
UNSENT = HalfView(StubStatus.UNCONFIRMED, False, True, False, 4)


class Book:
    """Answers each look with the next view, and claims if it may."""

    def __init__(self, *views: HalfView | None, takes: bool = True, claims: bool = True) -> None:
        self.views = list(views)
        self.takes, self.claims = takes, claims
        self.entombed: list[tuple[str, str, float]] = []
        self.claimed: list[tuple[str, str, float, float]] = []
        self.recorded: list[tuple[SendOutcome, str, float]] = []
        self.error: Exception | None = None

    def read_half(self, message_id: str) -> HalfView | None:
        assert message_id == "M"
        if self.error is not None:
            raise self.error
        return self.views.pop(0)

    def entomb(self, message_id: str, topic: str, now: float) -> bool:
        self.entombed.append((message_id, topic, now))
        return self.takes

    def claim(self, message_id: str, owner: str, now: float, lease: float) -> bool:
        self.claimed.append((message_id, owner, now, lease))
        return self.claims

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        self.recorded += [(each, owner, now) for each in outcomes]


STORED = SendResult(
    status=SendStatus.SEND_OK, message_id="M", offset_message_id="", queue=QUEUE, queue_offset=17
)


def answer(book: Book, result: SendResult | Exception = STORED) -> Decision | None:
    def commit_many(halves: Sequence[Half]) -> list[SendResult | Exception]:
        assert halves == [HALF]
        return [result]

    backs = CheckBacks(
        book,
        book,
        commit_many,
        lambda count, now, deliver: now + 10 * count + (deliver or 0),
        owner="me",
        lease=5.0,
        clock=lambda: 100.0,
    )
    return backs.answer(CHECK)


def test_an_unsent_stub_is_claimed_its_half_committed_and_the_send_recorded() -> None:
    book = Book(UNSENT)
    assert answer(book) is None
    assert book.claimed == [("M", "me", 100.0, 5.0)]
    sent = SendOutcome("M", 5, 150.0, position=Position("b", 3, 17))
    assert book.recorded == [(sent, "me", 100.0)]
    assert book.entombed == []


def test_a_commit_that_failed_is_a_failed_send_with_its_reason() -> None:
    book = Book(UNSENT)
    assert answer(book, Unavailable("nobody there")) is None
    failed = SendOutcome("M", 5, 150.0, error="Unavailable: nobody there")
    assert book.recorded == [(failed, "me", 100.0)]


def test_a_stub_that_somebody_else_has_claimed_is_left_to_them() -> None:
    book = Book(UNSENT, claims=False)
    assert answer(book) is Decision.UNKNOWN
    assert book.recorded == []


def test_without_a_stub_its_id_is_taken_before_the_half_is_rolled_back() -> None:
    book = Book(None)
    assert answer(book) is Decision.ROLLBACK
    assert book.entombed == [("M", "orders", 100.0)]


def test_a_transaction_that_commits_between_look_and_tombstone_is_seen() -> None:
    book = Book(None, UNSENT, takes=False)
    assert answer(book) is None
    assert len(book.recorded) == 1


def test_a_row_that_comes_and_goes_between_two_looks_decides_nothing() -> None:
    book = Book(None, None, takes=False)
    assert answer(book) is Decision.UNKNOWN
    assert (book.claimed, book.recorded) == ([], [])


@pytest.mark.parametrize(
    ("view", "decision"),
    [
        (HalfView(StubStatus.VOIDED, True, True, False, 0), Decision.ROLLBACK),
        (HalfView(StubStatus.VOIDED, False, False, False, 0), Decision.ROLLBACK),
        (HalfView(StubStatus.UNCONFIRMED, True, True, True, 1), Decision.ROLLBACK),
        (HalfView(StubStatus.UNCONFIRMED, True, False, False, 1), Decision.COMMIT),
        (HalfView(StubStatus.CONFIRMED, False, True, False, 1), Decision.ROLLBACK),
        (HalfView(StubStatus.CONFIRMED, False, False, False, 1), Decision.COMMIT),
        (HalfView(StubStatus.UNCONFIRMED, False, True, True, 0), Decision.UNKNOWN),
    ],
)
def test_a_committed_row_decides_without_a_claim(view: HalfView, decision: Decision) -> None:
    book = Book(view)
    assert answer(book) is decision
    assert (book.claimed, book.recorded, book.entombed) == ([], [], [])


def test_a_database_that_is_away_decides_nothing_and_a_bug_is_raised() -> None:
    book = Book()
    book.error = OperationalError("", None, Exception("no database"))
    assert answer(book) is Decision.UNKNOWN
    book.error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        answer(book)
