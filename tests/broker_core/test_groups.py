"""Heartbeats: who is a member, what the group wants, and who is told when that changes."""

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld, heartbeat, there

from reliable_mq.broker_core.clients import EXPIRY_MS
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command


def members(world: BrokerWorld, group: str = GROUP) -> list[str]:
    answer = world.ask(Ask.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code != Code.SUCCESS:
        return []
    found: list[str] = fastjson.loads(answer.body)["consumerIdList"]
    return found


def told(world: BrokerWorld, *connections: int) -> list[int]:
    """Return which of the connections were told to rebalance."""
    return [
        number
        for number in connections
        if any(n.code == Ask.NOTIFY_CONSUMER_IDS_CHANGED for n in world.notices(number))
    ]


def test_a_newcomer_is_told_to_all_and_a_second_heartbeat_to_nobody(world: BrokerWorld) -> None:
    world.subscribe(TOPIC, of=1)
    assert told(world, 1) == [1]

    world.subscribe(TOPIC, of=2)
    assert told(world, 1, 2) == [1, 2]
    assert members(world) == ["client-1", "client-2"]

    world.subscribe(TOPIC, of=2)
    assert told(world, 1, 2) == []


def test_a_notice_names_the_group_and_wants_no_answer(world: BrokerWorld) -> None:
    world.subscribe(TOPIC)

    (notice,) = world.notices()

    assert notice.is_oneway
    assert notice.ext_fields == {"consumerGroup": GROUP}


def test_a_topic_that_comes_or_goes_is_told_and_a_new_version_is_not(world: BrokerWorld) -> None:
    world.subscribe(TOPIC, of=1)
    world.subscribe(TOPIC, of=2)
    told(world, 1, 2)

    world.subscribe(TOPIC, of=1, sub_version=2)
    assert told(world, 1, 2) == []
    world.subscribe(TOPIC, "second", of=1)
    assert told(world, 1, 2) == [1, 2]
    world.subscribe(TOPIC, of=2)  # members of one group with different topics overwrite each other
    assert told(world, 1, 2) == [1, 2]
    assert there(world.state.clients.consumer_group(GROUP)).subscriptions.keys() == {TOPIC}


def test_an_older_version_of_a_subscription_changes_nothing(world: BrokerWorld) -> None:
    world.subscribe(TOPIC, sub_version=5)
    world.subscribe(TOPIC, sub_version=4)

    assert there(world.state.clients.consumer_group(GROUP)).subscriptions[TOPIC].sub_version == 5


@pytest.mark.parametrize("how", ["goodbye", "close", "silence"])
def test_who_leaves_is_told_to_those_who_stay(world: BrokerWorld, how: str) -> None:
    world.subscribe(TOPIC, of=1)
    world.subscribe(TOPIC, of=2)
    told(world, 1, 2)

    if how == "goodbye":
        header = {"clientID": "client-2", "consumerGroup": GROUP}
        world.ask(Ask.UNREGISTER_CLIENT, header, of=2)
    elif how == "close":
        world.core.disconnected(2)
        world.finish_turn()
    else:
        world.pass_time(EXPIRY_MS - 20_000, step=1_000)
        world.subscribe(TOPIC, of=1)
        world.pass_time(40_000, step=1_000)

    assert members(world) == ["client-1"]
    assert told(world, 1, 2) == [1]


def test_a_broadcasting_group_is_told_nothing(world: BrokerWorld) -> None:
    world.subscribe(TOPIC, messageModel="BROADCASTING")

    assert world.notices() == []


def test_a_group_or_a_broker_may_want_no_notices(world: BrokerWorld) -> None:
    quiet = fastjson.dumps({"groupName": GROUP, "notifyConsumerIdsChangedEnable": False})
    world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, quiet)
    world.subscribe(TOPIC)
    assert world.notices() == []

    silent = BrokerWorld(notifyConsumerIdsChangedEnable="false")
    silent.subscribe(TOPIC)
    assert silent.notices() == []


def test_a_clients_two_connections_are_two_members_and_one_client_id(world: BrokerWorld) -> None:
    world.subscribe(TOPIC, of=1, client_id="c")
    world.subscribe(TOPIC, of=2, client_id="c")
    assert members(world) == ["c"]

    world.core.disconnected(1)
    assert members(world) == ["c"]


