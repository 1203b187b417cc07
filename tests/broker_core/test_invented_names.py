"""What peers invent leaves nothing behind: ids of queues, groups and clients that are not there."""

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld, heartbeat

from reliable_mq.broker_core.requests import groups
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command


def commit(world: BrokerWorld, queue_id: int, offset: int = 1) -> Command:
    header = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id, "commitOffset": offset}
    return world.ask(Ask.UPDATE_CONSUMER_OFFSET, header)


@pytest.mark.parametrize("queue_id", [-1, 2, 2**31 - 1])
def test_a_commit_for_a_queue_that_is_not_there_is_not_kept(
    world: BrokerWorld, queue_id: int
) -> None:
    world.create_topic(queues=2)
    world.subscribe(TOPIC)
    assert commit(world, queue_id).code == Code.SUCCESS, "as Apache's"
    assert world.state.offsets.all_of(GROUP, TOPIC) == {}
    commit(world, 1)
    assert world.state.offsets.all_of(GROUP, TOPIC) == {1: 1}


def test_a_queue_that_the_topic_had_takes_commits_as_long_as_it_is_kept(world: BrokerWorld) -> None:
    world.create_topic(queues=2)
    world.subscribe(TOPIC)
    world.send(queue_id=1)
    world.create_topic(queues=1)
    commit(world, 1)
    assert world.state.offsets.all_of(GROUP, TOPIC) == {1: 1}


def test_a_reset_of_a_queue_that_is_not_there_is_not_kept(world: BrokerWorld) -> None:
    world.create_topic()
    world.subscribe(TOPIC)
    header = {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", "queueId": 77}
    answer = world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert answer.code == Code.SUCCESS, "as Apache's"
    assert world.state.offsets.all_of(GROUP, TOPIC) == {}
    assert world.state.offsets.pending_reset(GROUP, TOPIC, 77) is None


def test_queues_that_are_not_there_are_locked_for_nobody_and_old_locks_go(
    world: BrokerWorld,
) -> None:
    world.create_topic(queues=2)
    queues = [
        {"topic": TOPIC, "brokerName": "b", "queueId": 0},
        {"topic": TOPIC, "brokerName": "b", "queueId": 9},
        {"topic": "nowhere", "brokerName": "b", "queueId": 0},
    ]
    body = fastjson.dumps({"consumerGroup": GROUP, "clientId": "c", "mqSet": queues})
    answer = world.ask(Ask.LOCK_BATCH_MQ, {}, body)
    assert fastjson.loads(answer.body)["lockOKMQSet"] == queues[:1]
    world.pass_time(90_000, step=10_000)
    assert not world.state.locks._locks


def test_a_client_that_changes_its_id_leaves_the_old_one_nowhere(world: BrokerWorld) -> None:
    for number in range(5):
        body = fastjson.dumps(
            {"clientID": f"client-{number}", "producerDataSet": [{"groupName": "p"}]}
        )
        assert world.ask(Ask.HEART_BEAT, {}, body).code == Code.SUCCESS
    world.state.clients.invariants()
    assert world.state.clients.find_producer("client-3") is None
    assert world.state.clients.find_producer("client-4") == 1


def test_the_fingerprint_of_a_group_goes_with_it() -> None:
    world = BrokerWorld(autoCreateSubscriptionGroup="false")
    world.ask(Ask.HEART_BEAT, {}, heartbeat(TOPIC, group="invented", fingerprint=7))
    assert not world.state.clients._fingerprints
    world = BrokerWorld()
    world.ask(Ask.HEART_BEAT, {}, heartbeat(TOPIC, fingerprint=7))
    world.core.disconnected(1)
    assert not world.state.clients._fingerprints


def test_one_connection_is_in_so_many_groups_and_no_more(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUPS_OF_CONNECTION_MAX", 2)
    for name in ("a", "b", "a", "b"):
        assert world.subscribe(TOPIC, group=name).code == Code.SUCCESS
    assert world.subscribe(TOPIC, group="c").code == Code.INVALID_PARAMETER
    assert world.subscribe(TOPIC, group="c", of=2).code == Code.SUCCESS


def test_only_so_many_queries_wait_for_the_index(world: BrokerWorld) -> None:
    world.create_topic()
    world.send()
    header = {"topic": TOPIC, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 2**60}
    for _ in range(1_000):
        assert world.begin(Ask.QUERY_MESSAGE, header) is None
    refused = world.begin(Ask.QUERY_MESSAGE, header)
    assert refused is not None
    assert refused.code == Code.SYSTEM_BUSY


def test_thresholds_are_kept_for_so_many_groups_and_no_more(world: BrokerWorld) -> None:
    for first in (0, 900):
        body = "".join(f"g{number}=1\n" for number in range(first, first + 900)).encode()
        answer = world.ask(Ask.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, body)
    assert answer.code == Code.INVALID_PARAMETER
    assert len(world.state.cold_read_thresholds) == 900
