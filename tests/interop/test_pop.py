"""Consumption by the message: Apache's client at both brokers, and one store in both hands."""

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import SERVER_JARS
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.pop_world import Taken, ack_header, taken
from tests.broker_core.raw_client import RawClient
from tests.interop.java_shell import run_source
from tests.waiting import allowed_seconds, until
from tests.with_java import INTEROP, Broker, skipped_without_java

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command

TOPIC, GROUP = "orders", "payments"
SETTINGS = {"brokerName": "b"}
SECONDS_MAX = 180.0
HANDED_MS = 100_000  # a broker stops and another one starts in this time
LATE_SECONDS_MAX = 12.0  # Apache brings messages back some seconds late

pytestmark = INTEROP


def apache(directory: Path) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, "ASYNC_FLUSH", {**SETTINGS, "timerWheelEnable": "true"})


def ours(directory: Path) -> ReliableMQBroker:
    return ReliableMQBroker(directory, settings=SETTINGS)


BROKERS: dict[str, Callable[[Path], Broker]] = {"apache": apache, "ours": ours}


class Popper:
    """A consumer that pops by raw requests."""

    def __init__(self, client: RawClient) -> None:
        self.client = client

    def create(self, topic: str = TOPIC, queues: int = 1) -> None:
        ext = {
            "topic": topic,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "defaultTopic": "TBW102",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        assert self.client.ask(Ask.UPDATE_AND_CREATE_TOPIC, ext).code == 0

    def send(self, *bodies: bytes, topic: str = TOPIC, queue_id: int = 0) -> None:
        for body in bodies:
            ext = {
                "a": "p",
                "b": topic,
                "c": "TBW102",
                "d": 4,
                "e": queue_id,
                "f": 0,
                "g": int(time.time() * 1000),
                "h": 0,
                "i": "",
            }
            answer = self.client.ask(Ask.SEND_MESSAGE_V2, ext, body)
            assert answer.code == 0, answer.remark

    def header(self, **changes: object) -> dict[str, object]:
        return {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 10_000,
            "pollTime": 0,
            "bornTime": int(time.time() * 1000),
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
            **changes,
        }

    def ask_pop(self, **changes: object) -> Command:
        return self.client.ask(Ask.POP_MESSAGE, self.header(**changes))

    def pop(self, count: int = 1, **changes: object) -> list[Taken]:
        """Pop until so many messages have come; Apache shows a message a moment after its send."""
        found: list[Taken] = []

        def has_come() -> bool:
            found.extend(taken(self.ask_pop(maxMsgNums=count - len(found), **changes)))
            return len(found) >= count

        until(has_come, lambda: f"{len(found)} of {count} came", seconds=SECONDS_MAX)
        return sorted(found, key=lambda each: each.body)

    def ack(self, message: Taken, **changes: object) -> Command:
        return self.client.ask(Ask.ACK_MESSAGE, ack_header(message, **changes))

    def extend(self, message: Taken, invisible_ms: int) -> Command:
        header = {**ack_header(message), "invisibleTime": invisible_ms}
        return self.client.ask(Ask.CHANGE_MESSAGE_INVISIBLETIME, header)


@pytest.fixture(scope="module", params=list(BROKERS))
def popper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Popper]:
    with skipped_without_java():
        directory = tmp_path_factory.mktemp(f"pop-{request.param}")
        with BROKERS[request.param](directory) as broker, RawClient(broker.address) as client:
            yield Popper(client)


def test_messages_are_popped_and_come_back(popper: Popper) -> None:
    popper.create()
    popper.send(b"a", b"b", b"c")
    a, b, _ = popper.pop(3)
    assert (a.handle.queue_id, a.handle.offset) == (0, 0)
    assert popper.ack(b).code == 0
    began = time.monotonic()

    again = popper.pop(2)

    assert [each.body for each in again] == [b"a", b"c"]
    assert 8.0 <= time.monotonic() - began <= allowed_seconds(10.0 + LATE_SECONDS_MAX)
    for message in again:
        assert message.topic == f"%RETRY%{GROUP}_{TOPIC}"
        assert message.record.topic == TOPIC
        assert message.record.reconsume_times == 1
        assert message.record.property_map()["1ST_POP_TIME"] == str(a.handle.popped_ms)
        assert popper.ack(message).code == 0


