"""Requests that are right, as a beginning: one for every code, and the names of all fields."""

from collections.abc import Sequence
from random import Random

import msgspec
from tests.fuzz.mutations import mutated, mutated_fields, mutated_json, odd_text

from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.errors import FrameError
from reliable_mq.wire import fastjson, headers
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, encode_command, request
from reliable_mq.wire.frame import JSON, ROCKETMQ
from reliable_mq.wire.properties import encode_properties

START_MS = 1_700_000_000_000

_TOPICS = ("orders", "orders", "%RETRY%payments", "new-topic", "SCHEDULE_TOPIC_XXXX")
_PROPERTIES: Sequence[dict[str, str]] = (
    {},
    {"TAGS": "paid", "KEYS": "k1 k2", "UNIQ_KEY": "AC110002000000000000000000000001"},
    {"DELAY": "1"},
    {"TIMER_DELAY_SEC": "1"},
    {"TIMER_DELIVER_MS": str(START_MS + 1_500)},
    {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "AC110002000000000000000000000002"},
    {"MSG_TYPE": "reply", "REPLY_TO_CLIENT": "client-1", "CLUSTER": "c", "CORRELATION_ID": "1"},
)
_SQL = ("a > 1 AND b = 'x'", "a BETWEEN 1 AND 2 OR c IS NOT NULL", "NOT (a IN ('x', 'y'))")


def _header_classes() -> list[type[headers.Header]]:
    found: list[type[headers.Header]] = []
    todo: list[type[headers.Header]] = [headers.Header]
    while todo:
        children = todo.pop().__subclasses__()
        found += children
        todo += children
    return found


HEADERS = _header_classes()
NAMES = sorted(
    {field.encode_name for cls in HEADERS for field in msgspec.structs.fields(cls)}
    | {"group", "key", "offset", "topic", "queueId", "consumerGroup", "producerGroup", "index"}
    | {"count", "timestamp", "brokerAddr", "clientId", "msgId", "beginTimestamp", "endTimestamp"}
    | {"maxNum", "isForce", "isC", "srcGroup", "destGroup", "isOffline", "clean", "jstackEnable"}
)


def _value(random: Random, name: str) -> str:
    """Return a likely value of a field."""
    if random.random() < 0.05:
        return odd_text(random)
    lower = name.lower()
    if "properties" in lower or name == "i":
        return encode_properties(random.choice(_PROPERTIES)).decode()
    if "topic" in lower or name in "bc":
        return random.choice(_TOPICS)
    if "group" in lower or name == "a":
        return "payments"
    if name in {"subscription", "expression"}:
        return random.choice(("*", "paid", "paid || sent", *_SQL))
    if "type" in lower and "expression" in lower:
        return random.choice(("TAG", "SQL92"))
    if "timestamp" in lower or name == "g":
        return str(START_MS + random.randint(-2_000, 2_000))
    if lower.startswith(("is", "unit", "set", "batch")) or name in "km":
        return random.choice(("true", "false"))
    return str(random.choice((0, 0, 0, 1, 2, 4, 6, 8, 300)))


def _fields(random: Random) -> dict[str, str]:
    cls = random.choice(HEADERS)
    fields = {
        field.encode_name: _value(random, field.encode_name)
        for field in msgspec.structs.fields(cls)
        if field.required or random.random() < 0.5
    }
    for _ in range(random.choice((0, 1, 3))):
        name = random.choice(NAMES)
        fields[name] = _value(random, name)
    return fields


_SEND = {
    "a": "producers",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": str(START_MS),
    "h": "0",
}
_HEARTBEAT = {
    "clientID": "client-1",
    "heartbeatFingerprint": 0,
    "producerDataSet": [{"groupName": "producers"}],
    "consumerDataSet": [
        {
            "groupName": "payments",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {"topic": "orders", "subString": "paid", "codeSet": [7], "tagsSet": ["paid"]},
                {"topic": "orders", "subString": _SQL[0], "expressionType": "SQL92"},
            ],
        }
    ],
}
_LOCKS = {
    "consumerGroup": "payments",
    "clientId": "client-1",
    "mqSet": [{"topic": "orders", "brokerName": "b", "queueId": 0}],
}
_TABLE = {
    "offsetTable": {"orders@payments": {"0": 1}},
    "subscriptionGroupTable": {"g": {"groupName": "g", "retryMaxTimes": 3}},
    "topicConfigTable": {"t": {"topicName": "t", "readQueueNums": 1}},
    "groupConfigList": [{"groupName": "g"}],
    "topicConfigList": [{"topicName": "t", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}],
    "groupName": "g",
    "subscriptionData": {"topic": "orders", "subString": _SQL[1], "expressionType": "SQL92"},
}


def _body(random: Random) -> bytes:
    kind = random.random()
    if kind < 0.3:
        return random.choice((b"", b"x", random.randbytes(200)))
    if kind < 0.5:
        properties = [encode_properties(p) for p in _PROPERTIES[:3]]
        items = [BatchItem(0, b"x" * random.randint(0, 9), random.choice(properties))] * 3
        return (
            mutated(random, encode_batch(items)) if random.random() < 0.5 else encode_batch(items)
        )
    value = random.choice((_HEARTBEAT, _LOCKS, _TABLE))
    body = fastjson.dumps(mutated_json(random, value))
    return mutated(random, body) if random.random() < 0.2 else body


def any_request(random: Random) -> Command:
    """Return a request that is nearly right."""
    code = int(random.choice(list(HANDLERS)))
    fields = _fields(random)
    if random.random() < 0.3:
        code = random.choice((RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
        fields = {**_SEND, "i": encode_properties(random.choice(_PROPERTIES)).decode()}
    if random.random() < 0.02:
        code = random.choice((0, -1, 9_999, 2**31 - 1))
    command = request(code, mutated_fields(random, fields, NAMES), _body(random))
    command.opaque = random.choice((1, 2, 3, -1, 2**31 - 1))
    command.flag = random.choice((0,) * 30 + (1, 2, 3, -1))
    command.serialize_type = random.choice((JSON, ROCKETMQ))
    command.version = random.choice((493, 0, 400))
    command.language = random.choice(("JAVA", "GO", "PYTHON"))
    return command


def request_bytes(random: Random) -> bytes:
    """Return the bytes of a request, which may be damaged."""
    try:
        frame = encode_command(any_request(random))
    except FrameError:  # a text that has no place in the form
        return b"\0\0\0\0"
    return mutated(random, frame) if random.random() < 0.15 else frame
