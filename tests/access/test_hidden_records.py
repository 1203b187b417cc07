"""What an attacker with one topic and one group cannot reach: other topics, by place or by hash."""

import pytest
from tests.access.access_world import ROOT, AccessWorld, is_let_in
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    heartbeat,
    pull_header,
    send_header,
    waiting_pull_header,
)
from tests.broker_core.half_world import (
    COMMIT,
    INTERVAL_MS,
    PRODUCERS,
    ROLLBACK,
    ending,
    half_header,
)

from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command
from reliable_mq.wire.java_hash import index_hash
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.recall_handle import decode_recall_handle, encode_recall_handle

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
    sent = world.ask_as(ROOT, Ask.SEND_MESSAGE_V2, send_header(topic, 0, **properties), b"a secret")
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
    body = heartbeat(OWN, of=1, group=GROUP, client_id="client@1")
    assert world.ask_as(MALLORY, Ask.HEART_BEAT, {}, body).code == Code.SUCCESS
    world.notices()
    fields = {"consumerGroup": GROUP, "clientId": "client@1", "topic": OWN}

    answer = world.ask_as(
        MALLORY, Ask.CONSUME_MESSAGE_DIRECTLY, {**fields, "msgId": secret.ext_fields["msgId"]}
    )
    assert not is_let_in(answer)
    assert world.notices() == []


def test_an_administrator_shows_a_message_only_to_who_may_consume_it(world: AccessWorld) -> None:
    """Who may use a group is a member of it, and an administrator takes it for one of its own."""
    body = heartbeat(OWN, of=1, group=GROUP, client_id="client@1")
    world.ask_as(MALLORY, Ask.HEART_BEAT, {}, body, of=3, version=493)
    world.notices(3)
    fields = {"consumerGroup": GROUP, "clientId": "client@1"}
    for topic, is_shown in ((TOPIC, False), (OWN, True)):
        named = {**fields, "msgId": stored(world, topic).ext_fields["msgId"]}
        answer = world.begin_as(ROOT, Ask.CONSUME_MESSAGE_DIRECTLY, named)
        assert (answer is None) is is_shown, topic
        assert len(world.notices(3)) == is_shown
    world.put_policy(MALLORY, [f"Topic:{OWN}"], decision="Deny")
    answer = world.begin_as(ROOT, Ask.CONSUME_MESSAGE_DIRECTLY, named)
    assert answer is not None
    assert "may not consume" in (answer.remark or "")
    assert world.notices(3) == []


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


@pytest.mark.parametrize("how", ["recall", "property", "property with topic"])
def test_a_timed_message_of_another_topic_is_not_taken_back(how: str) -> None:
    """Apache's broker looks for the key alone, unless it has the topic's name in it, as text."""
    world = AccessWorld(recallMessageEnable="true", mappedFileSizeTimerLog="4096")
    for name in (TOPIC, OWN):
        world.create_topic_as_root(name)
    world.make_user(MALLORY)
    world.allow(MALLORY, f"Topic:{OWN}")
    key = "A" * 32
    timed = {"TIMER_DELAY_MS": "3500", "UNIQ_KEY": key}
    sent = world.ask_as(ROOT, Ask.SEND_MESSAGE_V2, send_header(TOPIC, 0, **timed), b"stays")
    world.ask_as(MALLORY, Ask.SEND_MESSAGE_V2, send_header(OWN, 0, **timed), b"goes")

    handle = decode_recall_handle(sent.ext_fields["recallHandle"])
    assert handle is not None
    if how == "recall":
        forged = encode_recall_handle(handle._replace(topic=OWN))
        answer = world.ask_as(MALLORY, Ask.RECALL_MESSAGE, {"topic": OWN, "recallHandle": forged})
    else:
        named = key if how == "property" else f"{TOPIC}+{key}"
        properties = {"TIMER_DEL_UNIQKEY": named, "TIMER_DELIVER_MS": handle.time}
        header = send_header(OWN, 0, UNIQ_KEY="B" * 32, **properties)
        answer = world.ask_as(MALLORY, Ask.SEND_MESSAGE_V2, header, b"0")
    assert answer.code == Code.SUCCESS

    world.pass_time(6_000)
    assert [record.body for record in world.records(TOPIC)] == [b"stays"]
    own = [] if how != "property with topic" else [b"goes"]
    assert [record.body for record in world.records(OWN)] == own, "her own message is gone"


