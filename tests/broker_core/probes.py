"""Questions that both brokers must answer alike: good, bad and absurd input, in order.

A probe is one request. The list is a script: later probes see what earlier ones did. Topics and
groups of the probes are new to the broker.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command
from reliable_mq.wire.properties import encode_properties

TOPIC = "probed"
GROUP = "probing"
QUEUES = 2
NO_READ = "not_readable"
CLIENT = "client@1"


class Probe(NamedTuple):
    """One request. `shows` names the ext fields of the reply that must be equal too.

    `is_bug_there` marks what Apache answers with a Java exception: there only the code is compared.
    `differs` says why the answers must not be equal.
    """

    name: str
    code: int
    ext: Mapping[str, object] = {}
    body: bytes = b""
    shows: tuple[str, ...] = ()
    shows_body: bool = False
    is_bug_there: bool = False
    differs: str = ""


def body_of(value: object) -> bytes:
    return json.dumps(value).encode()


def sending(**changes: object) -> dict[str, object]:
    """Return the header of a send, changed: SEND_MESSAGE_V2's one-letter names."""
    names = {
        "group": "a",
        "topic": "b",
        "default_topic": "c",
        "queues": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "max_reconsume_times": "l",
        "batch": "m",
    }
    values: dict[str, object] = {
        "group": "producers",
        "topic": TOPIC,
        "default_topic": "TBW102",
        "queues": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born": 1_700_000_000_000,
        "flag": 0,
        "batch": "false",
        **changes,
    }
    return {names[name]: value for name, value in values.items()}


def pulling(**changes: object) -> dict[str, object]:
    """Return the header of a pull that brings its own subscription, changed."""
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
        **changes,
    }


def topic(name: str, **changes: object) -> dict[str, object]:
    """Return the header of UPDATE_AND_CREATE_TOPIC, changed."""
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        **changes,
    }


def heartbeat(
    *topics: str, group: str = GROUP, sub_version: int = 10, **changes: object
) -> dict[str, Any]:
    """Return the body of a consumer's heartbeat, changed."""
    subscriptions = [subscription(name, sub_version=sub_version) for name in topics]
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": subscriptions,
        "unitMode": False,
        **changes,
    }
    return {"clientID": CLIENT, "producerDataSet": [], "consumerDataSet": [consumer]}


def subscription(
    name: str, expression: str = "*", kind: str = "TAG", sub_version: int = 10
) -> dict[str, Any]:
    return {
        "topic": name,
        "subString": expression,
        "expressionType": kind,
        "subVersion": sub_version,
        "tagsSet": [],
        "codeSet": [],
        "classFilterMode": False,
    }


def group_config(name: str, **changes: object) -> bytes:
    return body_of({"groupName": name, **changes})


def queue(topic_name: str = TOPIC, queue_id: int = 0, broker: str = "b") -> dict[str, object]:
    return {"topic": topic_name, "brokerName": broker, "queueId": queue_id}


def locking(client: str, *queues: dict[str, object], group: str = GROUP) -> bytes:
    return body_of({"consumerGroup": group, "clientId": client, "mqSet": list(queues)})


SEND_RESULT = ("queueId", "queueOffset", "MSG_REGION", "TRACE_ON")
PULL_RESULT = ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")
PULL_FLAGS = ("topicSysFlag", "groupSysFlag", "forbiddenType")
ONE = ("offset",)
LONG = "x" * 128
TAGGED = encode_properties({"TAGS": "red", "UNIQ_KEY": "A" * 32}).decode()
BIG = f"P\x01{'v' * 33_000}\x02"
DELAYED = encode_properties({"DELAY": "18", "UNIQ_KEY": "B" * 32}).decode()
BATCH = encode_batch([BatchItem(0, b"one", b""), BatchItem(0, b"two", b"TAGS\x01red\x02")])

UNKNOWN = [
    Probe("an unknown request code", 9_999),
    Probe("a negative request code", -1),
    Probe("a request code of the name server", Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}),
]

