"""Offsets set for a group: reset with its consumers online and away, cloned, compared."""

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    connection,
    pull_header,
)

from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.java_int import I64_MAX

QUEUES = 2


def ready(world: BrokerWorld) -> BrokerWorld:
    """Let a topic have five messages a queue, a second apart, and a group be online."""
    world.create_topic(queues=QUEUES)
    for _ in range(5):
        for queue_id in range(QUEUES):
            world.send(queue_id=queue_id)
        world.now_ms += 1_000
    world.subscribe(TOPIC)
    return world


def commit(world: BrokerWorld, offset: int, queue_id: int = 0, group: str = GROUP) -> Command:
    header = {"consumerGroup": group, "topic": TOPIC, "queueId": queue_id, "commitOffset": offset}
    return world.ask(Ask.UPDATE_CONSUMER_OFFSET, header)


def committed(world: BrokerWorld, queue_id: int = 0, group: str = GROUP) -> int:
    header = {"consumerGroup": group, "topic": TOPIC, "queueId": queue_id}
    return int(world.ask(Ask.QUERY_CONSUMER_OFFSET, header).ext_fields["offset"])


def reset(world: BrokerWorld, **changes: object) -> Command:
    header = {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", **changes}
    return world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, header)


def table(body: bytes) -> dict[int, int]:
    offsets = fastjson.loads(body)["offsetTable"]
    return {dict(queue)["queueId"]: offset for queue, offset in offsets.items()}


def pull(world: BrokerWorld, offset: int, queue_id: int = 0, **changes: object) -> Command:
    return world.ask(Ask.PULL_MESSAGE, pull_header(offset, queueId=queue_id, **changes))


def test_a_group_that_is_away_begins_where_it_was_reset_to(world: BrokerWorld) -> None:
    ready(world)
    commit(world, 5)
    answer = reset(world, timestamp=world.now_ms - 3_000)
    assert (answer.code, table(answer.body)) == (Code.SUCCESS, {0: 2, 1: 2})
    assert [committed(world, queue_id) for queue_id in range(QUEUES)] == [2, 2]

    world.stop()
    world.start()
    assert committed(world) == 2


def test_consumers_are_told_of_a_reset_at_their_next_pull_and_cannot_undo_it(
    world: BrokerWorld,
) -> None:
    ready(world)
    reset(world, queueId=0, offset=1)

    late = commit(world, 5)
    assert (late.code, late.remark) == (Code.SUCCESS, "Offset has been previously reset")
    told = pull(world, 5, sysFlag=5, commitOffset=5)
    assert (told.code, told.remark) == (Code.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert told.ext_fields["nextBeginOffset"] == "1"
    assert committed(world) == 1, "the commit that came with the pull is of before the reset"

    assert pull(world, 1).code == Code.SUCCESS
    commit(world, 3)
    assert committed(world) == 3


def test_a_pull_that_waits_is_answered_when_its_group_is_reset(world: BrokerWorld) -> None:
    ready(world)
    world.begin(Ask.PULL_MESSAGE, pull_header(5, sysFlag=6))
    waiting = world.last_opaque
    world.begin(Ask.PULL_MESSAGE, pull_header(5, sysFlag=6, consumerGroup="others"))
    other = world.last_opaque
    reset(world, queueId=0, offset=0)
    answer = world.reply_to(waiting)
    assert answer is not None
    assert (answer.remark, answer.ext_fields["nextBeginOffset"]) == ("OFFSET_RESET", "0")
    assert world.reply_to(other) is None


def test_what_a_consumer_commits_after_its_goodbye_does_not_undo_a_reset(
    world: BrokerWorld,
) -> None:
    ready(world)
    world.begin(Ask.PULL_MESSAGE, pull_header(5, sysFlag=6))
    world.ask(Ask.UNREGISTER_CLIENT, {"clientID": "client-1", "consumerGroup": GROUP})
    reset(world, queueId=0, offset=2)
    commit(world, 5)
    assert committed(world) == 2
    told = pull(world, 5)
    assert (told.remark, told.ext_fields["nextBeginOffset"]) == ("OFFSET_RESET", "2")


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "nowhere"}, Code.TOPIC_NOT_EXIST, "Topic nowhere does not exist"),
        ({"group": "nobody"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST, "Group nobody does not exist"),
        (
            {"queueId": 0, "offset": 7},
            Code.SYSTEM_ERROR,
            "Target offset 7 not in consume queue range [0-5]",
        ),
    ],
)
def test_a_reset_to_nowhere_is_refused(
    world: BrokerWorld, changes: dict[str, object], code: Code, remark: str
) -> None:
    ready(world)
    commit(world, 3)
    answer = reset(world, **changes)
    assert (answer.code, answer.remark) == (code, remark)
    assert committed(world) == 3
    assert pull(world, 4).code == Code.SUCCESS


