"""Quotas of users: what a user sends and reads in a second, over all topics and groups."""

import pytest
from tests.access.access_world import ROOT, AccessWorld
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    pull_header,
    send_header,
    waiting_pull_header,
)

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.errors import ConfigurationError
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.remote_faults import RETRY_AFTER_MS


def world_of(**properties: str) -> AccessWorld:
    """Give a broker with the users `ann` and `bob`, who may do everything."""
    world = AccessWorld(None, **properties)
    for name in ("ann", "bob"):
        world.make_user(name)
        world.allow(name, "Topic:*", "Group:*")
    world.create_topic_as_root(TOPIC)
    world.create_topic_as_root("other")
    return world


def send_as(world: AccessWorld, user: str, topic: str = TOPIC, body: bytes = b"x") -> Command:
    return world.ask_as(user, Ask.SEND_MESSAGE_V2, send_header(topic, 0), body)


def codes(world: AccessWorld, user: str, count: int, topic: str = TOPIC) -> list[int]:
    return [send_as(world, user, topic).code for _ in range(count)]


def test_sends_beyond_the_quota_of_a_user_are_refused_as_busy_and_others_send_on() -> None:
    world = world_of(maxMessagesPerSecondOfUser="3")
    assert codes(world, "ann", 2) == [0, 0]
    assert codes(world, "ann", 2, "other") == [0, 2], "topics do not count apart"
    assert codes(world, "bob", 3) == [0, 0, 0]
    refusal = send_as(world, "ann")
    assert "user ann" in (refusal.remark or "")
    world.now_ms += int(refusal.ext_fields[RETRY_AFTER_MS])
    assert codes(world, "ann", 2) == [0, 2]
    assert world.state.quotas.refusals() == {"topic": 0, "group": 0, "user": 3}


def test_a_new_topic_does_not_set_a_user_free() -> None:
    world = world_of(quotasOfUsers="ann:2:0")
    assert [send_as(world, "ann", f"new-{n}").code for n in range(4)] == [0, 0, 2, 2]


@pytest.mark.parametrize(
    "quotas",
    [
        {"quotasOfUsers": "ann:0:100;bob:10:0"},
        {"maxBytesPerSecondOfUser": "100", "quotasOfUsers": "bob:10:0"},
    ],
)
def test_bytes_and_batches_count_for_a_user(quotas: dict[str, str]) -> None:
    world = world_of(**quotas)
    assert [send_as(world, "ann", body=b"x" * 60).code for _ in range(3)] == [0, 0, 2]
    header = {**send_header(TOPIC, 0), "m": "true"}
    body = encode_batch([BatchItem(0, b"x", b"")] * 25)
    assert world.ask_as("bob", Ask.SEND_BATCH_MESSAGE, header, body).code == 0
    assert int(send_as(world, "bob").ext_fields[RETRY_AFTER_MS]) >= 1_500


def test_a_send_that_its_topic_refuses_costs_the_user_nothing() -> None:
    world = world_of(maxMessagesPerSecondOfUser="5", quotasOfTopics=f"{TOPIC}:1:0")
    assert codes(world, "ann", 4) == [0, 2, 2, 2]
    assert codes(world, "ann", 5, "other") == [0, 0, 0, 0, 2]


def pull_as(world: AccessWorld, user: str, group: str = GROUP) -> Command:
    header = pull_header(0, consumerGroup=group, maxMsgNums=5)
    return world.ask_as(user, Ask.PULL_MESSAGE, header)


def test_pulls_of_a_user_share_one_quota_over_all_groups_apart_from_its_sends() -> None:
    world = world_of(quotasOfUsers="ann:8:0")
    assert codes(world, "bob", 20) == [0] * 20
    assert [pull_as(world, "ann", group).code for group in ("g1", "g2")] == [0, 0]
    refusal = pull_as(world, "ann", "g3")
    assert refusal.code == Code.FLOW_CONTROL
    assert pull_as(world, "bob").code == 0
    assert codes(world, "ann", 1) == [0]
    world.now_ms += int(refusal.ext_fields[RETRY_AFTER_MS])
    assert pull_as(world, "ann", "g3").code == 0


def test_what_a_waiting_pull_gets_counts_for_its_user() -> None:
    world = world_of(quotasOfUsers="ann:0:10")
    pull_as(world, "ann")
    code, header = Ask.PULL_MESSAGE, waiting_pull_header(0, consumerGroup=GROUP)
    assert world.begin_as("ann", code, header) is None
    assert send_as(world, "bob", body=b"x" * 1_000).code == 0
    assert world.reply_to(world.last_opaque - 1) is not None
    assert pull_as(world, "ann").code == Code.FLOW_CONTROL


