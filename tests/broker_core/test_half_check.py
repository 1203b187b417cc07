"""Check-backs: who is asked, when, and how often."""

from collections.abc import Callable

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld
from tests.broker_core.cleaning import begin_cleaning
from tests.broker_core.half_world import (
    COMMIT,
    INTERVAL_MS,
    PRODUCERS,
    answering,
    bodies,
    end,
    ending,
    half_header,
    prepare,
    produce,
    questions,
    restarted,
    settled,
)

from reliable_mq.broker_core.names import GIVEN_UP_TOPIC, HALF_TOPIC
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.errors import MessageRefused
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.message_id import decode_offset_message_id, encode_offset_message_id
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record, decode_record

FOUR_DAYS_MS = 4 * 86_400_000


@pytest.fixture
def world(world: BrokerWorld) -> BrokerWorld:
    world.create_topic(queues=4)
    return world


def test_a_silent_transaction_is_asked_for_and_its_answer_counts(world: BrokerWorld) -> None:
    produce(world)
    sent = prepare(world)
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    half = decode_record(question.body)
    assert (half.topic, half.queue_id, half.body, half.flag) == (TOPIC, 3, b"half", 7)
    assert half.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
    assert question.ext_fields["transactionId"] == "AB12"
    assert question.ext_fields["tranStateTableOffset"] == "1"  # a copy at the end of the queue
    named = decode_offset_message_id(question.ext_fields["offsetMsgId"])
    assert str(named.commit_log_offset) == question.ext_fields["commitLogOffset"]
    assert end(world, answering(question, COMMIT)).code == 0
    assert end(world, ending(sent, COMMIT)).code == 0
    world.pass_time(2 * INTERVAL_MS)
    assert (bodies(world), settled(world), questions(world)) == ([b"half"], [b"1,"], [])


def test_a_producer_that_ends_late_settles_the_copy_too(world: BrokerWorld) -> None:
    produce(world)
    sent = prepare(world)
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    world = restarted(world)
    assert end(world, ending(sent, COMMIT)).code == 0
    assert end(world, answering(question, COMMIT)).code == 0
    assert (bodies(world), settled(world)) == ([b"half"], [b"1,"])
    assert len(world.state.halves) == 0


def test_the_producers_of_a_group_are_asked_in_turn(world: BrokerWorld) -> None:
    for number in (1, 2):
        produce(world, of=number)
    produce(world, of=3, group="others")
    for n in range(4):
        prepare(world, UNIQ_KEY=f"K{n}")
    world.pass_time(INTERVAL_MS)
    assert [len(questions(world, of=number)) for number in (1, 2, 3)] == [2, 2, 0]


def test_a_young_half_is_left_in_peace(world: BrokerWorld) -> None:
    produce(world)
    world.pass_time(INTERVAL_MS - 6_000)
    prepare(world)
    world.pass_time(6_000)
    assert questions(world) == []
    world.pass_time(INTERVAL_MS)
    assert len(questions(world)) == 1