TOPICS = [
    Probe("a topic is created", Ask.UPDATE_AND_CREATE_TOPIC, topic(TOPIC)),
    Probe("a topic without read permission", Ask.UPDATE_AND_CREATE_TOPIC, topic(NO_READ, perm=2)),
    Probe("a topic is created as it is", Ask.UPDATE_AND_CREATE_TOPIC, topic(TOPIC)),
    Probe("a topic with a blank name", Ask.UPDATE_AND_CREATE_TOPIC, topic(" ")),
    Probe("a topic with illegal letters", Ask.UPDATE_AND_CREATE_TOPIC, topic("a topic?")),
    Probe("a topic with a long name", Ask.UPDATE_AND_CREATE_TOPIC, topic(LONG)),
    Probe("a long retry topic", Ask.UPDATE_AND_CREATE_TOPIC, topic("%RETRY%" + "x" * 255)),
    Probe("a system topic", Ask.UPDATE_AND_CREATE_TOPIC, topic("SELF_TEST_TOPIC")),
    Probe("a system topic by prefix", Ask.UPDATE_AND_CREATE_TOPIC, topic("rmq_sys_x")),
    Probe("the cluster's topic", Ask.UPDATE_AND_CREATE_TOPIC, topic("DefaultCluster")),
    Probe(
        "a mixed topic", Ask.UPDATE_AND_CREATE_TOPIC, topic("m", attributes="+message.type=MIXED")
    ),
    Probe(
        "a first-in-first-out topic",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("fifo", attributes="+message.type=FIFO"),
    ),
    Probe("its settings", Ask.GET_TOPIC_CONFIG, {"topic": "fifo"}, shows_body=True),
    Probe("an unknown attribute", Ask.UPDATE_AND_CREATE_TOPIC, topic("m1", attributes="+x=1")),
    Probe(
        "an attribute without sign",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m2", attributes="message.type=FIFO"),
    ),
    Probe(
        "an attribute of no value",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m3", attributes="+message.type=ZZ"),
        differs="ours lists the values that it keeps its word on",
    ),
    Probe(
        "an attribute taken", Ask.UPDATE_AND_CREATE_TOPIC, topic("fifo", attributes="-message.type")
    ),
    Probe("its settings then", Ask.GET_TOPIC_CONFIG, {"topic": "fifo"}, shows_body=True),
    Probe(
        "a filter type of no kind",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m4", topicFilterType="ZZ"),
        differs="Apache names a Java exception",
    ),
    Probe(
        "a topic without queues",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m5", readQueueNums=0, writeQueueNums=0),
    ),
    Probe(
        "a topic of fewer than none",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m6", readQueueNums=-1),
        differs="Apache makes a topic that no client can use",
    ),
    Probe(
        "a topic of x queues",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m7", readQueueNums="x"),
        is_bug_there=True,
    ),
    Probe(
        "a topic without permissions",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m8", perm=None),
        is_bug_there=True,
    ),
    Probe("the settings of a topic", Ask.GET_TOPIC_CONFIG, {"topic": TOPIC}, shows_body=True),
    Probe("the settings of no topic", Ask.GET_TOPIC_CONFIG, {"topic": "nowhere"}),
    Probe(
        "the numbers of an empty topic", Ask.GET_TOPIC_STATS_INFO, {"topic": TOPIC}, shows_body=True
    ),
    Probe("the numbers of no topic", Ask.GET_TOPIC_STATS_INFO, {"topic": "nowhere"}),
]

