"""What peers invent leaves nothing behind: ids of queues, groups and clients that are not there."""

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    heartbeat,
    pull_header,
    send_header,
)

from reliable_mq.broker_core import json_rows, offsets, statistics
from reliable_mq.broker_core.requests import consumer_rules, groups, offset_reset
from reliable_mq.limits import TOPIC_OFFSETS_COST
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


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table be full when it has 20,000 characters, some 80 rows."""
    monkeypatch.setattr(json_rows, "TABLE_SIZE_MAX", 20_000)


@pytest.mark.usefixtures("small_tables")
def test_invented_topics_fill_no_more_than_their_table(world: BrokerWorld) -> None:
    """Whoever sends to new topics makes them, until the table is full. What is there goes on."""
    world.create_topic()
    world.subscribe(TOPIC)
    headers = [send_header(f"invented-{number}") for number in range(200)]
    answers = [world.ask(Ask.SEND_MESSAGE_V2, header, b"x") for header in headers]
    topics = len(world.state.topics)

    (code,) = {answer.code for answer in answers[150:]}
    assert code == Code.SYSTEM_ERROR
    assert "delete unused topics" in str(answers[-1].remark)
    assert answers[0].code == Code.SUCCESS
    row = {"topicName": "wanted", "readQueueNums": 1, "writeQueueNums": 1}
    listed = fastjson.dumps({"topicConfigList": [row]})
    header = {"topic": "wanted", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    header |= {"topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102"}
    assert world.ask(Ask.UPDATE_AND_CREATE_TOPIC, header).code == Code.SYSTEM_ERROR
    assert world.ask(Ask.UPDATE_AND_CREATE_TOPIC_LIST, {}, listed).code == Code.SYSTEM_ERROR
    assert len(world.state.topics) == topics
    assert world.send().code == Code.SUCCESS
    for number in range(20):
        world.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": f"invented-{number}"})
    assert world.ask(Ask.UPDATE_AND_CREATE_TOPIC, header).code == Code.SUCCESS
    world.state.topics.invariants()


@pytest.mark.usefixtures("small_tables")
def test_invented_groups_fill_no_more_than_their_table(world: BrokerWorld) -> None:
    """Whoever beats for new groups makes them, until the table is full. What is there goes on."""
    world.create_topic()
    world.subscribe(TOPIC)
    for number in range(200):
        world.subscribe(TOPIC, group=f"invented-{number}")
    count = len(world.state.groups)

    assert count < 150
    wanted = {"groupName": "wanted"}
    answer = world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, fastjson.dumps(wanted))
    assert answer.code == Code.SYSTEM_ERROR
    listed = fastjson.dumps({"groupConfigList": [wanted]})
    answer = world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, listed)
    assert answer.code == Code.SYSTEM_ERROR
    assert "delete unused groups" in str(answer.remark)
    assert len(world.state.groups) == count
    assert world.state.find_group(GROUP, world.now_ms) is not None
    world.state.groups.invariants()


def test_modes_and_forbidden_topics_have_a_limit(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_rules, "RULES_MAX", 3)
    world.subscribe(TOPIC)
    modes, forbidden = [], []
    for number in range(5):
        topic = f"topic-{number}"
        world.create_topic(topic)
        mode = fastjson.dumps({"topic": topic, "consumerGroup": GROUP, "mode": "PULL"})
        modes.append(world.ask(Ask.SET_MESSAGE_REQUEST_MODE, {}, mode).code)
        header = {"group": GROUP, "topic": topic, "readable": "false"}
        forbidden.append(world.ask(Ask.UPDATE_AND_GET_GROUP_FORBIDDEN, header).code)
    expected = [*[Code.SUCCESS] * 3, *[Code.INVALID_PARAMETER] * 2]
    assert (modes, forbidden) == (expected, expected)
    again = fastjson.dumps({"topic": "topic-0", "consumerGroup": GROUP, "mode": "POP"})
    assert world.ask(Ask.SET_MESSAGE_REQUEST_MODE, {}, again).code == Code.SUCCESS
    header = {"group": GROUP, "topic": "topic-0", "readable": "true"}
    assert world.ask(Ask.UPDATE_AND_GET_GROUP_FORBIDDEN, header).code == Code.SUCCESS


def test_names_that_are_kept_have_a_limit(world: BrokerWorld) -> None:
    world.create_topic()
    name = "n" * 256
    queue = {"topic": TOPIC, "brokerName": "b", "queueId": 0}
    locks = [
        fastjson.dumps({"consumerGroup": group, "clientId": client, "mqSet": [queue]})
        for group, client in ((name, "c"), (GROUP, name))
    ]
    header = {"group": name, "topic": TOPIC, "readable": "false"}
    clone = {"srcGroup": GROUP, "destGroup": name, "topic": TOPIC, "offline": "true"}
    assert "longer than group max length" in str(world.ask(Ask.CLONE_GROUP_OFFSET, clone).remark)
    answers = [
        *(world.ask(Ask.LOCK_BATCH_MQ, {}, lock) for lock in locks),
        world.ask(Ask.UPDATE_AND_GET_GROUP_FORBIDDEN, header),
        world.ask(Ask.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, f"{name}=1".encode()),
    ]

    assert {(answer.code, answer.remark) for answer in answers} == {
        (Code.INVALID_PARAMETER, "a name of 256 characters, at most 255 are allowed")
    }


def test_groups_and_queues_multiply_to_no_more_offsets_than_there_may_be(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits, resets, clones and pulls of known groups and queues: what is there goes on."""
    monkeypatch.setattr(offsets, "OFFSETS_SIZE_MAX", 8 + 2 * TOPIC_OFFSETS_COST)
    world.create_topic(queues=4)
    world.subscribe(TOPIC)
    world.subscribe(TOPIC, group="others")
    world.subscribe(TOPIC, group="late")
    assert [commit(world, queue_id).code for queue_id in range(4)] == [Code.SUCCESS] * 4
    reset = {"topic": TOPIC, "group": "others", "timestamp": -1, "isForce": "true", "queueId": -1}
    assert world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Code.SUCCESS
    clone = {"srcGroup": GROUP, "destGroup": "heirs", "topic": TOPIC, "offline": "true"}
    late = {"consumerGroup": "late", "topic": TOPIC, "queueId": 0, "commitOffset": 1}
    refused = [
        world.ask(Ask.CLONE_GROUP_OFFSET, clone),
        world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"group": "late"}),
        world.ask(Ask.UPDATE_CONSUMER_OFFSET, late),
    ]
    pull = pull_header(0, consumerGroup="late", sysFlag=5, commitOffset=1)
    assert world.ask(Ask.PULL_MESSAGE, pull).code == Code.PULL_NOT_FOUND, "a pull is served"

    assert {answer.code for answer in refused} == {Code.SYSTEM_ERROR}
    assert all("delete unused topics" in str(answer.remark) for answer in refused)
    assert world.state.offsets.topics_of("late") == []
    again = [
        commit(world, 3, offset=0),
        world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset),
        world.ask(Ask.CLONE_GROUP_OFFSET, clone | {"destGroup": "others"}),
    ]
    assert {answer.code for answer in again} == {Code.SUCCESS}
    world.state.offsets.invariants()
    world.ask(Ask.DELETE_SUBSCRIPTIONGROUP, {"groupName": "others", "cleanOffset": "true"})
    assert world.ask(Ask.UPDATE_CONSUMER_OFFSET, late).code == Code.SUCCESS
    world.state.offsets.invariants()