def produce_as(world: AccessWorld, user: str, of: int, client: str = "") -> Command:
    beat = {
        "clientID": client or f"client-{of}",
        "producerDataSet": [{"groupName": PRODUCERS}],
        "consumerDataSet": [],
    }
    return world.ask_as(user, Ask.HEART_BEAT, {}, fastjson.dumps(beat), of=of)


def test_a_half_message_is_not_shown_to_who_claims_to_be_its_producer(world: AccessWorld) -> None:
    """Everybody may name any group of producers. A check-back has the message."""
    world.make_user("ann")
    world.allow("ann", f"Topic:{TOPIC}", actions=["Pub"])
    header = {**half_header(), "e": 0, "g": world.now_ms}
    assert world.ask_as("ann", Ask.SEND_MESSAGE_V2, header, b"half", of=2).code == Code.SUCCESS

    assert produce_as(world, MALLORY, of=3).code == Code.SUCCESS
    world.pass_time(INTERVAL_MS)
    assert world.notices(3) == []
    assert produce_as(world, "ann", of=2).code == Code.SUCCESS
    for _ in range(3):
        world.pass_time(INTERVAL_MS)
    assert world.notices(3) == []
    assert {each.code for each in world.notices(2)} == {Ask.CHECK_TRANSACTION_STATE}
    world.put_policy("ann", [f"Topic:{TOPIC}"], decision="Deny")
    world.pass_time(INTERVAL_MS)
    assert world.notices(2) == [], "it may not send there any more"


def test_nobody_takes_the_replies_of_another_users_client(world: AccessWorld) -> None:
    """A reply goes to a client id, and everybody may write any id into a heartbeat."""
    world.make_user("ann")
    assert produce_as(world, "ann", of=2, client="shop@1").code == Code.SUCCESS

    taken = produce_as(world, MALLORY, of=3, client="shop@1")
    assert (taken.code, taken.remark) == (
        Code.NO_PERMISSION,
        "the client id shop@1 is another user's",
    )
    assert world.state.clients.find_producer("shop@1") == 2
    assert produce_as(world, "ann", of=4, client="shop@1").code == Code.SUCCESS, "it reconnects"
    assert world.state.clients.find_producer("shop@1") == 4


def test_a_half_message_of_another_topic_is_not_resumed(world: AccessWorld) -> None:
    half = world.ask_as(ROOT, Ask.SEND_MESSAGE_V2, {**half_header(), "e": 0}, b"half")
    fields = {"msgId": half.ext_fields["msgId"]}

    for claimed in (OWN, "", None):
        asked = {**fields, "topic": claimed}
        assert not is_let_in(world.ask_as(MALLORY, Ask.RESUME_CHECK_HALF_MESSAGE, asked))
    asked = {**fields, "topic": TOPIC}
    assert world.ask_as(ROOT, Ask.RESUME_CHECK_HALF_MESSAGE, asked).code == Code.SUCCESS


def test_a_topic_of_the_broker_does_not_show_messages_of_a_denied_topic(world: AccessWorld) -> None:
    """Delayed messages of all topics are in one topic. Our page tells consumers to allow rmq_*."""
    world.make_user("ann")
    world.allow("ann", "Topic:*", "Topic:rmq_*", f"Group:{GROUP}")
    world.put_policy("ann", [f"Topic:{TOPIC}"], decision="Deny")
    stored(world, TOPIC, DELAY="3")
    world.state.find_group(GROUP, world.now_ms)

    for topic, queue_id in (("SCHEDULE_TOPIC_XXXX", 2), ("rmq_sys_wheel_timer", 0)):
        answer = world.ask_as("ann", Ask.PULL_MESSAGE, pull_header(topic=topic, queueId=queue_id))
        assert not is_let_in(answer)
        answer = world.ask_as(ROOT, Ask.PULL_MESSAGE, pull_header(topic=topic, queueId=queue_id))
        assert is_let_in(answer)


