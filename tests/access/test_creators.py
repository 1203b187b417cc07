"""Topics and groups: the most of a broker, and the most that one user creates."""

import json
import math

import pytest
from tests.access.access_world import ROOT, AccessWorld, signed
from tests.broker_core.broker_world import (
    TOPIC,
    BrokerWorld,
    connection,
    heartbeat,
    pull_header,
    send_header,
)

from reliable_mq.broker_core.creators import PATH
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, request


def world_of(disk: MemoryDisk | None = None, **properties: str) -> AccessWorld:
    """Give a broker with the users `ann` and `bob`, who may do everything."""
    world = AccessWorld(disk, **properties)
    for name in ("ann", "bob"):
        if name not in world.state.access.users:
            world.make_user(name)
            world.allow(name, "Topic:*", "Group:*")
    return world


def make_topic(world: AccessWorld, user: str, name: str) -> Command:
    fields = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    return world.ask_as(user, Ask.UPDATE_AND_CREATE_TOPIC, fields)


def make_topics(world: AccessWorld, user: str, *names: str) -> Command:
    rows = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in names]
    body = json.dumps({"topicConfigList": rows}).encode()
    return world.ask_as(user, Ask.UPDATE_AND_CREATE_TOPIC_LIST, body=body)


def make_groups(world: AccessWorld, user: str, *names: str) -> Command:
    body = json.dumps({"groupConfigList": [{"groupName": name} for name in names]}).encode()
    return world.ask_as(user, Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)


def make_group(world: AccessWorld, user: str, name: str) -> Command:
    body = json.dumps({"groupName": name}).encode()
    return world.ask_as(user, Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def send(world: AccessWorld, user: str, topic: str) -> Command:
    return world.ask_as(user, Ask.SEND_MESSAGE_V2, send_header(topic, 0), b"x")


def test_a_topic_that_another_user_creates_while_a_list_is_made_is_not_of_the_list() -> None:
    names = [f"t{n}" for n in range(200)]
    rows = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in names]
    body = json.dumps({"topicConfigList": rows}).encode()
    code, owners = Ask.UPDATE_AND_CREATE_TOPIC_LIST, set[str]()
    for steps in range(1, 40, 2):
        world = world_of(maxTopicsOfUser="200")
        creators, works = world.state.creators, world.state.works
        of_list = request(code, signed("ann", code, None, body), body)
        world.core.receive(connection(2), of_list, world.now_ms)
        for _ in range(steps):
            works.run(1)
        make_topic(world, "bob", "t150")
        works.run(math.inf)
        owners.add(creators._users["topic"]["t150"])
        creators.invariants()
        assert set(world.state.topics.by_name) >= set(names)
    assert owners == {"ann", "bob"}


