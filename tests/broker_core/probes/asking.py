"""What a probe is, how its request is spelled, and what is compared of its answer."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from reliable_mq.wire import fastjson
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.command import Command
from reliable_mq.wire.properties import encode_properties

TOPIC = "probed"


GROUP = "probing"


QUEUES = 2


NO_READ = "not_readable"


CLIENT = "client@1"


class Probe(NamedTuple):
    """One request. `shows` names the ext fields of the reply that must be equal too.

    `shows_all` compares all of them and the body, but for what no two brokers have in common.
    `is_bug_there` marks what Apache answers with a Java exception: there only the code is compared.
    `lags`: Apache shows what happened a moment later, so both are asked until they answer alike.
    `differs` says why the answers must not be equal.
    """

    name: str
    code: int
    ext: Mapping[str, object] = {}
    body: bytes = b""
    shows: tuple[str, ...] = ()
    shows_body: bool = False
    shows_all: bool = False
    is_bug_there: bool = False
    lags: bool = False
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


def seen(probe: Probe, answer: Command, address: str) -> dict[str, object]:
    """Return what is compared of an answer; what differs by nature is replaced."""
    shown: dict[str, object] = {"code": answer.code}
    if not probe.is_bug_there:
        shown["remark"] = _neutral(answer.remark or None, address)
    for name in probe.shows:
        shown[name] = answer.ext_fields.get(name)
    if probe.shows_body:
        shown["body"] = _neutral(answer.body.decode(), address)
    if probe.shows_all:
        shown["ext"] = _alike(dict(answer.ext_fields))
        shown["body"] = _told(answer.body, address)
    return shown


# What answers of two brokers never have in common, and why ours says something else.
_UNLIKE = {
    "msgId": "",
    "recallHandle": "",
    "physicOffset": "",
    "indexLastUpdatePhyoffset": "",
    "masterCommitLogMaxOffset": "",
    "topicPutTps": "sampled at another moment",
    "consumeTps": "sampled at another moment",
    "transactionId": "Apache repeats the message id here; clients read it of halves only",
    "consumeTimeStampStr": "Apache tells each time once more as text of its zone",
    "maxTimeStampStr": "the same",
    "minTimeStampStr": "the same",
    "delayTime": "Apache counts from 1970 in an empty queue",
    "totalInflightDiff": "Apache subtracts what was committed from nothing",
}
_TIME = re.compile(r"1\d{12}")  # milliseconds


def _told(body: bytes, address: str) -> object:
    """Return a body as values, without order; of records only how many bytes they are."""
    if body[:1] not in (b"{", b"["):
        return len(body)
    return _alike(fastjson.loads(_nameless(body.decode(), address)))


def _alike(value: object) -> object:
    if isinstance(value, dict):
        return {name: _alike(of) for name, of in value.items() if name not in _UNLIKE}
    if isinstance(value, list):
        return sorted(map(_alike, value), key=repr)
    return "a time" if _TIME.fullmatch(str(value)) else value


def _neutral(text: str | None, address: str) -> str | None:
    if text in (None, "not set any response code"):  # what Apache says when it has nothing to say
        return None
    return re.sub(r'"topicList":\[([^]]*)]', _sorted_list, _nameless(text, address))


def _nameless(text: str, address: str) -> str:
    text = text.replace(address, "BROKER")
    text = re.sub(r"127\.0\.0\.1:\d+", "CLIENT", text)
    return re.sub(r'"brokerName":"[^"]*"', '"brokerName":"NAME"', text)


def _sorted_list(found: re.Match[str]) -> str:
    """Return a list of topics in order; Apache's is a hash table's."""
    return ",".join(sorted(found[1].split(",")))
