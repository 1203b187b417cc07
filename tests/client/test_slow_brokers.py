"""Sending when brokers are slow, busy or hang, and what is too large to be sent at all."""

from functools import partial

import pytest
from tests.client.script import fails, route_table, says
from tests.client.test_producer import BATCH, SEND, STORED, TWO_BROKERS, addresses, world_of

from reliable_mq.client.flow import Call
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.send_retries import TOPICS_MAX, RoundRobin
from reliable_mq.client.sending.slow_brokers import FAILED_SECONDS, SlowBrokers
from reliable_mq.client.settings import BODY_SIZE_LIMIT, ClientSettings
from reliable_mq.errors import BrokerBusy, ConnectionLost, MessageRefused, RequestTimeout
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.message import Message, MessageQueue
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, encode_command


def test_a_broker_that_hangs_costs_a_try_and_later_sends_turn_away_from_it() -> None:
    world, producer = world_of(TWO_BROKERS)

    def a_hangs(call: Call) -> Command:
        if call.address == "a:10911":
            world.seconds += call.timeout
            raise RequestTimeout("silent")
        return says(ext=STORED)(call)

    world.answers[SEND] = a_hangs
    begun = world.seconds
    for _ in range(10):
        world.play(producer.send(Message(topic="t", body=b"x"), timeout=3.0))
    assert world.seconds - begun == 1.0, "one try of one send"
    assert addresses(world).count("a:10911") == 1
    world.seconds += FAILED_SECONDS
    world.play(producer.send(Message(topic="t", body=b"x")))
    world.play(producer.send(Message(topic="t", body=b"x")))
    assert addresses(world).count("a:10911") == 2, "it is tried again when its time is over"


def test_a_try_that_nobody_else_could_make_has_all_the_time_there_is() -> None:
    """Given up early, it would be made twice at the same broker, and stored twice."""
    for topics, key in (({"t": {"a": 2}}, ""), (TWO_BROKERS, "customer")):
        world, producer = world_of(topics)
        world.play(producer.send(Message(topic="t", body=b"x", ordering_key=key), timeout=3.0))
        assert [call.timeout for call in world.calls_of(SEND)] == [3.0]


def repeated(byte: int, count: int) -> bytes:
    return bytes([byte]) * count


@pytest.mark.parametrize("chance", [0x00, 0x80, 0xFF])
def test_busy_brokers_are_given_longer_and_longer_when_all_of_them_are(chance: int) -> None:
    """Any part of the longest pause: who met them busy together does not come back together."""
    settings = ClientSettings(retries=5, backoff_seconds=0.01, backoff_seconds_max=0.5)
    world, _ = world_of(TWO_BROKERS)
    producer = SendFlows(settings, route_table(), partial(repeated, chance))
    world.answers[SEND] = says(ResponseCode.SYSTEM_BUSY, remark="[OVERLOAD]system busy")
    with pytest.raises(BrokerBusy, match="OVERLOAD") as caught:
        world.play(producer.send(Message(topic="t", body=b"x")))
    assert caught.value.retryable
    assert len(set(addresses(world)[:2])) == 2, "the other one is tried at once"
    longest = [0.04, 0.16, 0.5, 0.5]
    assert world.waits == pytest.approx([each * chance / 0xFF for each in longest])


@pytest.mark.parametrize("code", [2, 14, 215])
def test_every_way_to_say_busy_is_waited_for(code: int) -> None:
    world, producer = world_of({"t": {"a": 1}})
    world.answers[SEND] = says(code, remark="busy")
    with pytest.raises(BrokerBusy):
        world.play(producer.send(Message(topic="t", body=b"x")))
    assert len(world.waits) == 2
    assert len(addresses(world)) == 3


def test_a_broker_that_is_not_busy_is_given_at_least_half_of_the_pause() -> None:
    """One that was lost needs its time to come back: a pause of nothing would waste the try."""
    for chance in (0x00, 0xFF):
        world, _ = world_of({"t": {"a": 1}})
        producer = SendFlows(ClientSettings(), route_table(), partial(repeated, chance))
        world.answers[SEND] = fails(ConnectionLost("gone"))
        with pytest.raises(ConnectionLost):
            world.play(producer.send(Message(topic="t", body=b"x")))
        share = 0.5 if chance else 1.0
        assert world.waits == pytest.approx([0.05 * share, 0.2 * share])


