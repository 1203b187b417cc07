"""The first try of a send, made without a flow: what it sends, and what becomes of its outcome."""

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.client.script import World, random_bytes, route_table, routes_answer, says

from reliable_mq.client.connecting.security import Credentials
from reliable_mq.client.connecting.signature import Signing
from reliable_mq.client.flow import Instant
from reliable_mq.client.sending.outgoing import SenderFields, SendFrames, prepared_message
from reliable_mq.client.sending.producer import PendingSend, SendFlows
from reliable_mq.client.sending.send_retries import SendTarget
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    ConnectionLost,
    MessageRefused,
    ProtocolError,
    Refused,
    RemoteError,
    RequestTimeout,
    Unavailable,
)
from reliable_mq.message import Message, MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, encode_command, reply, request
from reliable_mq.wire.request_signature import add_signature

SEND = RequestCode.SEND_MESSAGE_V2
TWO_BROKERS = {"t": {"a": 1, "b": 1}}
STORED = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "7"}
# Marks of templates are ten digits from 1000000000 on; a percent sign stands for a form.
NAMES = st.text("%|-_09azAZ", min_size=1, max_size=10) | st.sampled_from(
    ["1000000000", "x1000000001-1000000006", "%RETRY%1000000003", "%d%b%s%%"]
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20)


def world_of(
    topics: Mapping[str, Mapping[str, int]] = TWO_BROKERS, settings: ClientSettings | None = None
) -> tuple[World, SendFlows]:
    """Return a world whose brokers store everything, and a producer that knows the routes."""
    world = World(
        {RequestCode.GET_ROUTEINFO_BY_TOPIC: routes_answer(topics), SEND: says(ext=STORED)}
    )
    settings = settings or ClientSettings()
    routes = route_table(settings)
    for topic in topics:
        world.play(routes.of(topic))
    return world, SendFlows(settings, routes, random_bytes)


def begun(
    world: World, producer: SendFlows, message: Message | None = None, timeout: float = 3.0
) -> tuple[PendingSend, SendTarget]:
    """Return a send that was begun, and where its first try goes."""
    instant = Instant(world.seconds, world.epoch_ms, 0.0)
    single = producer.begin(message or Message(topic="t", body=b"x"), instant, timeout, None)
    assert single.aim is not None
    return single, single.aim


def signing_of(account: tuple[str, str, str] | None) -> Signing | None:
    """Return what signs the requests of an account: key, secret and token."""
    if account is None:
        return None
    key, secret, token = account
    return Signing(Credentials(access_key=key, secret_key=secret, security_token=token))


def answer(code: int = 0, ext: Mapping[str, str] = STORED) -> Command:
    return reply(request(SEND), code, "words", ext)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine anything is