SENDS = [
    Probe("a send", Ask.SEND_MESSAGE_V2, sending(properties=TAGGED), b"hello", SEND_RESULT),
    Probe("a second send", Ask.SEND_MESSAGE_V2, sending(), b"again", SEND_RESULT),
    Probe("a send to a new topic", Ask.SEND_MESSAGE_V2, sending(topic="fresh"), b"x", SEND_RESULT),
    Probe(
        "a send without a template",
        Ask.SEND_MESSAGE_V2,
        sending(topic="t1", default_topic="no"),
        b"x",
    ),
    Probe(
        "a send by a bad template",
        Ask.SEND_MESSAGE_V2,
        sending(topic="t2", default_topic=TOPIC),
        b"x",
    ),
    Probe("a send to a blank topic", Ask.SEND_MESSAGE_V2, sending(topic=""), b"x"),
    Probe("a send to an illegal topic", Ask.SEND_MESSAGE_V2, sending(topic="a b"), b"x"),
    Probe("a send to a long topic", Ask.SEND_MESSAGE_V2, sending(topic=LONG), b"x"),
    Probe("a send to a longer topic", Ask.SEND_MESSAGE_V2, sending(topic=LONG * 3), b"x"),
    Probe(
        "a send to a forbidden topic",
        Ask.SEND_MESSAGE_V2,
        sending(topic="SCHEDULE_TOPIC_XXXX"),
        b"x",
    ),
    Probe("a send to the self test", Ask.SEND_MESSAGE_V2, sending(topic="SELF_TEST_TOPIC"), b"x"),
    Probe("a send to queue 4 of 4", Ask.SEND_MESSAGE_V2, sending(topic="fresh", queue_id=4), b"x"),
    Probe("a send to a queue out of range", Ask.SEND_MESSAGE_V2, sending(queue_id=QUEUES), b"x"),
    Probe("a send to a huge queue", Ask.SEND_MESSAGE_V2, sending(queue_id=2**31 - 1), b"x"),
    Probe("a message that is too long", Ask.SEND_MESSAGE_V2, sending(), b"x" * (4 << 20 | 1)),
    Probe(
        "a message as long as allowed", Ask.SEND_MESSAGE_V2, sending(queue_id=1), b"x" * (4 << 20)
    ),
    Probe("properties that are too long", Ask.SEND_MESSAGE_V2, sending(properties=BIG), b"x"),
    Probe(
        "a delayed message",
        Ask.SEND_MESSAGE_V2,
        sending(properties=DELAYED),
        b"late",
        SEND_RESULT[:1],
    ),
    Probe(
        "a level too high",
        Ask.SEND_MESSAGE_V2,
        sending(properties="DELAY\x0199\x02"),
        b"late",
        SEND_RESULT[:1],
    ),
    Probe(
        "a level that is no number",
        Ask.SEND_MESSAGE_V2,
        sending(properties="DELAY\x01x\x02"),
        b"l",
        is_bug_there=True,
    ),
    Probe("a batch", Ask.SEND_BATCH_MESSAGE, sending(batch="true"), BATCH, SEND_RESULT),
    Probe(
        "a batch to a retry topic",
        Ask.SEND_BATCH_MESSAGE,
        sending(batch="true", topic="%RETRY%g"),
        BATCH,
    ),
    Probe(
        "a batch of nothing", Ask.SEND_BATCH_MESSAGE, sending(batch="true"), b"", is_bug_there=True
    ),
    Probe(
        "a batch that is cut",
        Ask.SEND_BATCH_MESSAGE,
        sending(batch="true"),
        BATCH[:-3],
        is_bug_there=True,
    ),
    Probe(
        "a batch too long",
        Ask.SEND_BATCH_MESSAGE,
        sending(batch="true"),
        encode_batch([BatchItem(0, b"x" * (3 << 20), b"")] * 2),
        differs="Apache names a Java exception, ours the limit",
    ),
    Probe(
        "a batch marked by its header",
        Ask.SEND_MESSAGE_V2,
        sending(batch="true", queue_id=1),
        BATCH,
        SEND_RESULT,
    ),
    Probe(
        "a send without a topic", Ask.SEND_MESSAGE_V2, sending(topic=None), b"x", is_bug_there=True
    ),
    Probe(
        "a send without a queue",
        Ask.SEND_MESSAGE_V2,
        sending(queue_id=None),
        b"x",
        is_bug_there=True,
    ),
    Probe("a send to queue x", Ask.SEND_MESSAGE_V2, sending(queue_id="x"), b"x", is_bug_there=True),
    Probe(
        "a send in long names",
        Ask.SEND_MESSAGE,
        {
            "producerGroup": "p",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4,
            "queueId": 1,
            "sysFlag": 0,
            "bornTimestamp": 1,
            "flag": 0,
            "reconsumeTimes": 0,
            "unitMode": "false",
            "batch": "false",
            "properties": "",
        },
        b"old",
        SEND_RESULT,
    ),
    Probe(
        "a retry of an unknown group",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%newgroup"),
        b"x",
        SEND_RESULT,
    ),
    Probe(
        "a retry of an illegal group",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%" + "g" * 121),
        b"x",
    ),
    Probe(
        "a retry at its limit",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%newgroup", reconsume_times=3, max_reconsume_times=3),
        b"x",
        SEND_RESULT,
    ),
    Probe(
        "a retry over its limit",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%newgroup", reconsume_times=4, max_reconsume_times=3),
        b"dead",
        SEND_RESULT,
    ),
    Probe(
        "a retry over the group's limit",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%newgroup", reconsume_times=17, properties=DELAYED),
        b"dead",
        SEND_RESULT,
    ),
    Probe("how many died", Ask.GET_MAX_OFFSET, {"topic": "%DLQ%newgroup", "queueId": 0}, shows=ONE),
    Probe(
        "the topic of the dead", Ask.GET_TOPIC_CONFIG, {"topic": "%DLQ%newgroup"}, shows_body=True
    ),
]