def test_a_connection_with_another_client_id_replaces_itself(world: BrokerWorld) -> None:
    world.subscribe(TOPIC, client_id="old")
    world.subscribe(TOPIC, client_id="new")

    assert members(world) == ["new"]


def test_a_new_group_is_saved_with_its_retry_topic(world: BrokerWorld) -> None:
    world.subscribe(TOPIC)

    assert GROUP in world.file("config/subscriptionGroup.json")["subscriptionGroupTable"]
    assert there(world.state.topics.get(f"%RETRY%{GROUP}")).write_queue_nums == 1


def test_without_auto_creation_an_unknown_group_has_no_members() -> None:
    world = BrokerWorld(autoCreateSubscriptionGroup="false")

    assert world.subscribe(TOPIC).code == Code.SUCCESS
    assert members(world) == []
    world.subscribe(TOPIC, group="CID_RMQ_SYS_X")
    assert members(world, "CID_RMQ_SYS_X") == ["client-1"], "the system's own are always created"


def test_a_fingerprint_spares_the_subscriptions_until_it_changes(world: BrokerWorld) -> None:
    first = world.subscribe(TOPIC, fingerprint=7)
    same = world.subscribe(fingerprint=7, without_sub=True)
    other = world.subscribe(TOPIC, fingerprint=8)

    changes = [answer.ext_fields["IS_SUB_CHANGE"] for answer in (first, same, other)]
    assert changes == ["false", "false", "true"]
    assert there(world.state.clients.consumer_group(GROUP)).subscriptions.keys() == {TOPIC}
    assert first.ext_fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"


def test_a_producers_heartbeat_makes_no_consumer(world: BrokerWorld) -> None:
    beat = b'{"clientID":"p","producerDataSet":[{"groupName":"producers"}]}'

    assert world.ask(Ask.HEART_BEAT, {}, beat).code == Code.SUCCESS
    assert members(world, "producers") == []
    world.state.clients.invariants()
    world.core.disconnected(1)
    world.state.clients.invariants()


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        (b'"topic"', b'"topics"'),
        (b'"payments"', b"7"),
        (b'"consumerDataSet":[', b'"consumerDataSet":[7,'),
    ],
)
def test_a_bad_heartbeat_registers_nobody(world: BrokerWorld, said: bytes, instead: bytes) -> None:
    beat = heartbeat(TOPIC)
    assert said in beat

    answer = world.ask(Ask.HEART_BEAT, {}, beat.replace(said, instead))

    assert answer.code == Code.SYSTEM_ERROR
    assert members(world) == []


@pytest.mark.parametrize("order", ["true", "false"])
def test_the_retry_topic_of_a_group_with_an_ordered_topic_is_ordered(order: str) -> None:
    world = BrokerWorld()
    header = {"topic": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": order}
    world.ask(Ask.UPDATE_AND_CREATE_TOPIC, header)
    world.subscribe(TOPIC)
    assert there(world.state.topics.get(f"%RETRY%{GROUP}")).order is (order == "true")


def put_group(world: BrokerWorld, **attributes: str) -> Command:
    body = fastjson.dumps({"groupName": "marked", "attributes": attributes})
    return world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def marks(world: BrokerWorld) -> dict[str, str]:
    return there(world.state.groups.get("marked")).attributes


def test_a_change_of_a_group_alters_only_the_attributes_that_it_names(world: BrokerWorld) -> None:
    """As Apache's does; `test_against_apache` compares all that may be wrong with them."""
    for attributes, after in (
        ({"+priority.factor": "50"}, {"priority.factor": "50"}),
        ({}, {"priority.factor": "50"}),
        ({"+priority.factor": "7"}, {"priority.factor": "7"}),
        ({"-priority.factor": ""}, {}),
    ):
        assert put_group(world, **attributes).code == Code.SUCCESS
        assert marks(world) == after


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"+priority.factor": "101"}, "value is not in range(0, 100)"),
        ({"-priority.factor": ""}, "attempt to delete a nonexistent key: priority.factor"),
        ({"priority.factor": "1"}, "wrong format key: riority.factor"),
    ],
)
def test_attributes_that_cannot_be_change_nothing_of_the_group(
    world: BrokerWorld, attributes: dict[str, str], why: str
) -> None:
    put_group(world)
    refused = put_group(world, **attributes)
    assert (refused.code, refused.remark) == (Code.SYSTEM_ERROR, why)
    assert marks(world) == {}
