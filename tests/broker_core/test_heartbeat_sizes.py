"""What heartbeats leave in memory: counted, and limited for one connection and for all."""

import tracemalloc
from random import Random
from typing import Any

import msgspec
import pytest
from tests.broker_core.broker_world import GROUP, BrokerWorld

from reliable_mq.broker_core.clients import ClientLimits, ClientTable
from reliable_mq.broker_core.needed_topics import ensure_retry_topic
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command

Rows = list[dict[str, object]]


def tagged(topics: int, tags: int, kind: str = "t") -> Rows:
    """Return subscriptions with so many tags each, all of them different."""
    return [
        {
            "topic": f"topic-{topic}",
            "subVersion": 1,
            "tagsSet": [f"{kind}{topic}-{tag}" for tag in range(tags)],
            "codeSet": [1_000_000 * topic + tag for tag in range(tags)],
        }
        for topic in range(topics)
    ]


def beat(world: BrokerWorld, group: str, rows: Rows, of: int = 1, **more: object) -> Command:
    return world.subscribe(of=of, group=group, subscriptionDataSet=rows, **more)


def produce(world: BrokerWorld, group: str, client: str, of: int = 1) -> Command:
    body = {"clientID": client, "producerDataSet": [{"groupName": group}]}
    return world.ask(Ask.HEART_BEAT, {}, fastjson.dumps(body), of=of)


def refused_at(world: BrokerWorld, count: int, connections: int, rows: Rows) -> int:
    """Return how many heartbeats are taken, each of another group, until one is refused."""
    for number in range(count):
        answer = beat(world, f"group-{number}", rows, of=1 + number % connections)
        if answer.code != Code.SUCCESS:
            assert answer.code == Code.SYSTEM_BUSY
            assert world.state.clients.consumer_group(f"group-{number}") is None
            return number
    return count


def test_heartbeats_of_one_connection_keep_so_much_memory_and_no_more(world: BrokerWorld) -> None:
    rows = tagged(40, 1_000)
    assert 3 <= refused_at(world, 20, 1, rows) < 10
    assert beat(world, "small", [{"topic": "t"}], of=2).code == Code.SUCCESS


def test_heartbeats_of_all_connections_keep_so_much_memory_and_no_more(
    world: BrokerWorld,
) -> None:
    world.state.clients = ClientTable(ClientLimits(size_of_all=1_000_000))
    assert refused_at(world, 100, 50, tagged(1, 1_000)) < 10
    world.core.disconnected(1)
    assert beat(world, "new", tagged(1, 500), of=60).code == Code.SUCCESS
    world.state.clients.invariants()


@pytest.mark.parametrize("field", ["client_id", "consumeType", "messageModel"])
def test_long_texts_of_heartbeats_are_counted(world: BrokerWorld, field: str) -> None:
    world.state.clients = ClientTable(ClientLimits(size_of_one=1_000_000))
    text: dict[str, Any] = {field: "x" * 300_000}
    codes = [beat(world, f"g{number}", [], **text).code for number in range(4)]
    assert codes == [Code.SUCCESS] * 3 + [Code.SYSTEM_BUSY]


def test_producers_are_counted(world: BrokerWorld) -> None:
    world.state.clients = ClientTable(ClientLimits(size_of_one=1_000_000))
    codes = [produce(world, f"p{number}", "x" * 300_000).code for number in range(4)]
    assert codes == [Code.SUCCESS] * 3 + [Code.SYSTEM_BUSY]


def test_who_says_the_same_again_is_heard_whatever_others_keep(world: BrokerWorld) -> None:
    world.state.clients = ClientTable(ClientLimits(size_of_all=1_000_000))
    own = tagged(1, 10)
    assert beat(world, GROUP, own).code == Code.SUCCESS
    assert produce(world, "producers", "client-1").code == Code.SUCCESS
    assert refused_at(world, 3_000, 5, own) < 3_000
    assert beat(world, GROUP, own).code == Code.SUCCESS
    assert beat(world, GROUP, []).code == Code.SUCCESS
    assert produce(world, "producers", "client-1").code == Code.SUCCESS


def test_nothing_is_counted_when_all_are_gone(world: BrokerWorld) -> None:
    random = Random(7)
    for number in range(200):
        of, group = random.randint(1, 5), f"g{random.randint(1, 9)}"
        rows = tagged(random.randint(0, 3), random.randint(0, 9))
        for row in rows:
            row["subVersion"] = random.randint(0, 3)
        choice = random.randrange(4)
        if choice == 0:
            produce(world, group, f"c{number}", of)
        elif choice == 1:
            ext = {"clientID": "c", random.choice(("consumerGroup", "producerGroup")): group}
            world.ask(Ask.UNREGISTER_CLIENT, ext, of=of)
        else:
            fingerprint = random.randint(0, 1)
            more = {"fingerprint": fingerprint, "without_sub": bool(random.randint(0, 1))}
            beat(world, group, rows, of, **more)
        world.state.clients.invariants()
    for of in range(1, 6):
        world.core.disconnected(of)
    world.state.clients.invariants()
    assert not world.state.clients._size


@pytest.mark.parametrize(
    "rows",
    [
        tagged(100, 200),
        tagged(100, 200, "é"),
        tagged(100, 200, "\U0001f600"),
        tagged(2_000, 1),
        [{"topic": "t", "subString": "x" * 60_000, "expressionType": "SQL92"}],
        [{"topic": "t", "codeSet": [2**62 + number for number in range(1_000)]}],
    ],
    ids=["tags", "latin", "emoji", "topics", "text", "numbers"],
)
def test_what_a_heartbeat_leaves_in_memory_is_not_underrated(
    world: BrokerWorld, rows: Rows
) -> None:
    ensure_retry_topic(world.state, GROUP, 1, 0)
    world.state.find_group(GROUP, 0)
    body = msgspec.json.encode(
        {"clientID": "c", "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": rows}]}
    )
    tracemalloc.start()
    assert world.ask(Ask.HEART_BEAT, {}, body).code == Code.SUCCESS
    world.inbox.clear()
    kept = tracemalloc.take_snapshot().filter_traces(
        [
            tracemalloc.Filter(True, "*/wire/*"),
            tracemalloc.Filter(True, "*/requests/groups.py"),
            tracemalloc.Filter(True, "*/clients.py"),
        ]
    )
    tracemalloc.stop()
    size = sum(one.size for one in kept.statistics("filename"))
    counted = world.state.clients._size
    assert size <= counted < 3 * size + 10_000