PULLS = [
    Probe("a pull", Ask.PULL_MESSAGE, pulling(maxMsgNums=1), b"", PULL_RESULT + PULL_FLAGS),
    Probe(
        "a pull of one tag",
        Ask.PULL_MESSAGE,
        pulling(subscription="red", maxMsgNums=2),
        b"",
        PULL_RESULT,
    ),
    Probe(
        "a pull of no tag there",
        Ask.PULL_MESSAGE,
        pulling(subscription="blue || green"),
        b"",
        PULL_RESULT,
    ),
    Probe("a pull at the end", Ask.PULL_MESSAGE, pulling(queueOffset=4), b"", PULL_RESULT),
    Probe("a pull after the end", Ask.PULL_MESSAGE, pulling(queueOffset=99), b"", PULL_RESULT),
    Probe("a pull before the begin", Ask.PULL_MESSAGE, pulling(queueOffset=-1), b"", PULL_RESULT),
    Probe(
        "a pull of an empty queue",
        Ask.PULL_MESSAGE,
        pulling(topic="fresh", queueId=3),
        b"",
        PULL_RESULT,
    ),
    Probe(
        "a pull of an empty queue's end",
        Ask.PULL_MESSAGE,
        pulling(topic="fresh", queueId=3, queueOffset=7),
        b"",
        PULL_RESULT,
    ),
    Probe("a pull of no message", Ask.PULL_MESSAGE, pulling(maxMsgNums=0), b"", PULL_RESULT),
    Probe(
        "a pull of a negative number", Ask.PULL_MESSAGE, pulling(maxMsgNums=-5), b"", PULL_RESULT
    ),
    Probe("a light pull", Ask.LITE_PULL_MESSAGE, pulling(maxMsgNums=1), b"", PULL_RESULT),
    Probe("a pull of no topic", Ask.PULL_MESSAGE, pulling(topic="nowhere")),
    Probe(
        "a pull of a topic that cannot be read",
        Ask.PULL_MESSAGE,
        pulling(topic=NO_READ),
        shows=("forbiddenType",),
    ),
    Probe("a pull of a queue out of range", Ask.PULL_MESSAGE, pulling(queueId=QUEUES)),
    Probe("a pull of a negative queue", Ask.PULL_MESSAGE, pulling(queueId=-1)),
    Probe("a pull of an illegal group", Ask.PULL_MESSAGE, pulling(consumerGroup="a group?")),
    Probe("a pull of a long group", Ask.PULL_MESSAGE, pulling(consumerGroup="g" * 121)),
    Probe(
        "a pull by an empty expression",
        Ask.PULL_MESSAGE,
        pulling(subscription=""),
        b"",
        PULL_RESULT,
    ),
    Probe("a pull by bars", Ask.PULL_MESSAGE, pulling(subscription="||")),
    Probe("a pull by SQL", Ask.PULL_MESSAGE, pulling(subscription="a > 1", expressionType="SQL92")),
    Probe(
        "a pull by bad SQL", Ask.PULL_MESSAGE, pulling(subscription="a >", expressionType="SQL92")
    ),
    Probe("a pull by no SQL", Ask.PULL_MESSAGE, pulling(subscription="", expressionType="SQL92")),
    Probe(
        "a pull by an unknown language",
        Ask.PULL_MESSAGE,
        pulling(subscription="x", expressionType="ZZ"),
    ),
    Probe("a pull of nobody", Ask.PULL_MESSAGE, pulling(sysFlag=0, consumerGroup="nobody")),
    Probe("a pull of queue x", Ask.PULL_MESSAGE, pulling(queueId="x"), is_bug_there=True),
    Probe("a pull without a topic", Ask.PULL_MESSAGE, pulling(topic=None), is_bug_there=True),
    Probe(
        "a pull without an offset", Ask.PULL_MESSAGE, pulling(queueOffset=None), is_bug_there=True
    ),
]