def test_a_message_is_extended(popper: Popper) -> None:
    topic = "extended"
    popper.create(topic)
    popper.send(b"x", topic=topic)
    (message,) = popper.pop(topic=topic)
    answer = popper.extend(message, 20_000)
    assert answer.code == 0
    assert answer.ext_fields["invisibleTime"] == "20000"
    assert answer.ext_fields["reviveQid"] == str(message.handle.revive_queue)
    began = time.monotonic()

    popper.pop(topic=topic)

    assert 18.0 <= time.monotonic() - began <= allowed_seconds(20.0 + LATE_SECONDS_MAX)


def test_order_is_kept(popper: Popper) -> None:
    topic = "in_order"
    popper.create(topic)
    popper.send(b"1", b"2", b"3", topic=topic)
    wish = {"topic": topic, "order": "true"}
    first, second = popper.pop(2, attemptId="one", **wish)
    assert first.handle.revive_queue == 999
    same = taken(popper.ask_pop(maxMsgNums=2, attemptId="one", **wish))
    assert [each.body for each in same] == [b"1", b"2"]
    assert popper.ask_pop(attemptId="two", **wish).code == 210
    for message in same:
        assert popper.ack(message).code == 0
    assert [each.body for each in popper.pop(1, attemptId="three", **wish)] == [b"3"]
    assert first.body == b"1"
    assert second.body == b"2"


REFUSALS: list[tuple[str, int, dict[str, object]]] = [
    ("no topic", Ask.POP_MESSAGE, {"topic": "missing"}),
    ("no queue", Ask.POP_MESSAGE, {"queueId": 7}),
    ("too many", Ask.POP_MESSAGE, {"maxMsgNums": 33}),
    ("too late", Ask.POP_MESSAGE, {"bornTime": 1}),
    ("bad filter", Ask.POP_MESSAGE, {"exp": "||"}),
    ("no topic to ack", Ask.ACK_MESSAGE, {"topic": "missing"}),
    ("no queue to ack", Ask.ACK_MESSAGE, {"queueId": 7}),
    ("no message to ack", Ask.ACK_MESSAGE, {"offset": 10**9}),
    ("no handle", Ask.ACK_MESSAGE, {"extraInfo": "x"}),
    ("no topic to extend", Ask.CHANGE_MESSAGE_INVISIBLETIME, {"topic": "missing"}),
    ("no queue to extend", Ask.CHANGE_MESSAGE_INVISIBLETIME, {"queueId": 7}),
    ("no message to extend", Ask.CHANGE_MESSAGE_INVISIBLETIME, {"offset": 10**9}),
]
CODES = {
    "no topic": 17,
    "no queue": 29,
    "too many": 29,
    "too late": 210,
    "bad filter": 23,
    "no topic to ack": 17,
    "no queue to ack": 13,
    "no message to ack": 208,
    "no handle": 1,
    "no topic to extend": 17,
    "no queue to extend": 13,
    "no message to extend": 208,
}


@pytest.mark.parametrize(("name", "code", "changes"), REFUSALS)
def test_what_cannot_be_is_refused_alike(
    popper: Popper, name: str, code: int, changes: dict[str, object]
) -> None:
    popper.create("refused")
    handle = {"extraInfo": f"0 {int(time.time() * 1000)} 10000 1 0 b 0 0", "offset": 0}
    header = {**popper.header(topic="refused"), **handle, "queueId": 0, **changes}

    assert popper.client.ask(code, header).code == CODES[name]


