"""Half messages before any database: their life, what is answered, how the relay sends them."""

import itertools
from collections.abc import Collection, Sequence

import pytest

from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import UsageError
from reliable_mq.message import Decision, Half, Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.half import (
    ANSWERS,
    HALF_TRANSITIONS,
    HalfEvent,
    HalfState,
    HalfView,
    StubLookup,
    finding_of,
    half_group,
    next_half_state,
)
from reliable_mq.outbox.half_sender import HalfSender
from reliable_mq.outbox.thread_open_halves import AGE_SECONDS_MAX, OpenHalves

QUEUE = MessageQueue("orders", "b", 0)


def half(name: str, key: str = "") -> Half:
    return Half(
        message_id=name,
        group="g",
        queue=QUEUE,
        ordering_key=key,
        half_offset=1,
        commit_log_offset=2,
    )


def message(name: str, key: str = "") -> Message:
    return Message(topic="orders", body=b"x", message_id=name, ordering_key=key)


def stored(name: str) -> SendResult:
    return SendResult(
        status=SendStatus.SEND_OK,
        message_id=name,
        offset_message_id="",
        queue=QUEUE,
        queue_offset=0,
    )


class Wire:
    """Notes what goes out, in which order; what is named in `bad` fails."""

    def __init__(self, *bad: str) -> None:
        self.bad = bad
        self.calls: list[str] = []
        self.failure: Exception | None = None

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        return self._all("send", [each.message_id for each in messages])

    def commit_many(self, halves: Sequence[Half]) -> list[SendResult | Exception]:
        if self.failure is not None:
            raise self.failure
        return self._all("commit", [each.message_id for each in halves])

    def _all(self, verb: str, names: list[str]) -> list[SendResult | Exception]:
        self.calls.append(f"{verb} {' '.join(names)}")
        return [OSError(name) if name in self.bad else stored(name) for name in names]


def sender(wire: Wire, *halves: Half) -> tuple[HalfSender, OpenHalves]:
    known = OpenHalves()
    for each in halves:
        known.add(each)
    return HalfSender(wire, known, wire.commit_many), known


def kinds(results: Sequence[SendResult | Exception]) -> list[str]:
    return [type(result).__name__ for result in results]


def test_an_event_that_is_not_in_the_table_changes_nothing() -> None:
    for state in HalfState:
        for event in HalfEvent:
            if (state, event) in HALF_TRANSITIONS:
                next_half_state(state, event)
            else:
                with pytest.raises(UsageError):
                    next_half_state(state, event)


def test_rollback_is_never_said_while_a_stub_may_still_be_sent_by_its_half() -> None:
    for status in StubStatus:
        for is_stored in (False, True):
            for is_watched, is_behind in itertools.product((False, True), repeat=2):
                finding = finding_of(HalfView(status, is_stored, is_watched, is_behind, 0))
                is_safe = is_watched and (is_stored or status is StubStatus.CONFIRMED)
                is_over = status is StubStatus.VOIDED or is_safe
                assert (ANSWERS[finding] is Decision.ROLLBACK) is is_over


def test_every_finding_has_an_answer() -> None:
    assert ANSWERS.keys() == set(StubLookup)
    assert ANSWERS[StubLookup.UNDECIDED] is Decision.UNKNOWN


def test_a_group_is_that_of_one_database_and_fits_a_broker() -> None:
    one, two = half_group("shop", "1" * 16), half_group("shop", "2" * 16)
    assert one != two
    assert half_group("x" * 61, "1" * 16) == "x" * 60 + "_half_" + "1" * 16
    assert len(half_group("x" * 120, "1" * 16)) <= 120


def test_halves_are_committed_and_messages_sent() -> None:
    wire = Wire()
    sending, known = sender(wire, half("h1"), half("h2"))

    results = sending.send_many([message("h1"), message("m1"), message("h2"), message("m2")])

    assert [each.message_id for each in results if isinstance(each, SendResult)] == [
        *("h1", "m1", "h2", "m2")
    ]
    assert wire.calls == ["send m1 m2", "commit h1 h2"]
    assert len(known) == 0
    known.invariants()


def test_one_keys_messages_keep_their_order_whichever_way_they_go() -> None:
    wire = Wire()
    sending, _ = sender(wire, half("2", "k"), half("5", "k"))

    sending.send_many([message(name, "k") for name in "12345"])

    assert wire.calls == ["send 1", "commit 2", "send 3 4", "commit 5"]