LONG_MS = 86_400_000
WAITING: dict[Ask, dict[str, object]] = {
    Ask.PULL_MESSAGE: waiting_pull_header(topic=OWN, suspendTimeoutMillis=LONG_MS),
    Ask.POP_MESSAGE: {
        "consumerGroup": GROUP,
        "topic": OWN,
        "queueId": -1,
        "maxMsgNums": 8,
        "initMode": 0,
        "invisibleTime": 30_000,
        "pollTime": LONG_MS,
        "expType": "TAG",
        "exp": "*",
    },
    Ask.NOTIFICATION: {"consumerGroup": GROUP, "topic": OWN, "queueId": -1, "pollTime": LONG_MS},
}


@pytest.mark.parametrize("how", ["policy", "disabled", "deleted"])
@pytest.mark.parametrize("code", WAITING)
def test_what_waits_for_a_message_ends_with_the_right_to_it(
    world: AccessWorld, code: Ask, how: str
) -> None:
    """A client chooses how long it waits. A message must not come after the right is gone."""
    world.state.find_group(GROUP, world.now_ms)
    world.finish_turn()
    header = {**WAITING[code], "bornTime": world.now_ms}
    assert world.begin_as(MALLORY, code, header, of=3) is None
    pulled = world.last_opaque

    if how == "policy":
        world.put_policy(MALLORY, [f"Topic:{OWN}"], decision="Deny")
    elif how == "disabled":
        world.change_user(MALLORY, userStatus="disable")
    else:
        world.ask_as(ROOT, Ask.AUTH_DELETE_USER, {"username": MALLORY})
    stored(world, OWN)

    answer = world.reply_to(pulled, of=3)
    assert answer is not None
    assert (answer.body, is_let_in(answer)) == (b"", False)


@pytest.mark.parametrize("code", WAITING)
def test_what_waits_gets_its_message_while_its_user_may_have_it(
    world: AccessWorld, code: Ask
) -> None:
    world.state.find_group(GROUP, world.now_ms)
    world.finish_turn()
    header = {**WAITING[code], "bornTime": world.now_ms}
    assert world.begin_as(MALLORY, code, header, of=3) is None
    pulled = world.last_opaque
    stored(world, OWN)

    answer = world.reply_to(pulled, of=3)
    assert answer is not None
    assert answer.code == Code.SUCCESS
    assert answer.ext_fields.get("hasMsg", "true") == "true"


@pytest.mark.parametrize("code", [Ask.GET_CONSUMER_RUNNING_INFO, Ask.CONSUME_MESSAGE_DIRECTLY])
def test_a_consumer_does_not_get_the_signature_of_who_asks_it(
    world: AccessWorld, code: int
) -> None:
    """A signature covers no code: sent again as another request, it would show all secrets."""
    body = heartbeat(OWN, of=1, group=GROUP, client_id="client@1")
    assert world.ask_as(MALLORY, Ask.HEART_BEAT, {}, body, of=3, version=493).code == Code.SUCCESS
    world.notices(3)
    message_id = stored(world, OWN).ext_fields["msgId"]
    asked = {"consumerGroup": GROUP, "clientId": "client@1", "msgId": message_id, "topic": OWN}
    assert world.begin_as(ROOT, code, asked) is None

    (forwarded,) = (each for each in world.notices(3) if each.code == code)
    assert forwarded.ext_fields["clientId"] == "client@1"
    replayed = world.ask(Ask.AUTH_LIST_USER, forwarded.ext_fields, of=3)
    assert not is_let_in(replayed)
    assert not {"AccessKey", "Signature", "SecurityToken"} & forwarded.ext_fields.keys()


def test_a_denied_group_is_denied_in_its_retry_topic_for_popped_messages() -> None:
    world = AccessWorld(enableRetryTopicV2="true")
    world.create_topic_as_root(TOPIC)
    world.make_user(MALLORY)
    world.allow(MALLORY, "Topic:*", "Group:*")
    assert world.put_policy(MALLORY, ["Group:victims"], decision="Deny").code == Code.SUCCESS
    for topic, is_open in ((TOPIC, True), (f"%RETRY%victims+{TOPIC}", False)):
        fields = pull_header(0, topic=topic, consumerGroup="mine")
        answer = world.ask_as(MALLORY, Ask.PULL_MESSAGE, fields)
        assert is_let_in(answer) is is_open, (topic, answer.remark)