def test_requests_between_the_steps_of_a_list_do_not_pass_the_limit_of_its_user() -> None:
    names = [f"t{n}" for n in range(300)]
    rows = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in names]
    body = json.dumps({"topicConfigList": rows}).encode()
    code, one = Ask.UPDATE_AND_CREATE_TOPIC_LIST, Ask.UPDATE_AND_CREATE_TOPIC
    world = world_of(maxTopicsOfUser="300")
    before, works = set(world.state.topics.by_name), world.state.works
    of_list = request(code, signed("ann", code, None, body), body)
    world.core.receive(connection(2), of_list, world.now_ms)
    number = 0
    while works.busy:
        works.run(1)
        if not world.state.creators._counts["topic"]["ann"]:
            continue  # a single one would take a place of the list
        single = {"topic": f"single{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        of_single = request(one, signed("ann", one, single, b""))
        world.core.receive(connection(3), of_single, world.now_ms)
        number += 1
    made = set(world.state.topics.by_name) - before

    assert number > 9
    assert len(made) <= 300, len(made)
    world.state.creators.invariants()


def test_a_user_creates_so_many_topics_by_whatever_request_and_others_theirs() -> None:
    world = world_of(maxTopicsOfUser="3")
    assert make_topic(world, "ann", "a1").code == 0
    assert send(world, "ann", "a2").code == 0
    refusal = make_topics(world, "ann", "a3", "a4")
    assert (refusal.code, "maxTopicsOfUser" in (refusal.remark or "")) == (1, True)
    assert world.state.topics.get("a3") is None, "all or none"
    assert make_topics(world, "ann", "a1", "a3", "a3").code == 0, "what there is costs nothing"
    assert send(world, "ann", "a4").code == 1
    assert make_topic(world, "ann", "a4").code == 1
    assert [send(world, "ann", name).code for name in ("a1", "a2", "a3")] == [0, 0, 0]
    assert send(world, "bob", "b1").code == 0
    assert world.state.creators.refused == {"topic": 3, "group": 0}
    world.state.creators.invariants()


def test_a_deleted_topic_or_group_gives_its_place_back_to_its_creator() -> None:
    world = world_of(maxTopicsOfUser="1", maxGroupsOfUser="1")
    assert make_topic(world, "ann", "a1").code == 0
    assert make_group(world, "ann", "g1").code == 0
    assert world.ask_as("bob", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "a1"}).code == 0
    assert world.ask_as("bob", Ask.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g1"}).code == 0
    assert make_topic(world, "bob", "a1").code == 0
    assert make_topic(world, "ann", "a2").code == 0
    assert make_group(world, "ann", "g2").code == 0
    assert make_topic(world, "ann", "a3").code == 1
    world.state.creators.invariants()


def test_a_change_of_a_topic_makes_nobody_its_creator() -> None:
    world = world_of(maxTopicsOfUser="1")
    assert make_topic(world, ROOT, "r1").code == 0
    assert (
        world.ask_as(
            "ann",
            Ask.UPDATE_AND_CREATE_TOPIC,
            {"topic": "r1", "readQueueNums": 9, "writeQueueNums": 9, "perm": 6},
        ).code
        == 0
    )
    assert make_topic(world, "ann", "a1").code == 0


@pytest.mark.parametrize("way", ["one", "list", "pull", "heartbeat"])
def test_a_user_creates_so_many_groups_by_whatever_request(way: str) -> None:
    world = world_of(maxGroupsOfUser="2")
    assert make_groups(world, "ann", "g1", "g2").code == 0
    before = len(world.state.groups)
    if way == "one":
        assert make_group(world, "ann", "g3").code == 1
    elif way == "list":
        assert make_groups(world, "ann", "g3").code == 1
    elif way == "pull":
        answer = world.ask_as("ann", Ask.PULL_MESSAGE, pull_header(0, consumerGroup="g3"))
        assert answer.code == Code.SUBSCRIPTION_GROUP_NOT_EXIST
    else:
        world.ask_as("ann", Ask.HEART_BEAT, body=heartbeat(TOPIC, group="g3"))
    assert len(world.state.groups) == before
    assert world.state.creators.refused["group"] == 1
    assert make_group(world, "bob", "g3").code == 0


def test_who_created_what_is_known_after_a_restart() -> None:
    disk = MemoryDisk()
    world = world_of(disk, maxTopicsOfUser="2", maxGroupsOfUser="1")
    assert make_topics(world, "ann", "a1", "a2").code == 0
    assert make_group(world, "ann", "g1").code == 0
    assert world.file(PATH) == {"topics": {"a1": "ann", "a2": "ann"}, "groups": {"g1": "ann"}}
    world.stop()
    world.start()
    assert make_topic(world, "ann", "a3").code == 1
    assert make_group(world, "ann", "g2").code == 1
    assert world.ask_as("ann", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "a1"}).code == 0
    assert make_topic(world, "ann", "a3").code == 0


def test_creators_of_what_is_gone_are_forgotten_at_the_start() -> None:
    disk = MemoryDisk()
    world = world_of(disk, maxTopicsOfUser="1")
    assert make_topic(world, "ann", "a1").code == 0
    world.stop()
    disk.write_text(PATH, json.dumps({"topics": {"gone": "ann"}, "groups": {"lost": "ann"}}))
    world.start()
    assert make_topic(world, "ann", "a2").code == 0
    world.state.creators.invariants()


def test_a_super_user_and_nobody_have_only_the_limit_of_all() -> None:
    world = world_of(maxTopicsOfUser="1", maxTopics="30")
    have = len(world.state.topics)
    made = [make_topic(world, ROOT, f"r{n}").code for n in range(40)]
    assert made == [0] * (30 - have) + [1] * (10 + have)
    assert "maxTopics)" in (make_topic(world, ROOT, "r99").remark or "")


def test_without_access_control_the_topics_and_groups_of_all_are_limited() -> None:
    world = BrokerWorld(maxTopics="40", maxGroups="20")
    sent = [world.ask(Ask.SEND_MESSAGE_V2, send_header(f"t{n}", 0), b"x") for n in range(60)]
    assert len(world.state.topics) == 40
    assert {answer.code for answer in sent[40:]} == {1}
    assert "maxTopics" in (sent[-1].remark or "")
    for n in range(40):
        world.ask(Ask.PULL_MESSAGE, pull_header(0, consumerGroup=f"g{n}"))
    assert len(world.state.groups) == 20
    assert not world.state.files.changed, "nothing is kept of nobody"
    assert world.state.creators.refused["group"] == 40 - (20 - 8)
    answer = world.ask(Ask.SEND_MESSAGE_V2, send_header("t0", 0), b"x")
    assert answer.code == 0, "what there is goes on"


def test_the_retry_topics_of_known_groups_are_created_though_the_broker_is_full() -> None:
    world = BrokerWorld(maxTopics="1")
    world.ask(Ask.HEART_BEAT, body=heartbeat(TOPIC, group="g"))
    assert world.state.topics.get("%RETRY%g") is not None


def test_limits_change_while_the_broker_runs() -> None:
    world = world_of(maxTopicsOfUser="1")
    assert make_topic(world, "ann", "a1").code == 0
    assert make_topic(world, "ann", "a2").code == 1
    assert world.ask_as(ROOT, Ask.UPDATE_BROKER_CONFIG, body=b"maxTopicsOfUser=2").code == 0
    assert make_topic(world, "ann", "a2").code == 0