CLIENTS = [
    Probe("nobody is there", Ask.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}),
    Probe("nobody is connected", Ask.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP}),
    Probe(
        "a heartbeat",
        Ask.HEART_BEAT,
        {},
        body_of(heartbeat(TOPIC, f"%RETRY%{GROUP}")),
        ("IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"),
    ),
    Probe("a heartbeat of nobody", Ask.HEART_BEAT, {}, b"", is_bug_there=True),
    Probe("a heartbeat that is no JSON", Ask.HEART_BEAT, {}, b"{", is_bug_there=True),
    Probe(
        "a heartbeat of an illegal group",
        Ask.HEART_BEAT,
        {},
        body_of(heartbeat(TOPIC, group="a b")),
        ("IS_SUB_CHANGE",),
    ),
    Probe(
        "who is there", Ask.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}, shows_body=True
    ),
    Probe(
        "who is connected",
        Ask.GET_CONSUMER_CONNECTION_LIST,
        {"consumerGroup": GROUP},
        shows_body=True,
    ),
    Probe(
        "the group's retry topic",
        Ask.GET_TOPIC_CONFIG,
        {"topic": f"%RETRY%{GROUP}"},
        shows_body=True,
    ),
    Probe(
        "the group's settings", Ask.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}, shows_body=True
    ),
    Probe(
        "a pull of a subscription",
        Ask.PULL_MESSAGE,
        pulling(sysFlag=0, subVersion=10, maxMsgNums=1),
        b"",
        PULL_RESULT,
    ),
    Probe("a pull of a newer subscription", Ask.PULL_MESSAGE, pulling(sysFlag=0, subVersion=11)),
    Probe("a pull without subscription", Ask.PULL_MESSAGE, pulling(sysFlag=0, topic="fresh")),
    Probe(
        "a fingerprint",
        Ask.HEART_BEAT,
        {},
        body_of({**heartbeat(TOPIC), "heartbeatFingerprint": 7, "withoutSub": False}),
        ("IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"),
    ),
    Probe(
        "the same fingerprint",
        Ask.HEART_BEAT,
        {},
        body_of({**heartbeat(), "heartbeatFingerprint": 7, "withoutSub": True}),
        ("IS_SUB_CHANGE",),
    ),
    Probe(
        "a subscription that was kept",
        Ask.PULL_MESSAGE,
        pulling(sysFlag=0, maxMsgNums=1),
        b"",
        PULL_RESULT,
    ),
    Probe(
        "another fingerprint",
        Ask.HEART_BEAT,
        {},
        body_of({**heartbeat(TOPIC), "heartbeatFingerprint": 8, "withoutSub": False}),
        ("IS_SUB_CHANGE",),
    ),
    Probe(
        "a client by tags",
        Ask.CHECK_CLIENT_CONFIG,
        {},
        body_of({"clientId": CLIENT, "group": GROUP, "subscriptionData": subscription(TOPIC)}),
    ),
    Probe(
        "a client by SQL",
        Ask.CHECK_CLIENT_CONFIG,
        {},
        body_of(
            {
                "clientId": CLIENT,
                "group": GROUP,
                "subscriptionData": subscription(TOPIC, "a > 1", "SQL92"),
            }
        ),
    ),
    Probe(
        "a client without subscription",
        Ask.CHECK_CLIENT_CONFIG,
        {},
        body_of({"clientId": CLIENT, "group": GROUP}),
    ),
    Probe("a client that says nothing", Ask.CHECK_CLIENT_CONFIG),
]

