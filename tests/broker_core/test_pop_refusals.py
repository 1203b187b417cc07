"""Bad requests of those who consume by the message: Apache's code, one text, and nothing kept."""

import base64
import json
from collections.abc import Iterator

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, there
from tests.broker_core.pop_world import PopWorld, ack_header

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer


@pytest.fixture
def world() -> Iterator[PopWorld]:
    world = PopWorld()
    world.send(b"0")
    yield world
    world.check()


def kept(world: PopWorld) -> tuple[object, ...]:
    """Return the sizes of everything that a request could make grow."""
    state = world.state
    return (
        state.store.log.end,
        len(state.popped.in_flight),
        len(state.popped.acks),
        len(state.pops.waiting),
        len(state.orders),
        len(list(state.offsets.rows())),
    )


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"topic": "missing"}, Answer.TOPIC_NOT_EXIST, "topic[missing] not exist"),
        ({"queueId": 1}, Answer.INVALID_PARAMETER, "queueId[1] is illegal"),
        ({"maxMsgNums": 0}, Answer.INVALID_PARAMETER, "ask for 1 to 32"),
        ({"maxMsgNums": -3}, Answer.INVALID_PARAMETER, "ask for 1 to 32"),
        ({"maxMsgNums": 33}, Answer.INVALID_PARAMETER, "num is greater than 32"),
        ({"bornTime": 1}, Answer.POLLING_TIMEOUT, "pop message is timeout too much"),
        ({"maxMsgNums": "many"}, Answer.SYSTEM_ERROR, "maxMsgNums"),
        ({"consumerGroup": None}, Answer.SYSTEM_ERROR, "consumerGroup"),
        ({"invisibleTime": None}, Answer.SYSTEM_ERROR, "invisibleTime"),
        ({"invisibleTime": 2**63}, Answer.SYSTEM_ERROR, "invisibleTime"),
        ({"invisibleTime": 259_200_001}, Answer.INVALID_PARAMETER, "timerMaxDelaySec"),
        ({"attemptId": "a" * 256}, Answer.INVALID_PARAMETER, "use at most 255"),
        ({"exp": "||"}, Answer.SUBSCRIPTION_PARSE_FAILED, "subscription failed"),
        ({"exp": "a >", "expType": "SQL92"}, Answer.SYSTEM_ERROR, "does not support"),
    ],
)
def test_a_pop_that_cannot_be_is_refused(
    world: PopWorld, changes: dict[str, object], code: int, text: str
) -> None:
    before = kept(world)

    answer = world.ask(Ask.POP_MESSAGE, world.pop_header(**changes))

    assert answer.code == code
    assert text in there(answer.remark)
    assert kept(world) == before


def test_a_group_that_does_not_exist_is_refused() -> None:
    world = PopWorld(autoCreateSubscriptionGroup="false")

    answer = world.ask(Ask.POP_MESSAGE, world.pop_header())

    assert answer.code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST


def test_nothing_is_popped_without_timers() -> None:
    world = PopWorld(timerWheelEnable="false")

    answer = world.ask(Ask.POP_MESSAGE, world.pop_header())

    assert answer.code == Answer.SYSTEM_ERROR
    assert "timerWheelEnable is false" in there(answer.remark)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"topic": "missing"}, Answer.TOPIC_NOT_EXIST, "topic[missing] not exist"),
        ({"queueId": 1}, Answer.MESSAGE_ILLEGAL, "queueId[1] is illegal"),
        ({"queueId": -1}, Answer.MESSAGE_ILLEGAL, "queueId[-1] is illegal"),
        ({"offset": 2}, Answer.NO_MESSAGE, "store:0~1"),
        ({"offset": -1}, Answer.NO_MESSAGE, "store:0~1"),
        ({"extraInfo": ""}, Answer.SYSTEM_ERROR, "pop the message again"),
        ({"extraInfo": "0 1 2"}, Answer.SYSTEM_ERROR, "has no revive queue"),
        ({"extraInfo": "0 x 2 3 0 b 0"}, Answer.SYSTEM_ERROR, "no number"),
        ({"extraInfo": f"0 {10**30} 2 3 0 b 0"}, Answer.SYSTEM_ERROR, "no number"),
        ({"extraInfo": None}, Answer.SYSTEM_ERROR, "extraInfo"),
    ],
)
def test_an_acknowledgement_that_cannot_be_is_refused(
    world: PopWorld, changes: dict[str, object], code: int, text: str
) -> None:
    (message,) = world.pop()
    before = kept(world)
    header = {**ack_header(message), **changes}

    answer = world.ask(Ask.ACK_MESSAGE, header)

    assert answer.code == code
    assert text in there(answer.remark)
    assert kept(world) == before
    if changes.get("offset") == 2:
        header["offset"] = 1
    answer = world.ask(Ask.CHANGE_MESSAGE_INVISIBLETIME, {**header, "invisibleTime": 1_000})
    assert answer.code == code
    assert kept(world) == before