def test_pulls_are_noted_as_long_as_there_is_room_and_take_none_of_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offsets, "PULLED_SIZE_MAX", 2 + TOPIC_OFFSETS_COST)
    table = offsets.OffsetTable()
    for queue_id in range(4):
        table.note_pull(GROUP, TOPIC, queue_id, 7)
    table.note_pull("others", TOPIC, 0, 7)

    assert [table.pulled(GROUP, TOPIC, queue_id) for queue_id in range(4)] == [7, 7, 0, 0]
    assert table.pulled("others", TOPIC, 0) == 0
    assert table.may_commit("others", TOPIC, range(100))
    table.invariants()


def test_a_request_that_multiplies_queues_has_a_budget(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_reset, "QUEUES_ASKED_MAX", 3)
    monkeypatch.setattr(offset_reset, "OFFSETS_ASKED_MAX", 3)
    world.create_topic(queues=4)
    world.subscribe(TOPIC)
    for queue_id in range(4):
        commit(world, queue_id)
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", "queueId": -1}
    clone = {"srcGroup": GROUP, "destGroup": "heirs", "topic": TOPIC, "offline": "true"}
    compared = {"topic": TOPIC, "compareGroup": GROUP, "filterGroups": ""}
    answers = [
        world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset),
        world.ask(Ask.CLONE_GROUP_OFFSET, clone),
        world.ask(Ask.QUERY_CORRECTION_OFFSET, compared),
    ]
    told = {"useServerSideResetOffset": "false"}
    body = "".join(f"{name}={value}" for name, value in told.items()).encode()
    assert world.ask(Ask.UPDATE_BROKER_CONFIG, {}, body).code == Code.SUCCESS
    answers.append(world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset))

    assert {answer.code for answer in answers} == {Code.INVALID_PARAMETER}
    assert world.state.offsets.topics_of("heirs") == []


def test_counters_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond it is counted in the broker's totals only."""
    monkeypatch.setattr(statistics, "COUNTERS_MAX", 20)
    world = BrokerWorld()
    for number in range(50):
        world.send(topic=f"invented-{number}")
    runtime = world.ask(Ask.GET_BROKER_RUNTIME_INFO)
    names = [(statistics.TOPIC_PUT_NUMS, f"invented-{number}") for number in range(50)]
    counted = [name for name in names if world.state.statistics.item(*name) is not None]

    assert fastjson.loads(runtime.body)["table"]["msgPutTotalTodayNow"] == "50"
    assert 1 <= len(counted) <= 20
