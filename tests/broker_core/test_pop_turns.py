"""Whose turn it is: each group gets all queues alike, and what came back is not forgotten."""

from collections import Counter

from tests.broker_core.broker_world import GROUP, TOPIC
from tests.broker_core.pop_world import ManyQueues, PopWorld

from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.record import Record, iter_records


class FiveQueues(PopWorld):
    queues = 5


def fill(world: PopWorld, count: int) -> None:
    """Send as many messages to each queue."""
    for queue_id in range(world.queues):
        for _ in range(count):
            world.send(queue_id=queue_id)


def create_group(world: PopWorld, name: str) -> None:
    body = fastjson.dumps({"groupName": name})
    assert world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0


def pop(world: PopWorld, group: str, **changes: object) -> list[Record]:
    header = world.pop_header(consumerGroup=group, **changes)
    return list(iter_records(world.ask(Ask.POP_MESSAGE, header).body))


def came_back(record: Record) -> bool:
    return "POP_CK" in record.property_map()


def test_groups_that_pop_in_turn_get_all_queues_alike() -> None:
    world = ManyQueues()
    fill(world, 130)
    create_group(world, "other")

    got = Counter(
        (group, record.queue_id)
        for _ in range(8)
        for group in (GROUP, "other")
        for record in pop(world, group)
    )

    assert set(got.values()) == {64}
    assert len(got) == 8


def test_each_group_gets_what_came_back_when_several_pop_in_turn() -> None:
    world = PopWorld()
    fill(world, 400)
    groups = [f"group{number}" for number in range(5)]
    for group in groups:
        create_group(world, group)
        pop(world, group, invisibleTime=1_000, maxMsgNums=10)
    world.pass_time(2_000)

    got = Counter(
        group
        for _ in range(10)
        for group in groups
        for record in pop(world, group, maxMsgNums=5)
        if came_back(record)
    )

    assert got == dict.fromkeys(groups, 10)


def test_no_queue_starves_while_messages_come_back() -> None:
    world = FiveQueues()
    fill(world, 60)
    for _ in range(10):
        pop(world, GROUP, invisibleTime=1_000, maxMsgNums=10)
    world.pass_time(2_000)

    got = Counter(
        "back" if came_back(record) else record.queue_id
        for _ in range(25)
        for record in pop(world, GROUP, maxMsgNums=8)
    )

    assert got == {0: 32, 1: 32, 2: 32, 3: 32, 4: 32, "back": 40}


def test_every_queue_begins_as_often_when_nothing_came_back() -> None:
    world = ManyQueues()
    fill(world, 60)

    got = Counter(record.queue_id for _ in range(20) for record in pop(world, GROUP, maxMsgNums=4))

    assert set(got.values()) == {20}


def test_a_peek_takes_nobodys_turn() -> None:
    world = ManyQueues()
    fill(world, 20)
    peek = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 1}

    got = []
    for _ in range(4):
        got += [record.queue_id for record in pop(world, GROUP, maxMsgNums=1)]
        for _ in range(4):
            world.ask(Ask.PEEK_MESSAGE, peek)

    assert sorted(got) == [0, 1, 2, 3]