def test_after_one_that_failed_later_ones_of_its_key_are_not_sent() -> None:
    wire = Wire("1")
    sending, known = sender(wire, half("2", "k"), half("4", "other"))

    results = sending.send_many(
        [message("1", "k"), message("2", "k"), message("3", "k"), message("4", "other")]
    )

    assert kinds(results) == ["OSError", "NotSent", "NotSent", "SendResult"]
    assert wire.calls == ["send 1", "commit 4"]
    assert len(known) == 0  # 2 is left to a check-back


def test_a_commit_that_failed_is_left_to_a_check_back() -> None:
    wire = Wire("h")
    sending, known = sender(wire, half("h"))

    assert kinds(sending.send_many([message("h")])) == ["OSError"]
    sending.send_many([message("h")])

    assert wire.calls == ["commit h", "send h"]
    assert len(known) == 0


def test_a_client_that_raises_leaves_no_half_half_done() -> None:
    wire = Wire()
    wire.failure = OSError("gone")
    sending, known = sender(wire, half("h"))

    assert kinds(sending.send_many([message("h"), message("m")])) == ["OSError", "SendResult"]
    assert len(known) == 0


def test_rolled_back_halves_are_not_committed_and_unknown_ones_are_nobodys() -> None:
    known = OpenHalves()
    known.add(half("h"))

    assert [each.message_id for each in known.roll_back(["h", "stranger"])] == ["h"]
    assert known.roll_back(["h"]) == []
    assert known.send(["h"]) == {}


def test_a_half_that_is_older_than_any_tombstone_is_not_ended_by_its_sender() -> None:
    now = [1000.0]
    known = OpenHalves(clock=lambda: now[0])
    known.add(half("old"))
    now[0] += AGE_SECONDS_MAX + 1
    known.add(half("new"))

    assert known.send(["old", "new"]).keys() == {"new"}
    known.invariants()


def test_a_half_is_ended_by_its_sender_for_an_hour_from_the_time_before_it_was_sent() -> None:
    now = [1000.0]
    known = OpenHalves(clock=lambda: now[0])
    known.add(half("asked early"), sent=990.0)
    known.add(half("now"))
    now[0] = 990.0 + 3600.0
    assert known.send(["asked early"]).keys() == {"asked early"}
    now[0] = 1000.0 + 3600.5
    assert known.send(["now"]).keys() == set()
    assert len(known) == 1, "the one that is being committed is still open"


def test_of_too_many_halves_those_that_are_being_committed_stay() -> None:
    known = OpenHalves(count_max=2)
    known.add(half("a"))
    known.send(["a"])
    for name in "bcd":
        known.add(half(name))
        known.invariants()
    known.note_ended("a", acknowledged=True)
    assert known.send(["a", "b", "c", "d"]).keys() == {"d"}


def test_ten_thousand_halves_are_kept() -> None:
    known = OpenHalves()
    for number in range(10_001):
        known.add(half(f"{number}"))
    assert len(known) == 10_000
    assert known.roll_back(["0"]) == []


def test_of_too_many_the_oldest_is_left_to_a_check_back() -> None:
    known = OpenHalves(count_max=2)
    for name in "abc":
        known.add(half(name))
    known.invariants()
    assert known.send(["a", "b", "c"]).keys() == {"b", "c"}


class Known:
    """Halves of which it is noted whether their commits were acknowledged."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.ends: dict[str, bool] = {}

    def send(self, message_ids: Collection[str]) -> dict[str, Half]:
        return {name: half(name) for name in message_ids if name in self.names}

    def note_ended(self, message_id: str, *, acknowledged: bool) -> None:
        self.ends[message_id] = acknowledged


def test_each_half_that_was_to_be_committed_is_told_whether_it_was() -> None:
    """One that was not sent, because an earlier message of its key failed, was not."""
    wire, known = Wire("bad"), Known("good", "bad", "behind")
    sending = HalfSender(wire, known, wire.commit_many)
    sending.send_many(
        [message("good"), message("bad", "k"), message("plain", "k"), message("behind", "k")]
    )
    assert known.ends == {"good": True, "bad": False, "behind": False}