def test_many_acknowledgements_in_one_request(popper: Popper) -> None:
    topic = "batched"
    popper.create(topic)
    popper.send(b"1", b"2", b"3", topic=topic)
    messages = popper.pop(3, topic=topic)
    acks = [
        {
            "c": GROUP,
            "t": topic,
            "r": "0",
            "so": each.handle.start_offset,
            "q": 0,
            "rq": each.handle.revive_queue,
            "pt": each.handle.popped_ms,
            "it": 10_000,
            "b": base64.b64encode(
                (1 << (each.record.queue_offset - each.handle.start_offset)).to_bytes(1, "little")
            ).decode(),
        }
        for each in messages[:2]
    ]
    body = json.dumps({"acks": acks, "brokerName": "b"}).encode()

    assert popper.client.ask(Ask.BATCH_ACK_MESSAGE, {}, body).code == 0

    assert [each.body for each in popper.pop(topic=topic)] == [b"3"]


def wait_for_offsets(directory: Path) -> None:
    """Return when it is saved that six messages were popped: both save every five seconds."""
    file = directory / "store/config/consumerOffset.json"
    is_saved = re.compile(rf'"{TOPIC}@{GROUP}":\{{\s*"?0"?:6').search
    until(
        lambda: file.exists() and is_saved(file.read_text()) is not None,
        lambda: "the offsets are not saved",
        seconds=SECONDS_MAX,
    )


def hand_over(
    first: Broker, second: Broker, directory: Path, *, is_killed: bool
) -> tuple[list[bytes], list[bytes], float]:
    """Pop at one broker, and go on at the other; return what came when, and how late."""
    first.start()
    try:
        with RawClient(first.address) as client:
            popper = Popper(client)
            popper.create()
            popper.send(*(b"%d" % number for number in range(6)))
            messages = popper.pop(6, invisibleTime=HANDED_MS)
            popped_ms = messages[0].handle.popped_ms
            assert popper.ack(messages[0]).code == 0
            assert popper.extend(messages[5], HANDED_MS + 20_000).code == 0
            wait_for_offsets(directory)
    finally:
        if is_killed:
            kill(first)
        else:
            first.stop()
    with second, RawClient(second.address) as client:
        popper = Popper(client)
        assert popper.ack(messages[1]).code == 0
        assert time.time() * 1000 < popped_ms + HANDED_MS, "the machine is too slow for this test"
        early = [each.body for each in taken(popper.ask_pop())]
        again = popper.pop(3, invisibleTime=120_000)
        late = time.time() - (popped_ms + HANDED_MS) / 1000
        extended = popper.pop(1, invisibleTime=120_000)
        return early, [each.body for each in [*again, *extended]], late


def kill(broker: Broker) -> None:
    if isinstance(broker, ReliableMQBroker):
        broker.kill()
    else:
        broker.broker.kill()
        if broker.name_server:
            broker.name_server.stop()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("way", ["from apache", "to apache"])
def test_a_store_changes_hands_while_messages_are_popped(
    tmp_path: Path, way: str, *, is_killed: bool
) -> None:
    brokers: list[Broker] = [apache(tmp_path), ours(tmp_path)]
    if way == "to apache":
        brokers.reverse()
    first, second = brokers
    with skipped_without_java():
        early, again, late = hand_over(first, second, tmp_path, is_killed=is_killed)

    assert early == []
    assert again == [b"2", b"3", b"4", b"5"]
    assert -1.0 <= late <= allowed_seconds(20.0 if way == "to apache" else 3.0)


@pytest.fixture(scope="module", params=list(BROKERS))
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    directory = tmp_path_factory.mktemp(f"pop-java-{request.param}")
    with skipped_without_java(), BROKERS[request.param](directory) as broker:
        lines = run_source(
            "PopConsumption",
            directory,
            broker.name_server_address,
            broker.address,
            jars=SERVER_JARS,
        )
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def test_apaches_push_consumer_pops(told: dict[str, str]) -> None:
    assert told == {
        "shared": "200",
        "most often": "1",
        "both work": "true",
        "not handed out": "0",
        "attempts": "[0, 1, 2]",
        "topics": "[popped]",
    }