@given(
    group=NAMES,
    topic=NAMES,
    queue_id=st.integers(0, 2**31 - 1),
    now_ms=st.integers(0, 2**53),
    opaque=st.integers(0, 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    body=st.binary(min_size=1, max_size=20),
    tag=TEXTS,
    key=TEXTS,
    properties=st.dictionaries(TEXTS.map("own".__add__), TEXTS, max_size=3),
    account=st.none() | st.tuples(NAMES, NAMES, st.just("") | NAMES),
)
def test_a_frame_from_a_template_is_the_one_that_is_encoded_in_general(
    group: str,
    topic: str,
    queue_id: int,
    now_ms: int,
    opaque: int,
    flag: int,
    body: bytes,
    tag: str,
    key: str,
    properties: dict[str, str],
    account: tuple[str, str, str] | None,
) -> None:
    sender = SenderFields(group, 4)
    queue = MessageQueue(topic, "a", queue_id)
    message = Message(
        topic="t", body=body, tag=tag, ordering_key=key, flag=flag, properties=properties
    )
    out = prepared_message(message, now_ms, random_bytes)
    frames = SendFrames(sender, signing_of(account))

    general = sender.command(out, queue, now_ms)
    general.opaque = opaque
    if account is not None:
        add_signature(general, *account)

    assert frames.render(out, queue, now_ms)(opaque) == encode_command(general)
    assert frames.render(out, queue, now_ms)(opaque) == encode_command(general), "the second, too"


def test_templates_are_made_again_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reliable_mq.client.sending.outgoing.TEMPLATES_MAX", 2)
    sender = SenderFields("g", 4)
    frames = SendFrames(sender)
    out = prepared_message(Message(topic="t", body=b"x"), 1, random_bytes)
    for queue_id in [0, 1, 2, 3, 0]:
        queue = MessageQueue("t", "a", queue_id)
        frame = frames.render(out, queue, 1)(0)
        assert frame == encode_command(sender.command(out, queue, 1))
        assert len(frames._templates) <= 2


def test_the_first_try_of_a_flow_asks_for_the_same_as_the_frame_says() -> None:
    world, producer = world_of()
    single, aim = begun(world, producer, Message(topic="t", body=b"hello", tag="paid"))

    result = world.play(producer.continue_send(single))

    (call,) = world.calls_of(SEND)
    call.command.opaque = 9
    frame = producer.frames.render(single.out, aim.queue, single.begun.epoch_ms)(9)
    assert encode_command(call.command) == frame
    assert (call.address, call.timeout) == (aim.address, aim.seconds)
    assert result == producer.result_of_reply(single, aim, answer(), world.seconds)


@pytest.mark.parametrize(
    "message",
    [
        Message(topic="t", body=b"x", delay_level=3, keys=("a", "b"), flag=7),
        Message(topic="t", body=b"x", ordering_key="k", properties={"colour": "gr\u00fcn\u2028"}),
        Message(topic="t", body=bytearray(b"x"), message_id="MINE"),  # type: ignore[arg-type]
        Message(topic="t", body=memoryview(b"xy"), message_id="MINE"),  # type: ignore[arg-type]
    ],
)
def test_every_kind_of_plain_message_has_one_form(message: Message) -> None:
    world, producer = world_of()
    single, aim = begun(world, producer, message)
    world.play(producer.continue_send(single))
    (call,) = world.calls_of(SEND)
    frame = producer.frames.render(single.out, aim.queue, single.begun.epoch_ms)(0)
    assert frame == encode_command(call.command)


def test_what_must_be_asked_or_done_before_has_no_first_try_of_its_own() -> None:
    world, producer = world_of(settings=ClientSettings(compression="zlib", compress_from_bytes=100))
    instant = Instant(world.seconds, world.epoch_ms, 0.0)

    def aim_of(message: Message, timeout: float = 3.0, after: float = 0.0) -> SendTarget | None:
        at = Instant(instant.seconds + after, instant.epoch_ms, 0.0)
        return producer.begin(message, at, timeout, None).aim

    plain = Message(topic="t", body=b"x")
    assert aim_of(plain)
    assert not aim_of(plain, timeout=0), "there is no time left"
    assert not aim_of(plain, after=31), "its route may have changed"
    assert not aim_of(Message(topic="unknown", body=b"x"))
    assert not aim_of(Message(topic="t", body=bytes(100))), "it is to be compressed"


def test_a_message_that_is_refused_before_it_is_sent_is_refused_at_once() -> None:
    world, producer = world_of()
    with pytest.raises(MessageRefused, match="body is empty"):
        begun(world, producer, Message(topic="t", body=b""))
    elsewhere = MessageQueue("other", "a", 0)
    with pytest.raises(MessageRefused, match="cannot go to a queue of other"):
        producer.begin(
            Message(topic="t", body=b"x"), Instant(world.seconds, 0, 0.0), 3.0, elsewhere
        )


def test_a_first_try_that_finds_its_broker_busy_is_followed_by_one_at_the_other() -> None:
    world, producer = world_of()
    single, aim = begun(world, producer)
    busy = answer(ResponseCode.SYSTEM_BUSY, {})

    assert producer.result_of_reply(single, aim, busy, world.seconds) is None
    result = world.play(producer.continue_send(single, busy))

    (call,) = world.calls_of(SEND)
    assert call.address != aim.address
    assert result.message_id == single.out.message.message_id
    assert call.command.ext_fields["i"] == single.out.properties.decode(), "the id is kept"


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), RequestTimeout("late")])
def test_a_first_try_without_an_answer_counts_as_one_and_its_broker_as_slow(
    failure: Unavailable,
) -> None:
    world, producer = world_of(settings=ClientSettings(retries=1))
    single, aim = begun(world, producer)
    world.answers[SEND] = says(ResponseCode.SYSTEM_ERROR)
    with pytest.raises(RemoteError):
        world.play(producer.continue_send(single, failure))
    assert len(world.calls_of(SEND)) == 1, "two tries in all"
    world.calls.clear()
    world.answers[SEND] = says(ext=STORED)
    for _ in range(4):
        world.play(producer.send(Message(topic="t", body=b"x")))
    assert aim.address not in {call.address for call in world.calls_of(SEND)}


def test_without_retries_the_failure_of_the_first_try_is_the_failure_of_the_send() -> None:
    world, producer = world_of(settings=ClientSettings(retries=0))
    single, _ = begun(world, producer)
    failure = RequestTimeout("late")
    with pytest.raises(RequestTimeout) as raised:
        world.play(producer.continue_send(single, failure))
    assert raised.value is failure
    assert world.calls_of(SEND) == []


def test_time_that_the_first_try_took_is_not_given_again() -> None:
    world, producer = world_of({"t": {"a": 1}}, ClientSettings(retries=5))
    single, _ = begun(world, producer, timeout=3.0)
    world.seconds += 2.9
    world.play(producer.continue_send(single, answer(ResponseCode.SYSTEM_ERROR, {})))
    (call,) = world.calls_of(SEND)
    assert call.timeout < 0.1


def test_a_refusal_that_stays_one_and_a_reply_that_does_not_read_are_told_at_once() -> None:
    world, producer = world_of()
    single, aim = begun(world, producer)
    with pytest.raises(Refused) as refused:
        producer.result_of_reply(single, aim, answer(ResponseCode.MESSAGE_ILLEGAL), world.seconds)
    assert refused.value.tries == 1
    with pytest.raises(ProtocolError):
        producer.result_of_reply(single, aim, answer(ext={"msgId": "x"}), world.seconds)
    with pytest.raises(ProtocolError, match="the broker reports 2 as stored"):
        producer.result_of_reply(single, aim, answer(ext={**STORED, "msgId": "x,y"}), world.seconds)


def test_a_first_try_takes_its_turn_among_the_queues_once() -> None:
    world, producer = world_of({"t": {"a": 4}})
    queues = []
    for at in range(8):
        single, aim = begun(world, producer)
        if at % 2:
            world.play(producer.continue_send(single))
        queues.append(aim.queue.queue_id)
    assert sorted(queues[:4]) == sorted(queues[4:]) == [0, 1, 2, 3]