LOCKS = [
    Probe("a lock", Ask.LOCK_BATCH_MQ, {}, locking("a", queue()), shows_body=True),
    Probe(
        "a lock that is held",
        Ask.LOCK_BATCH_MQ,
        {},
        locking("b", queue(), queue(queue_id=1)),
        shows_body=True,
    ),
    Probe("an unlock by another", Ask.UNLOCK_BATCH_MQ, {}, locking("b", queue())),
    Probe("still held", Ask.LOCK_BATCH_MQ, {}, locking("b", queue()), shows_body=True),
    Probe(
        "a retry while a queue is locked",
        Ask.SEND_MESSAGE_V2,
        sending(topic=f"%RETRY%{GROUP}", reconsume_times=0),
        b"dead",
        SEND_RESULT,
    ),
    Probe("it died", Ask.GET_MAX_OFFSET, {"topic": f"%DLQ%{GROUP}", "queueId": 0}, shows=ONE),
    Probe("an unlock", Ask.UNLOCK_BATCH_MQ, {}, locking("a", queue())),
    Probe("free again", Ask.LOCK_BATCH_MQ, {}, locking("b", queue()), shows_body=True),
    Probe("all unlocked", Ask.UNLOCK_BATCH_MQ, {}, locking("b", queue(), queue(queue_id=1))),
    Probe("a lock of nothing", Ask.LOCK_BATCH_MQ, {}, locking("a"), shows_body=True),
    Probe("a lock without a body", Ask.LOCK_BATCH_MQ, is_bug_there=True),
]