def test_nobody_waits_for_a_try_that_there_is_no_time_for() -> None:
    settings = ClientSettings(backoff_seconds=10.0, backoff_seconds_max=10.0)
    world, producer = world_of({"t": {"a": 1}}, settings)
    world.answers[SEND] = fails(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        world.play(producer.send(Message(topic="t", body=b"x"), timeout=3.0))
    assert world.waits == []
    assert len(addresses(world)) == 1


def test_the_least_bad_of_bad_brokers_is_chosen() -> None:
    queues = [MessageQueue("t", name, 0) for name in "abc"]
    badness = {"a": 3.0, "b": 1.0, "c": 2.0}
    turns = RoundRobin(0)
    assert [turns.choose(queues, rank=badness.__getitem__).broker_name for _ in range(3)] == [
        *("b", "b", "b"),
    ]
    assert turns.choose(queues, "b", badness.__getitem__).broker_name == "c"


@pytest.mark.parametrize(
    ("took", "away"), [(0.01, 0), (0.54, 0), (0.6, 2), (2, 5), (3, 6), (5, 10), (60, 30)]
)
def test_a_broker_is_left_alone_the_longer_the_slower_it_was(took: float, away: float) -> None:
    """Golden: the table of Apache's `MQFaultStrategy`."""
    slow = SlowBrokers()
    slow.note_latency("a", took, now=100.0)
    assert slow.rank("a", 100.0) == away
    assert slow.rank("a", 100.0 + away) == 0
    assert slow.rank("b", 100.0) == 0


def test_a_quick_answer_makes_a_slow_broker_as_good_as_new() -> None:
    slow = SlowBrokers()
    slow.note_latency("a", 60.0, now=100.0)
    slow.note_latency("a", 0.01, now=101.0)
    assert slow.rank("a", 101.0) == 0


@pytest.mark.parametrize("body_size_max", [1000, 8 * 1024 * 1024])
def test_the_limit_of_bodies_can_be_set_and_holds_for_a_whole_batch(body_size_max: int) -> None:
    settings = ClientSettings(body_bytes_max=body_size_max, batch_bytes_max=1000)
    world, producer = world_of({"t": {"a": 1}}, settings)
    world.play(producer.send(Message(topic="t", body=bytes(body_size_max))))
    with pytest.raises(MessageRefused, match=f"{body_size_max} are allowed"):
        world.play(producer.send(Message(topic="t", body=bytes(body_size_max + 1))))
    halves = [Message(topic="t", body=bytes(body_size_max // 2)) for _ in range(2)]
    with pytest.raises(MessageRefused, match="bytes together"):
        world.play(producer.send_batch(halves))
    assert world.calls_of(BATCH) == []


@pytest.mark.parametrize("value", ["v", '"', "\x03"])
def test_what_is_allowed_always_fits_a_frame(value: str) -> None:
    """A frame that is too large would look like a fault of the broker."""
    world, producer = world_of(
        {"t" * 127: {"a": 1}}, ClientSettings(body_bytes_max=BODY_SIZE_LIMIT)
    )
    properties = {"p": value * 32_600}
    message = Message(topic="t" * 127, body=bytes(BODY_SIZE_LIMIT), properties=properties)
    world.play(producer.send(message))
    (call,) = world.calls_of(SEND)
    assert BODY_SIZE_LIMIT < len(encode_command(call.command)) <= FRAME_SIZE_MAX


def test_a_broker_whose_time_is_over_is_forgotten_when_another_one_is_slow() -> None:
    brokers = SlowBrokers()
    for at in range(100):
        brokers.note_latency(f"broker-{at}", 1.0, now=10.0 * at)
    assert len(brokers.until) == 1


def test_the_turns_of_very_many_topics_begin_anew() -> None:
    turns = RoundRobin(0)
    for at in range(3 * TOPICS_MAX // 2):
        turns.choose([MessageQueue(f"t{at}", "a", 0)])
    assert len(turns._next) == TOPICS_MAX // 2