def test_online_consumers_are_sent_the_offsets_when_the_broker_does_not_keep_them() -> None:
    world = ready(BrokerWorld(useServerSideResetOffset="false"))
    world.subscribe(TOPIC, of=2)
    world.notices(1)
    world.notices(2)
    for queue_id in range(QUEUES):
        commit(world, 3, queue_id)
    answer = reset(world, timestamp=world.now_ms - 1_000, isForce="false")
    assert table(answer.body) == {0: 3, 1: 3}, "without force offsets only go back"
    reset(world, timestamp=world.now_ms - 1_000)
    for consumer in (1, 2):
        told = world.notices(consumer)
        assert [command.code for command in told] == [Ask.RESET_CONSUMER_CLIENT_OFFSET] * 2
        assert told[1].is_oneway
        assert told[1].ext_fields["group"] == GROUP
        assert table(told[1].body) == {0: 4, 1: 4}


def test_consumers_that_are_away_cannot_be_sent_offsets() -> None:
    world = ready(BrokerWorld(useServerSideResetOffset="false"))
    refused = reset(world)
    assert (refused.code, refused.remark) == (1, f"THe consumer group <{GROUP}> not exist")
    for queue_id in range(QUEUES):
        commit(world, 3, queue_id)
    world.core.disconnected(1)
    assert reset(world).code == Code.CONSUMER_NOT_ONLINE


def clone(world: BrokerWorld, **changes: object) -> Command:
    header = {"srcGroup": GROUP, "destGroup": "heirs", "topic": TOPIC, "offline": "true", **changes}
    return world.ask(Ask.CLONE_GROUP_OFFSET, header)


@pytest.mark.parametrize("topic", [TOPIC, None])
def test_a_cloned_group_begins_where_its_source_is(world: BrokerWorld, topic: str | None) -> None:
    ready(world)
    commit(world, 3)
    assert clone(world, topic=topic).code == Code.SUCCESS
    assert committed(world, group="heirs") == 3
    commit(world, 4)
    assert committed(world, group="heirs") == 3


def test_what_an_online_source_does_not_subscribe_to_is_not_cloned(world: BrokerWorld) -> None:
    ready(world)
    commit(world, 3)
    world.subscribe("others", sub_version=2)
    clone(world, offline="false")
    assert committed(world, group="heirs") == 0
    clone(world)
    assert committed(world, group="heirs") == 3


def corrections(world: BrokerWorld, **changes: object) -> dict[int, int]:
    header = {"topic": TOPIC, "compareGroup": "none", **changes}
    answer = world.ask(Ask.QUERY_CORRECTION_OFFSET, header)
    return fastjson.loads(answer.body)["correctionOffsets"]  # type: ignore[no-any-return]


def test_the_correction_is_the_lowest_offset_of_all_groups(world: BrokerWorld) -> None:
    ready(world)
    for group, offset in ((GROUP, 4), ("slow", 2), ("fast", 5)):
        world.subscribe(TOPIC, group=group, of=9)
        commit(world, offset, group=group)
    assert corrections(world) == {0: 2}
    assert corrections(world, filterGroups="slow,fast") == {0: 4}
    assert corrections(world) == {0: 2}, "a question changes nothing"
    assert corrections(world, compareGroup="fast") == {0: 2}
    assert corrections(world, compareGroup="slow", filterGroups="slow") == {0: I64_MAX}


def ask_status(world: BrokerWorld, of: int = 9, **changes: object) -> int:
    header = {"topic": TOPIC, "group": GROUP, **changes}
    assert world.begin(Ask.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header, of=of) is None
    return world.last_opaque


def answer_status(world: BrokerWorld, of: int, offset: int) -> None:
    """Let a consumer say that it has come to an offset."""
    wanted = Ask.GET_CONSUMER_STATUS_FROM_CLIENT
    (asked,) = [notice for notice in world.notices(of) if notice.code == wanted]
    queue = (("brokerName", "b"), ("queueId", 0), ("topic", TOPIC))
    body = fastjson.dumps({"messageQueueTable": {queue: offset}})
    world.core.receive(connection(of), reply(asked, body=body), world.now_ms)
    world.finish_turn()


def test_a_tool_is_told_what_each_consumer_says_of_its_offsets(world: BrokerWorld) -> None:
    ready(world)
    world.subscribe(TOPIC, of=2)
    world.notices(1)
    opaque = ask_status(world)
    answer_status(world, 1, 3)
    assert world.reply_to(opaque, of=9) is None
    answer_status(world, 2, 4)
    answer = world.reply_to(opaque, of=9)
    assert answer is not None
    told = fastjson.loads(answer.body)["consumerTable"]
    assert {who: list(table.values()) for who, table in told.items()} == {
        "client-1": [3],
        "client-2": [4],
    }


def test_a_consumer_that_says_nothing_is_left_out(world: BrokerWorld) -> None:
    ready(world)
    world.subscribe(TOPIC, of=2)
    world.notices(1)
    opaque = ask_status(world)
    answer_status(world, 1, 3)
    world.pass_time(6_000)
    answer = world.reply_to(opaque, of=9)
    assert answer is not None
    assert list(fastjson.loads(answer.body)["consumerTable"]) == ["client-1"]

    one = ask_status(world, clientAddr="client-2")
    world.core.disconnected(2)
    world.finish_turn()
    alone = world.reply_to(one, of=9)
    assert alone is not None
    assert fastjson.loads(alone.body)["consumerTable"] == {}


def test_nobody_tells_the_offsets_of_a_group_that_is_away(world: BrokerWorld) -> None:
    refused = world.ask(Ask.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": TOPIC, "group": "none"})
    assert refused.code == Code.SYSTEM_ERROR