OFFSETS = [
    Probe(
        "an offset of a young queue",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": TOPIC, "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "an offset that is not zero",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": TOPIC, "queueId": 0, "setZeroIfNotFound": "false"},
    ),
    Probe(
        "an offset set to zero",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": TOPIC, "queueId": 0, "setZeroIfNotFound": "true"},
        shows=ONE,
    ),
    Probe(
        "an offset of an empty queue",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": "fresh", "queueId": 2},
    ),
    Probe(
        "an offset of no topic",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": "nowhere", "queueId": 0},
    ),
    Probe(
        "an offset without a queue",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": TOPIC},
        is_bug_there=True,
    ),
    Probe(
        "a commit",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 2},
    ),
    Probe(
        "the committed offset",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "a commit of no group",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "nobody2", "topic": TOPIC, "queueId": 0, "commitOffset": 2},
    ),
    Probe(
        "a commit of no topic",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": "nowhere", "queueId": 0, "commitOffset": 2},
    ),
    Probe(
        "a commit of no queue",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "commitOffset": 2},
    ),
    Probe(
        "a commit of no offset",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
    ),
    Probe(
        "a commit back",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 1},
    ),
    Probe(
        "the offset went back",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "a pull that commits",
        Ask.PULL_MESSAGE,
        pulling(sysFlag=5, commitOffset=3, maxMsgNums=1),
        b"",
        PULL_RESULT,
    ),
    Probe(
        "the pull's commit",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
        shows=ONE,
    ),
    Probe("the end", Ask.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0}, shows=ONE),
    Probe("the end of no topic", Ask.GET_MAX_OFFSET, {"topic": "nowhere", "queueId": 0}, shows=ONE),
    Probe("the begin", Ask.GET_MIN_OFFSET, {"topic": TOPIC, "queueId": 0}, shows=ONE),
    Probe(
        "the begin of no topic",
        Ask.GET_MIN_OFFSET,
        {"topic": "nowhere2", "queueId": 0},
        shows=ONE,
        differs="Apache makes a queue by asking for it",
    ),
    Probe(
        "the first time of no topic",
        Ask.GET_EARLIEST_MSG_STORETIME,
        {"topic": "nowhere", "queueId": 0},
        shows=("timestamp",),
    ),
    Probe(
        "the first time of an empty queue",
        Ask.GET_EARLIEST_MSG_STORETIME,
        {"topic": "fresh", "queueId": 2},
        shows=("timestamp",),
    ),
    Probe(
        "an offset long ago",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 0},
        shows=ONE,
    ),
    Probe(
        "an offset in the future",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 2**52},
        shows=ONE,
    ),
    Probe(
        "an upper offset in the future",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 2**52, "boundaryType": "upper"},
        shows=ONE,
    ),
    Probe(
        "an upper offset long ago",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 0, "boundaryType": "upper"},
        shows=ONE,
    ),
    Probe(
        "an offset by time of no topic",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": "nowhere", "queueId": 0, "timestamp": 0},
        shows=ONE,
    ),
    Probe(
        "Go's search by time", Ask.GET_MAX_OFFSET, {"Topic": TOPIC, "QueueId": 0}, is_bug_there=True
    ),
]

GROUPS = [
    Probe(
        "a group is made",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("made", consumeEnable=False),
    ),
    Probe(
        "a pull of a group that may not",
        Ask.PULL_MESSAGE,
        pulling(consumerGroup="made"),
        shows=("forbiddenType",),
    ),
    Probe(
        "a group with an illegal name",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("a b"),
    ),
    Probe(
        "a group with a blank name", Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_config("")
    ),
    Probe(
        "a group with a long name",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("g" * 121),
    ),
    Probe("no group is made", Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
    Probe(
        "the settings of a made group",
        Ask.GET_SUBSCRIPTIONGROUP_CONFIG,
        {"group": "made"},
        shows_body=True,
    ),
    Probe("the settings of no group", Ask.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "a b"}),
    Probe(
        "a broadcasting group",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("cast", consumeBroadcastEnable=False),
    ),
    Probe(
        "a broadcaster's heartbeat",
        Ask.HEART_BEAT,
        {},
        body_of(heartbeat(TOPIC, group="cast", messageModel="BROADCASTING")),
    ),
    Probe(
        "a pull of a broadcaster",
        Ask.PULL_MESSAGE,
        pulling(consumerGroup="cast", sysFlag=0),
        shows=("forbiddenType",),
    ),
    Probe(
        "a group that retries nothing",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("never", retryQueueNums=0),
    ),
    Probe(
        "its failure", Ask.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "never", "delayLevel": 0}
    ),
    Probe(
        "its stats",
        Ask.GET_CONSUME_STATS,
        {"consumerGroup": "cast", "topic": "nowhere"},
        shows_body=True,
    ),
    Probe("stats of nobody", Ask.GET_CONSUME_STATS, {"consumerGroup": "nobody3"}, shows_body=True),
    Probe("a goodbye", Ask.UNREGISTER_CLIENT, {"clientID": CLIENT, "consumerGroup": "cast"}),
    Probe(
        "a goodbye of nobody",
        Ask.UNREGISTER_CLIENT,
        {"clientID": "nobody", "consumerGroup": "none", "producerGroup": "none"},
    ),
    Probe("nobody is left", Ask.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cast"}),
]