@pytest.mark.parametrize(
    "handle",
    [
        "0 1 10000 3 0 b 0 0",  # of a time that is over
        f"0 {START_MS * 2} 10000 3 0 b 0 0",  # of a time to come
        f"0 {START_MS} {10**12} 3 0 b 0 0",
        f"0 {START_MS} 10000 3 0 other 0 0",  # of another broker
        f"0 {START_MS} 10000 8 0 b 0 0",  # of a queue that the revive topic does not have
        f"0 {START_MS} 10000 -1 0 b 0 0",
    ],
)
def test_a_handle_that_no_pop_has_given_is_confirmed_and_changes_nothing(
    world: PopWorld, handle: str
) -> None:
    (message,) = world.pop()
    world.pass_time(2_000)
    before = kept(world)[0]

    assert world.ack(message, extraInfo=handle).code == Answer.SUCCESS

    assert kept(world)[0] == before
    world.pass_time(20_000)
    assert world.bodies() == [b"0"]


def test_an_acknowledgement_of_an_unknown_group_changes_nothing(world: PopWorld) -> None:
    (message,) = world.pop()
    before = kept(world)[0]

    assert world.ack(message, consumerGroup="stranger").code == Answer.SUCCESS

    assert kept(world)[0] == before


def test_acknowledging_twice_is_confirmed_twice(world: PopWorld) -> None:
    (message,) = world.pop()

    assert [world.ack(message).code for _ in range(2)] == [Answer.SUCCESS] * 2

    world.pass_time(20_000)
    assert world.bodies() == []


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"", Answer.NO_MESSAGE, ""),
        (b"{}", Answer.NO_MESSAGE, ""),
        (b'{"acks":[]}', Answer.NO_MESSAGE, ""),
        (b"no json", Answer.SYSTEM_ERROR, ""),
        (b'{"acks":[{}]}', Answer.SYSTEM_ERROR, "`c`"),
        (b'{"acks":"x"}', Answer.SYSTEM_ERROR, "acks"),
    ],
)
def test_a_batch_that_cannot_be_read_is_refused(
    world: PopWorld, body: bytes, code: int, text: str
) -> None:
    answer = world.ask(Ask.BATCH_ACK_MESSAGE, {}, body)

    assert answer.code == code
    assert text in (answer.remark or "")


def batch(**changes: object) -> bytes:
    ack = {
        "c": GROUP,
        "t": TOPIC,
        "r": "0",
        "so": 0,
        "q": 0,
        "rq": 1,
        "pt": START_MS,
        "it": 10_000,
        "b": base64.b64encode(b"\x01").decode(),
        **changes,
    }
    return json.dumps({"acks": [ack], "brokerName": "b"}).encode()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"r": "7"}, Answer.SYSTEM_ERROR),
        ({"b": "%"}, Answer.SYSTEM_ERROR),
        ({"t": "missing"}, Answer.SUCCESS),
        ({"q": 77}, Answer.SUCCESS),
        ({"q": -1}, Answer.SUCCESS),
        ({"so": 10**15}, Answer.SUCCESS),
        ({"so": -(10**15)}, Answer.SUCCESS),
        ({"b": base64.b64encode(bytes(100_000) + b"\x01").decode()}, Answer.SUCCESS),
        ({"b": ""}, Answer.SUCCESS),
    ],
)
def test_a_batch_about_what_is_not_there_stores_nothing(
    world: PopWorld, changes: dict[str, object], code: int
) -> None:
    world.pop()
    before = kept(world)[0]

    assert world.ask(Ask.BATCH_ACK_MESSAGE, {}, batch(**changes)).code == code

    assert kept(world)[0] == before


