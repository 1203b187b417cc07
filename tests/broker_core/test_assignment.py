"""Assignments: which queues a member of a group gets, and whether it pulls or pops them."""

import json
from collections.abc import Iterable

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld, there

from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command


@pytest.fixture
def world() -> BrokerWorld:
    world = BrokerWorld()
    world.create_topic(queues=4)
    return world


def members(world: BrokerWorld, count: int) -> None:
    for of in range(1, count + 1):
        world.subscribe(TOPIC, of=of)


def asked(**changes: object) -> bytes:
    return json.dumps(
        {
            "topic": TOPIC,
            "consumerGroup": GROUP,
            "clientId": "client-1",
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
            **changes,
        }
    ).encode()


def rows(answer: Command) -> list[tuple[str, int, str]]:
    found = fastjson.loads(answer.body)["messageQueueAssignments"]
    return [
        (row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"], row["mode"])
        for row in found
    ]


def assigned(world: BrokerWorld, **changes: object) -> list[tuple[str, int, str]]:
    answer = world.ask(Ask.QUERY_ASSIGNMENT, {}, asked(**changes))
    assert answer.code == 0, answer.remark
    return rows(answer)


def pop(world: BrokerWorld, shared: int = 0, **changes: object) -> None:
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": shared}
    body = json.dumps({**mode, **changes}).encode()
    assert world.ask(Ask.SET_MESSAGE_REQUEST_MODE, {}, body).code == 0


def queues_of(world: BrokerWorld, clients: Iterable[int], **changes: object) -> list[list[int]]:
    return [
        [queue_id for _, queue_id, _ in assigned(world, clientId=f"client-{of}", **changes)]
        for of in clients
    ]


def test_without_a_mode_members_divide_the_queues_to_pull_them(world: BrokerWorld) -> None:
    members(world, 3)

    assert assigned(world) == [("b", 0, "PULL"), ("b", 1, "PULL")]
    assert queues_of(world, (1, 2, 3)) == [[0, 1], [2], [3]]
    assert queues_of(world, (1, 2, 3), strategyName="AVG_BY_CIRCLE") == [[0, 3], [1], [2]]


def test_members_that_pop_share_all_queues(world: BrokerWorld) -> None:
    members(world, 3)
    pop(world)

    assert assigned(world) == [("b", -1, "POP")]


def test_members_may_share_only_with_their_neighbours(world: BrokerWorld) -> None:
    members(world, 4)
    pop(world, shared=1)

    assert queues_of(world, (1, 2, 3, 4)) == [[0, 1], [1, 2], [2, 3], [3, 0]]


def test_each_of_many_members_gets_one_queue(world: BrokerWorld) -> None:
    members(world, 6)
    pop(world, shared=2)

    assert queues_of(world, (1, 4, 5, 6)) == [[0], [3], [0], [1]]


def test_who_broadcasts_gets_all_queues(world: BrokerWorld) -> None:
    assert len(assigned(world, messageModel="BROADCASTING")) == 4


def test_a_client_that_is_no_member_gets_nothing(world: BrokerWorld) -> None:
    members(world, 1)

    assert assigned(world, clientId="stranger") == []


@pytest.mark.parametrize(
    "changes", [{"topic": "missing"}, {"consumerGroup": "nobody"}, {"strategyName": "MY_OWN"}]
)
def test_without_an_answer_the_client_keeps_what_it_has(
    world: BrokerWorld, changes: dict[str, object]
) -> None:
    members(world, 1)

    answer = world.ask(Ask.QUERY_ASSIGNMENT, {}, asked(**changes))

    assert (answer.code, answer.body) == (0, b"{}")


def test_retry_topics_are_pulled(world: BrokerWorld) -> None:
    retry = f"%RETRY%{GROUP}"
    world.subscribe(TOPIC, retry)
    pop(world)

    assert assigned(world, topic=retry) == [("b", 0, "PULL")]


def test_the_queues_of_all_brokers_are_assigned(world: BrokerWorld) -> None:
    members(world, 2)
    world.state.topic_brokers.is_followed = True
    assert world.begin(Ask.QUERY_ASSIGNMENT, {}, asked()) is None
    opaque = world.last_opaque
    assert world.state.topic_brokers.take_asked() == [TOPIC]

    world.core.told_places(TOPIC, [("a", 2), ("b", 4)], world.now_ms)
    world.finish_turn()

    answer = there(world.reply_to(opaque))
    assert rows(answer) == [("a", 0, "PULL"), ("a", 1, "PULL"), ("b", 0, "PULL")]
    pop(world)
    assert assigned(world) == [("a", -1, "POP"), ("b", -1, "POP")]
    assert world.state.topic_brokers.take_asked() == []


def test_an_old_answer_is_used_while_it_is_renewed(world: BrokerWorld) -> None:
    members(world, 1)
    world.state.topic_brokers.is_followed = True
    world.core.told_places(TOPIC, [("b", 4)], world.now_ms)
    world.now_ms += 31_000

    assert len(assigned(world)) == 4

    assert world.state.topic_brokers.take_asked() == [TOPIC]


@pytest.mark.parametrize("body", [b"", b"{}", b"no json", b"[]"])
def test_a_question_that_cannot_be_read_is_refused(world: BrokerWorld, body: bytes) -> None:
    assert world.ask(Ask.QUERY_ASSIGNMENT, {}, body).code == 1