SEND_BACKS = [
    Probe(
        "a failure comes again",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP, "delayLevel": 0, "maxReconsumeTimes": 16},
    ),
    Probe(
        "a failure at a level",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP, "delayLevel": 18},
    ),
    Probe(
        "a failure is given up",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP, "delayLevel": -1, "originTopic": TOPIC},
    ),
    Probe(
        "no attempt is left",
        Ask.CONSUMER_SEND_MSG_BACK,
        {
            "offset": 0,
            "group": GROUP,
            "delayLevel": 0,
            "maxReconsumeTimes": 0,
            "originTopic": TOPIC,
        },
    ),
    Probe(
        "how many died of this",
        Ask.GET_MAX_OFFSET,
        {"topic": f"%DLQ%{GROUP}", "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "a failure of no message",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 2**40, "group": GROUP, "delayLevel": 0},
    ),
    Probe(
        "a failure of half a message",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 7, "group": GROUP, "delayLevel": 0},
        is_bug_there=True,
    ),
    Probe(
        "a failure of a negative offset",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": -1, "group": GROUP, "delayLevel": 0},
    ),
    Probe(
        "a failure of an illegal group",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": "a b", "delayLevel": 0},
    ),
    Probe(
        "a failure of no offset",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"group": GROUP, "delayLevel": 0},
        is_bug_there=True,
    ),
    Probe(
        "a failure without a level",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP},
        is_bug_there=True,
    ),
    Probe("a message by its offset", Ask.VIEW_MESSAGE_BY_ID, {"offset": 0}),
    Probe("no message by its offset", Ask.VIEW_MESSAGE_BY_ID, {"offset": 2**40}),
    Probe("half a message by its offset", Ask.VIEW_MESSAGE_BY_ID, {"offset": 7}, is_bug_there=True),
    Probe("a message of topic and offset", Ask.VIEW_MESSAGE_BY_ID, {"offset": 0, "topic": TOPIC}),
]

DELETIONS = [
    Probe("a topic is deleted", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "fresh"}),
    Probe("it is gone", Ask.GET_TOPIC_CONFIG, {"topic": "fresh"}),
    Probe(
        "its end is gone",
        Ask.GET_MAX_OFFSET,
        {"topic": "fresh", "queueId": 0},
        shows=ONE,
        differs="our queues go on counting, so that a replay can tell old from new",
    ),
    Probe(
        "it begins again",
        Ask.SEND_MESSAGE_V2,
        sending(topic="fresh"),
        b"x",
        SEND_RESULT,
        differs="our queues go on counting, so that a replay can tell old from new",
    ),
    Probe("no topic is deleted", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "nowhere"}),
    Probe("a blank topic is deleted", Ask.DELETE_TOPIC_IN_BROKER, {"topic": ""}),
    Probe(
        "a system topic is deleted", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "SCHEDULE_TOPIC_XXXX"}
    ),
]

SCRIPT = [
    *UNKNOWN,
    *TOPICS,
    *SENDS,
    *PULLS,
    *CLIENTS,
    *LOCKS,
    *OFFSETS,
    *SEND_BACKS,
    *GROUPS,
    *DELETIONS,
]


def seen(probe: Probe, answer: Command, address: str) -> dict[str, object]:
    """Return what is compared of an answer; what differs by nature is replaced."""
    shown: dict[str, object] = {"code": answer.code}
    if not probe.is_bug_there:
        shown["remark"] = _neutral(answer.remark or None, address)
    for name in probe.shows:
        shown[name] = answer.ext_fields.get(name)
    if probe.shows_body:
        shown["body"] = _neutral(answer.body.decode(), address)
    return shown


def _neutral(text: str | None, address: str) -> str | None:
    if text in (None, "not set any response code"):  # what Apache says when it has nothing to say
        return None
    text = text.replace(address, "BROKER")
    text = re.sub(r"127\.0\.0\.1:\d+", "CLIENT", text)
    return re.sub(r'"brokerName":"[^"]*"', '"brokerName":"NAME"', text)