class _OpenWorld(BrokerWorld):
    """Without access control: quotas of users have no effect, and a warning says so."""

    is_warned = True


def test_a_super_user_has_the_quota_of_users_too_and_a_stranger_none() -> None:
    world = world_of(maxMessagesPerSecondOfUser="2")
    assert codes(world, ROOT, 3) == [0, 0, 2]
    open_world = _OpenWorld(maxMessagesPerSecondOfUser="2")
    sent = [open_world.ask(Ask.SEND_MESSAGE_V2, send_header(TOPIC, 0), b"x") for _ in range(5)]
    assert {answer.code for answer in sent} == {0}


def test_quotas_of_users_that_do_not_parse_are_an_error_of_their_property() -> None:
    with pytest.raises(ConfigurationError, match="quotasOfUsers: "):
        broker_config({"quotasOfUsers": "ann"})


def test_a_reply_to_a_client_counts_as_any_other_send() -> None:
    world = world_of(quotasOfUsers="ann:3:0", maxMessagesPerSecondOfTopic="50")
    header = {**send_header(TOPIC, 0), "f": 1}
    found = [world.ask_as("ann", Ask.SEND_REPLY_MESSAGE_V2, header, b"x").code for _ in range(5)]
    assert found[3:] == [Code.SYSTEM_BUSY] * 2
    assert Code.SYSTEM_BUSY not in found[:3]
    assert codes(world, "ann", 1) == [Code.SYSTEM_BUSY]


def test_a_message_that_is_sent_back_counts_with_its_whole_body() -> None:
    world = world_of(quotasOfUsers="ann:0:1000")
    sent = send_as(world, "bob", body=b"x" * 900)
    offset = decode_offset_message_id(sent.ext_fields["msgId"]).commit_log_offset
    fields = {"offset": offset, "group": GROUP, "delayLevel": -1, "maxReconsumeTimes": 0}
    found = [world.ask_as("ann", Ask.CONSUMER_SEND_MSG_BACK, fields).code for _ in range(4)]
    assert found == [0, 0, Code.SYSTEM_BUSY, Code.SYSTEM_BUSY]
    assert len(world.records(f"%DLQ%{GROUP}")) == 2


def test_messages_that_are_read_without_a_pull_count_too() -> None:
    """A peek, a look at one message by its place and a query by key bring bodies like a pull."""
    properties = {"KEYS": "k"}
    for code in (Ask.PEEK_MESSAGE, Ask.VIEW_MESSAGE_BY_ID, Ask.QUERY_MESSAGE):
        world = world_of(quotasOfUsers="ann:0:1000")
        header = send_header(TOPIC, 0, **properties)
        sent = world.ask_as("bob", Ask.SEND_MESSAGE_V2, header, b"x" * 2_000)
        offset = decode_offset_message_id(sent.ext_fields["msgId"]).commit_log_offset
        asked = {
            Ask.PEEK_MESSAGE: {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
            | {"maxMsgNums": 5},
            Ask.VIEW_MESSAGE_BY_ID: {"offset": offset, "topic": TOPIC},
            Ask.QUERY_MESSAGE: {"topic": TOPIC, "key": "k", "maxNum": 10, "beginTimestamp": 0}
            | {"endTimestamp": 2**62},
        }[code]
        first = world.ask_as("ann", code, asked)
        assert (first.code, len(first.body) > 2_000) == (0, True), code
        assert world.ask_as("ann", code, asked).code == Code.FLOW_CONTROL, code
        assert pull_as(world, "ann").code == Code.FLOW_CONTROL
        assert world.ask_as("bob", code, asked).code == 0


def test_a_query_costs_what_it_brings_and_not_what_was_deleted() -> None:
    world = world_of(quotasOfUsers="ann:5:0")
    header = send_header(TOPIC, 0, KEYS="k")
    for _ in range(30):
        world.ask_as("bob", Ask.SEND_MESSAGE_V2, header, b"old")
    assert world.ask_as(ROOT, Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}).code == 0
    world.create_topic_as_root(TOPIC)
    world.ask_as("bob", Ask.SEND_MESSAGE_V2, header, b"new")
    asked = {"topic": TOPIC, "key": "k", "maxNum": 50, "beginTimestamp": 0, "endTimestamp": 2**62}
    for _ in range(3):
        found = world.ask_as("ann", Ask.QUERY_MESSAGE, asked)
        assert (found.code, found.body.count(b"new"), found.body.count(b"old")) == (0, 1, 0)
