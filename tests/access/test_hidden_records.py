"""What an attacker with one topic and one group cannot reach: other topics, by place or by hash."""

import pytest
from tests.access.access_world import ROOT, AccessWorld, is_let_in
from tests.broker_core.broker_world import GROUP, TOPIC, heartbeat, send_header
from tests.broker_core.half_world import COMMIT, ROLLBACK, ending, half_header

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command
from reliable_mq.wire.java_hash import index_hash
from reliable_mq.wire.message_id import decode_offset_message_id

OWN = "own"
MALLORY = "mallory"


@pytest.fixture
def world() -> AccessWorld:
    """Give a broker on which Mallory may use one topic and one group, and nothing else."""
    world = AccessWorld()
    for name in (TOPIC, OWN):
        world.create_topic_as_root(name)
    world.make_user(MALLORY)
    world.allow(MALLORY, f"Topic:{OWN}", f"Group:{GROUP}")
    return world


def place_of(sent: Command) -> int:
    return decode_offset_message_id(sent.ext_fields["msgId"]).commit_log_offset


def stored(world: AccessWorld, topic: str, **properties: str) -> Command:
    header = send_header(topic, 0, **properties)
    sent = world.ask_as(ROOT, Ask.SEND_MESSAGE_V2, header, b"a secret")
    assert sent.code == Code.SUCCESS
    return sent


def test_a_message_is_not_shown_by_its_place_under_another_topic(world: AccessWorld) -> None:
    for properties in ({}, {"DELAY": "3"}):
        secret = stored(world, TOPIC, **properties)
        own = stored(world, OWN, **properties)
        for claimed in (OWN, TOPIC, "", None):
            fields = {"offset": place_of(secret), "topic": claimed}
            assert not is_let_in(world.ask_as(MALLORY, Ask.VIEW_MESSAGE_BY_ID, fields))
        fields = {"offset": place_of(own), "topic": OWN}
        assert world.ask_as(MALLORY, Ask.VIEW_MESSAGE_BY_ID, fields).code == Code.SUCCESS


def test_a_forged_real_topic_does_not_help(world: AccessWorld) -> None:
    """The property counts only in topics that nobody else can write to."""
    secret = stored(world, TOPIC, REAL_TOPIC=OWN)
    fields = {"offset": place_of(secret), "topic": OWN}
    assert not is_let_in(world.ask_as(MALLORY, Ask.VIEW_MESSAGE_BY_ID, fields))


def test_who_may_read_the_cluster_reads_by_place_alone(world: AccessWorld) -> None:
    world.make_user("operator")
    world.allow("operator", "Cluster:*", actions=["Get"])
    fields = {"offset": place_of(stored(world, TOPIC))}
    assert world.ask_as("operator", Ask.VIEW_MESSAGE_BY_ID, fields).code == Code.SUCCESS


def test_a_message_is_not_copied_into_a_retry_topic(world: AccessWorld) -> None:
    secret, own = stored(world, TOPIC), stored(world, OWN)
    fields = {"group": GROUP, "delayLevel": 1, "originTopic": OWN}

    refused = world.ask_as(
        MALLORY, Ask.CONSUMER_SEND_MSG_BACK, {**fields, "offset": place_of(secret)}
    )
    assert not is_let_in(refused)
    taken = world.ask_as(MALLORY, Ask.CONSUMER_SEND_MSG_BACK, {**fields, "offset": place_of(own)})
    assert taken.code == Code.SUCCESS


def test_a_message_is_not_pushed_to_a_consumer(world: AccessWorld) -> None:
    secret = stored(world, TOPIC)
    body = heartbeat(OWN, of=1, group=GROUP)
    assert world.ask_as(MALLORY, Ask.HEART_BEAT, {}, body).code == Code.SUCCESS
    world.notices()
    fields = {"consumerGroup": GROUP, "clientId": "client@1", "topic": OWN}

    answer = world.ask_as(
        MALLORY, Ask.CONSUME_MESSAGE_DIRECTLY, {**fields, "msgId": secret.ext_fields["msgId"]}
    )
    assert not is_let_in(answer)
    assert world.notices() == []


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_the_transaction_of_another_topic_is_not_ended(world: AccessWorld, decision: int) -> None:
    half = world.ask_as(ROOT, Ask.SEND_MESSAGE_V2, {**half_header(), "e": 0}, b"half")
    assert half.code == Code.SUCCESS

    fields = ending(half, decision, topic=OWN)
    assert not is_let_in(world.ask_as(MALLORY, Ask.END_TRANSACTION, fields))
    assert len(world.state.halves) == 1
    fields = ending(half, decision, topic=TOPIC)
    assert world.ask_as(ROOT, Ask.END_TRANSACTION, fields).code == Code.SUCCESS


def test_a_query_finds_nothing_of_another_topic_by_a_chosen_hash(world: AccessWorld) -> None:
    """The index has 32 bits of a hash of Java's: a key with the hash of another one is found."""
    stored(world, TOPIC, KEYS="4711", UNIQ_KEY="A" * 32)
    wanted = index_hash(TOPIC, "4711")
    fields = {"topic": OWN, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**53}

    key = colliding(OWN, wanted)
    assert index_hash(OWN, key) == wanted
    answer = world.ask_as(MALLORY, Ask.QUERY_MESSAGE, {**fields, "key": key})
    assert answer.code == Code.QUERY_NOT_FOUND
    seen = world.ask_as(ROOT, Ask.QUERY_MESSAGE, {**fields, "topic": TOPIC, "key": "4711"})
    assert seen.code == Code.SUCCESS


def colliding(topic: str, wanted: int) -> str:
    """Return a key that has a wanted hash under a topic: seven digits of base 31 reach any hash."""
    least = ord(">")
    rest = wanted - java_hash_of(f"{topic}#") * 31**7 - sum(least * 31**at for at in range(7))
    rest %= 2**32
    digits = [rest // 31**at % 31 for at in reversed(range(7))]
    return "".join(chr(least + digit) for digit in digits)


def java_hash_of(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value