def test_too_many_waiting_pops_are_refused(
    world: PopWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_mq.broker_core.delivery.waiting_pops.OF_CONNECTION_MAX", 3)
    world.pop()
    codes = [
        world.begin(Ask.POP_MESSAGE, world.pop_header(pollTime=15_000), of=2) for _ in range(4)
    ]

    assert codes[:3] == [None] * 3
    assert there(codes[3]).code == Answer.POLLING_FULL
    assert len(world.state.pops.waiting) == 3


def test_a_request_that_only_waits_is_refused_with_a_long_attempt_id(world: PopWorld) -> None:
    header = world.pop_header(attemptId="a" * 256, pollTime=15_000)

    assert world.ask(Ask.NOTIFICATION, header).code == Answer.INVALID_PARAMETER
    assert world.ask(Ask.NOTIFICATION, {**header, "attemptId": "a" * 255}).code == Answer.SUCCESS
    assert len(world.state.notifications.waiting) == 0


@pytest.mark.parametrize("code", [Ask.POP_MESSAGE, Ask.NOTIFICATION])
def test_texts_of_waiting_requests_count_as_memory(
    world: PopWorld, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("reliable_mq.broker_core.delivery.waiting_pops.SIZE_MAX", 40_000)
    world.pop()
    header = world.pop_header(pollTime=15_000, expType="T" * 6_000, exp="")
    if code == Ask.NOTIFICATION:
        header["attemptId"] = "a" * 255
    held = 0
    while held < 30 and world.begin(code, header, of=2) is None:
        held += 1

    assert held == (1 if code == Ask.POP_MESSAGE else 15)


@pytest.mark.parametrize("code", [Ask.POP_MESSAGE, Ask.NOTIFICATION])
@pytest.mark.parametrize("ahead_ms", [0, 2**40])
def test_no_request_waits_for_more_than_five_minutes(
    world: PopWorld, code: int, ahead_ms: int
) -> None:
    world.ack(world.pop()[0])
    header = world.pop_header(pollTime=2**40, bornTime=world.now_ms + ahead_ms)
    assert world.begin(code, header, of=2) is None

    world.pass_time(299_000, step=1_000)
    assert not world.inbox.get(2)
    world.pass_time(1_000)

    assert len(world.inbox[2]) == 1


def test_a_group_has_a_share_of_the_pops_that_may_wait(
    world: PopWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_mq.broker_core.delivery.waiting_pops.OF_SHARE_MAX", 3)
    world.pop()
    header = world.pop_header(pollTime=15_000)
    for of in (2, 3, 4):
        assert world.begin(Ask.POP_MESSAGE, header, of=of) is None

    refused = there(world.begin(Ask.POP_MESSAGE, header, of=5))

    assert refused.code == Answer.POLLING_FULL
    others = {**header, "consumerGroup": "others", "initMode": 1}
    assert world.ask(Ask.POP_MESSAGE, {**others, "pollTime": 0}).code in (0, 210)
    assert world.begin(Ask.POP_MESSAGE, others, of=5) is None
    world.core.disconnected(3)
    assert world.begin(Ask.POP_MESSAGE, header, of=5) is None
    world.check()


def test_a_group_has_a_share_of_the_memory_of_waiting_pops(
    world: PopWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_mq.broker_core.delivery.waiting_pops.SIZE_OF_SHARE_MAX", 40_000)
    world.pop()
    header = world.pop_header(pollTime=15_000, expType="T" * 6_000, exp="")

    assert world.begin(Ask.POP_MESSAGE, header, of=2) is None

    assert there(world.begin(Ask.POP_MESSAGE, header, of=3)).code == Answer.POLLING_FULL


@pytest.mark.parametrize("invisible_ms", [259_200_001, 2**62])
def test_a_message_cannot_be_hidden_for_ever(world: PopWorld, invisible_ms: int) -> None:
    (message,) = world.pop()

    answer = world.extend(message, invisible_ms)

    assert answer.code == Answer.INVALID_PARAMETER


def test_a_slave_hands_out_nothing() -> None:
    world = PopWorld()
    world.send(b"0")
    (message,) = world.pop()
    world.stop()
    world.properties.update(brokerRole="SLAVE", brokerId="1")
    world.start()

    for code, header in (
        (Ask.POP_MESSAGE, world.pop_header()),
        (Ask.ACK_MESSAGE, ack_header(message)),
        (Ask.CHANGE_MESSAGE_INVISIBLETIME, {**ack_header(message), "invisibleTime": 1}),
    ):
        answer = world.ask(code, header)
        assert answer.code == Answer.SYSTEM_BUSY
        assert "slave" in there(answer.remark)
