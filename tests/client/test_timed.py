"""Messages with a time: what is asked of a broker, what is refused, and how one is taken back."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.client.script import World, random_bytes, route_table, says
from tests.client.test_producer import SEND, STORED, TWO_BROKERS, world_of

from reliable_mq.client.flow import Call
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.timed import recall
from reliable_mq.client.sending.transaction import TransactionFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    MessageRefused,
    NotPermitted,
    ProtocolError,
    Refused,
    Unavailable,
    UsageError,
)
from reliable_mq.message import Message
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.properties import decode_properties
from reliable_mq.wire.recall_handle import RecallHandle, encode_recall_handle

BEAT = RequestCode.HEART_BEAT
RECALL = RequestCode.RECALL_MESSAGE
V4_9 = 399
HANDLE = encode_recall_handle(RecallHandle("t", "b", "1800000005001", "ID"))


def of_version(version: int) -> World:
    def answer(call: Call) -> Command:
        said = reply(call.command)
        said.version = version
        return said

    world, _ = world_of(TWO_BROKERS)
    world.answers[BEAT] = answer
    return world


def asked(world: World, message: Message) -> dict[str, str]:
    """Return the properties with which `message` is sent."""
    world.answers.setdefault(BEAT, says())
    world.play(SendFlows(ClientSettings(), route_table(), random_bytes).send(message))
    return decode_properties(world.calls_of(SEND)[-1].command.ext_fields["i"])


@pytest.mark.parametrize(
    ("delay", "asked_ms"),
    [
        (timedelta(seconds=90), "90000"),
        (timedelta(milliseconds=1), "1"),
        (timedelta(microseconds=1), "1"),
        (timedelta(), "0"),
        (timedelta(days=2), "172800000"),
    ],
)
def test_a_delay_counts_from_when_the_broker_has_the_message(
    delay: timedelta, asked_ms: str
) -> None:
    properties = asked(world_of(TWO_BROKERS)[0], Message(topic="t", body=b"x", delay=delay))
    assert properties["TIMER_DELAY_MS"] == asked_ms
    assert "TIMER_DELIVER_MS" not in properties


def test_an_instant_is_the_same_in_every_time_zone() -> None:
    instant = datetime(2027, 3, 1, 12, 30, 15, 250_999, UTC)
    for zone in (UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=8))):
        message = Message(topic="t", body=b"x", deliver_at=instant.astimezone(zone))
        properties = asked(world_of(TWO_BROKERS)[0], message)
        assert properties["TIMER_DELIVER_MS"] == "1803904215250"


@pytest.mark.parametrize(
    "message",
    [
        Message(topic="t", body=b"x", delay=timedelta(1), delay_level=1),
        Message(topic="t", body=b"x", delay=timedelta(1), deliver_at=datetime.now(UTC)),
        Message(topic="t", body=b"x", deliver_at=datetime.now(UTC), delay_level=1),
        Message(topic="t", body=b"x", delay=-timedelta(microseconds=1)),
        Message(topic="t", body=b"x", deliver_at=datetime(2027, 1, 1)),  # noqa: DTZ001
        Message(topic="t", body=b"x", delay=timedelta(1), properties={"TIMER_OUT_MS": "1"}),
    ],
)
def test_a_time_that_nobody_can_follow_is_refused_before_anything_is_sent(message: Message) -> None:
    world, producer = world_of(TWO_BROKERS)
    with pytest.raises(MessageRefused):
        world.play(producer.send(message))
    assert world.calls == []


def test_a_broker_that_has_no_timers_is_not_sent_what_it_would_show_at_once() -> None:
    world = of_version(V4_9)
    producer = SendFlows(ClientSettings(), route_table(), random_bytes)
    message = Message(topic="t", body=b"x", delay=timedelta(hours=1))
    for send in (producer.send, producer.send_oneway):
        with pytest.raises(MessageRefused, match="no timers"):
            world.play(send(message))
    assert world.calls_of(SEND) == []
    assert world.posts == []


def test_a_broker_is_asked_once_whether_it_has_timers_and_never_for_other_messages() -> None:
    world = of_version(493)
    producer = SendFlows(ClientSettings(), route_table(), random_bytes)
    world.play(producer.send(Message(topic="t", body=b"x")))
    assert world.calls_of(BEAT) == []
    for _ in range(4):
        world.play(producer.send(Message(topic="t", body=b"x", delay=timedelta(hours=1))))
    assert sorted(call.address for call in world.calls_of(BEAT)) == ["a:10911", "b:10911"]


def test_a_half_message_cannot_have_a_time() -> None:
    world, producer = world_of(TWO_BROKERS)
    flows = TransactionFlows(ClientSettings(), route_table(), producer)
    for late in (
        Message(topic="t", body=b"x", delay=timedelta(1)),
        Message(topic="t", body=b"x", deliver_at=datetime.now(UTC)),
    ):
        with pytest.raises(MessageRefused, match="delayed"):
            world.play(flows.send(late, "g", timeout=3.0))


def test_the_handle_of_a_timed_message_comes_with_its_result() -> None:
    world, producer = world_of(TWO_BROKERS)
    assert world.play(producer.send(Message(topic="t", body=b"x"))).recall_handle == ""
    world.answers |= {BEAT: says(), SEND: says(ext=STORED | {"recallHandle": HANDLE})}
    sent = world.play(producer.send(Message(topic="t", body=b"x", delay=timedelta(1))))
    assert sent.recall_handle == HANDLE


def test_a_recall_goes_to_the_broker_that_the_handle_names() -> None:
    world, _ = world_of(TWO_BROKERS)
    world.answers[RECALL] = says(ext={"msgId": "ID"})
    settings = ClientSettings(producer_group="senders")
    assert world.play(recall(route_table(), settings, HANDLE, 1.5)) == "ID"
    (call,) = world.calls_of(RECALL)
    assert (call.address, call.timeout) == ("b:10911", 1.5)
    assert call.command.ext_fields == {
        "topic": "t",
        "recallHandle": HANDLE,
        "producerGroup": "senders",
    }


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ResponseCode.NO_PERMISSION, NotPermitted),
        (ResponseCode.ILLEGAL_OPERATION, Refused),
        (ResponseCode.SUCCESS, ProtocolError),
    ],
)
def test_what_a_broker_says_to_a_recall_is_told(code: int, kind: type[Exception]) -> None:
    world, _ = world_of(TWO_BROKERS)
    world.answers[RECALL] = says(code, remark="recall failed")
    with pytest.raises(kind):
        world.play(recall(route_table(), ClientSettings(), HANDLE, 3.0))


def test_what_is_no_handle_is_the_callers_fault_and_a_lost_broker_is_not() -> None:
    world, _ = world_of(TWO_BROKERS)
    for text in ("", "x", "djE=", "%%%"):
        with pytest.raises(UsageError, match="not a recall handle"):
            world.play(recall(route_table(), ClientSettings(), text, 3.0))
    gone = encode_recall_handle(RecallHandle("t", "gone", "1", "ID"))
    with pytest.raises(Unavailable, match="broker gone"):
        world.play(recall(route_table(), ClientSettings(), gone, 3.0))