def test_a_half_may_ask_for_more_time(world: BrokerWorld) -> None:
    produce(world)
    prepare(world, CHECK_IMMUNITY_TIME_IN_SECONDS="45")
    world.pass_time(INTERVAL_MS)
    assert questions(world) == []
    copy = world.records(HALF_TOPIC)[-1].property_map()
    assert copy["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    assert end(world, answering(question, COMMIT)).code == 0
    assert bodies(world) == [b"half"]


def test_an_end_after_the_time_that_a_half_asked_for_must_come_from_a_check(
    world: BrokerWorld,
) -> None:
    sent = prepare(world, CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    world.pass_time(10_001, step=10_001)
    assert end(world, ending(sent, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
    assert end(world, ending(sent, COMMIT, fromTransactionCheck="true")).code == 0
    assert bodies(world) == [b"half"]


def test_after_fifteen_checks_a_half_is_given_up_but_a_late_word_is_heard(
    world: BrokerWorld,
) -> None:
    produce(world)
    sent = prepare(world)
    for _ in range(15):
        world.pass_time(INTERVAL_MS, step=INTERVAL_MS)
        produce(world)
    assert len(questions(world)) == 15
    world.pass_time(2 * INTERVAL_MS, step=INTERVAL_MS)
    assert questions(world) == []
    (given_up,) = world.records(GIVEN_UP_TOPIC)
    assert given_up.property_map()["TRANSACTION_CHECK_TIMES"] == "15"
    world = restarted(world)
    assert end(world, ending(sent, COMMIT)).code == 0
    assert end(world, ending(sent, COMMIT)).code == 0
    assert bodies(world) == [b"half"]
    world = restarted(world)
    assert end(world, ending(sent, COMMIT)).code == 0
    assert bodies(world) == [b"half"]


def given_up(world: BrokerWorld) -> Command:
    """Prepare a half, and let every check-back pass without an answer; return the send's reply."""
    sent = prepare(world)
    for _ in range(17):
        produce(world)
        world.pass_time(INTERVAL_MS, step=INTERVAL_MS)
    questions(world)
    return sent


def resume(world: BrokerWorld, record: Record) -> Command:
    message_id = encode_offset_message_id(bytes(4), 10911, record.commit_log_offset)
    return world.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id})


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_half_that_was_given_up_is_asked_for_again_when_it_is_resumed(
    world: BrokerWorld, *, is_restarted: bool
) -> None:
    sent = given_up(world)
    assert resume(world, world.records(GIVEN_UP_TOPIC)[0]).code == 0
    if is_restarted:
        world = restarted(world)
    produce(world)
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    assert decode_record(question.body).property_map()["TRANSACTION_CHECK_TIMES"] == "1"
    assert end(world, answering(question, COMMIT)).code == 0
    assert end(world, ending(sent, COMMIT)).code == 0
    assert (bodies(world), len(world.state.halves)) == ([b"half"], 0)
    world.state.halves.invariants()


def test_a_half_that_is_resumed_twice_or_while_it_is_pending_is_pending_once(
    world: BrokerWorld,
) -> None:
    given_up(world)
    (record,) = world.records(GIVEN_UP_TOPIC)
    for _ in range(2):
        assert resume(world, record).code == 0
    prepare(world, b"other", UNIQ_KEY="CD34")
    assert resume(world, world.records(HALF_TOPIC)[-1]).code == 0
    assert len(world.state.halves) == 2
    world.state.halves.invariants()
    assert len(restarted(world).state.halves) == 2


def test_what_is_settled_or_no_half_is_not_resumed(world: BrokerWorld) -> None:
    sent = prepare(world)
    assert end(world, ending(sent, COMMIT)).code == 0
    for record in (*world.records(HALF_TOPIC), *world.records(TOPIC, 3)):
        assert resume(world, record).code == ResponseCode.SYSTEM_ERROR
    assert len(world.records(HALF_TOPIC)) == 1


def test_a_half_of_the_distant_past_is_given_up_at_once(world: BrokerWorld) -> None:
    prepare(world)
    world.now_ms += 73 * 3_600_000
    world.pass_time(INTERVAL_MS)
    assert bodies(world, GIVEN_UP_TOPIC, 0) == [b"half"]
    assert len(world.state.halves) == 0


def test_without_a_producer_a_half_waits_for_the_next_round(world: BrokerWorld) -> None:
    prepare(world)
    world.pass_time(INTERVAL_MS)
    produce(world)
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    assert decode_record(question.body).property_map()["TRANSACTION_CHECK_TIMES"] == "2"


def test_more_halves_than_one_tick_takes_are_all_asked_for(world: BrokerWorld) -> None:
    produce(world)
    for n in range(450):
        prepare(world, UNIQ_KEY=f"K{n}")
    world.pass_time(INTERVAL_MS + 1_000)
    assert len({question.ext_fields["msgId"] for question in questions(world)}) == 450
    assert len(world.state.halves) == 450


def test_a_half_without_room_for_the_notes_of_check_backs_is_refused(world: BrokerWorld) -> None:
    produce(world)
    answer = world.ask(
        RequestCode.SEND_MESSAGE_V2, half_header(PAD="p" * (32_600 - 54), N="é" * 5), b"half"
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    for pad in range(32_580, 31_000, -1):
        header = {**half_header(PAD="p" * pad), "g": world.now_ms}
        if world.ask(RequestCode.SEND_MESSAGE_V2, header, b"half").code == 0:
            break
    for checks in range(1, 16):
        produce(world)
        world.pass_time(INTERVAL_MS)
        (question,) = questions(world)
        named = decode_record(question.body).property_map()
        assert named["TRANSACTION_CHECK_TIMES"] == str(checks)


def a_full_half(world: BrokerWorld, topic: str = TOPIC, queue_id: str = "3") -> None:
    """Let another broker take in a half whose properties are as long as a record allows."""
    named = {
        "TRAN_MSG": "true",
        "PGROUP": PRODUCERS,
        "REAL_TOPIC": topic,
        "REAL_QID": queue_id,
        "UNIQ_KEY": "F" * 32,
    }
    room = PROPERTIES_SIZE_MAX - len(encode_properties({**named, "PAD": "p"})) + 1
    world.forge(HALF_TOPIC, 0, **named, PAD="p" * room)


@pytest.mark.parametrize("place", [(TOPIC, "3"), ("t" * 300, "3"), (TOPIC, "x"), (TOPIC, "9" * 20)])
def test_a_half_that_has_no_room_for_notes_does_not_keep_others_from_being_asked_for(
    world: BrokerWorld, place: tuple[str, str]
) -> None:
    a_full_half(world, *place)
    prepare(world)
    world = restarted(world)
    produce(world)

    world.pass_time(INTERVAL_MS)
    world.pass_time(INTERVAL_MS)

    asked = [question.ext_fields["msgId"] for question in questions(world)]
    assert asked.count("AB12") == 2
    assert asked.count("F" * 32) == (2 if place == (TOPIC, "3") else 0)
    assert len(world.state.halves) == 2
    world.now_ms += 72 * 3_600_000
    world.pass_time(2 * INTERVAL_MS)
    assert len(world.state.halves) == 0
    assert len(world.records(GIVEN_UP_TOPIC)) == 2


def test_a_half_that_no_topic_can_take_is_let_go(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a half that no record of this broker can hold."""
    produce(world)
    prepare(world, b"unfit")
    prepare(world, b"good")
    append: Callable[[StoredMessage, int], AppendResult] = world.state.append

    def refuse(message: StoredMessage, now_ms: int) -> AppendResult:
        if message.body == b"unfit":
            raise MessageRefused("too long")
        return append(message, now_ms)

    monkeypatch.setattr(world.state, "append", refuse)

    world.pass_time(INTERVAL_MS)

    assert [decode_record(question.body).body for question in questions(world)] == [b"good"]
    assert len(world.state.halves) == 1


def test_a_message_that_is_sent_on_as_a_half_brings_no_notes_of_check_backs(
    world: BrokerWorld,
) -> None:
    produce(world)
    prepare(world, TRANSACTION_CHECK_TIMES="15", TRAN_PREPARED_QUEUE_OFFSET="9" * 5_000)
    world = restarted(world)
    produce(world)
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    assert decode_record(question.body).property_map()["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_clock_that_jumps_gives_no_half_up_before_its_time_was_watched(
    world: BrokerWorld,
) -> None:
    produce(world)
    prepare(world)
    look(world)
    world.now_ms += FOUR_DAYS_MS
    look(world, ahead_ms=FOUR_DAYS_MS)
    world.pass_time(INTERVAL_MS)
    assert world.state.topics.get(GIVEN_UP_TOPIC) is None

    world.now_ms += FOUR_DAYS_MS
    look(world, ahead_ms=FOUR_DAYS_MS)
    world.pass_time(INTERVAL_MS)
    assert len(world.records(GIVEN_UP_TOPIC)) == 1


def look(world: BrokerWorld, *, ahead_ms: int = 0) -> None:
    """Let the broker look at its clock, which is ahead so much."""
    found = world.core.housekeeping.survey_job()()
    begin_cleaning(world.core, found, world.reading(ahead_ms=ahead_ms))
