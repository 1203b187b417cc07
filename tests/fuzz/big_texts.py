"""Long texts: in fields of headers, in subscriptions and filters, in bodies that are JSON."""

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

from tests.fuzz.bystander import GROUP, TOPIC
from tests.fuzz.fields import PULL, SEND, try_frame
from tests.fuzz.requests import NAMES
from tests.fuzz.scene import MIB, VICTIM, Broken, Peer, Scene

from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.frame import JSON, ROCKETMQ

# What a broker or a name server may be asked; those that only wait are left out.
_OF_BROKER = tuple(int(code) for code in HANDLERS)
_OF_NAME_SERVER = tuple(int(code) for code in NameServerCore().codes)
_ECHOED = ("topic", "group", "consumerGroup", "producerGroup", "namespace", "key", "clusterName")
# Requests whose answers name what they were asked about.
_ECHOES_OF_BROKER = (
    *((Ask.GET_CONSUMER_LIST_BY_GROUP, "consumerGroup"), (Ask.GET_TOPIC_CONFIG, "topic")),
    *((Ask.GET_CONSUMER_CONNECTION_LIST, "consumerGroup"), (Ask.GET_CONSUME_STATS, "topic")),
)
_ECHOES_OF_NAME_SERVER = (
    *((Ask.GET_ROUTEINFO_BY_TOPIC, "topic"), (Ask.GET_KV_CONFIG, "namespace")),
    *((Ask.GET_KVLIST_BY_NAMESPACE, "namespace"), (Ask.GET_BROKER_MEMBER_GROUP, "brokerName")),
)
_CHARACTERS = ("x", "\x01", "\x1b", "é", "😀", '"', "%", "{", "|", "1")
_REMARK_MAX = 5_000


def size(random: Random, most: int = FRAME_SIZE_MAX) -> int:
    """Return a size up to `most`: as often small as large, and often the largest."""
    if random.random() < 0.3:
        return most
    return int(1_000 * math.pow(most / 1_000, random.random()))


def _answered(peer: Peer, frame: bytes) -> None:
    """Send a request. Its answer is one of this request, or the connection ends."""
    if not frame or not peer.send(frame):
        return
    answer = peer.wait()
    if answer is not None and len(answer.remark or "") > _REMARK_MAX:
        raise Broken(f"a remark of {len(answer.remark or '')} characters")


def long_fields(scene: Scene) -> None:
    """Any request with a field that is as long as a frame allows."""
    random = scene.random
    scene.peer().ask(Ask.SEND_MESSAGE_V2, {**SEND, "b": VICTIM}, b"x")
    for _ in range(random.randint(5, 9)):
        is_brokers = random.random() < 0.7
        peer = scene.peer("" if is_brokers else scene.name_server)
        code = random.choice(_OF_BROKER if is_brokers else _OF_NAME_SERVER)
        name = random.choice(_ECHOED if random.random() < 0.7 else NAMES)
        if random.random() < 0.4:
            code, name = random.choice(_ECHOES_OF_BROKER if is_brokers else _ECHOES_OF_NAME_SERVER)
        character = random.choice(_CHARACTERS)
        form = random.choice((JSON, ROCKETMQ))
        others = {"topic": VICTIM, "group": VICTIM, "consumerGroup": VICTIM, "queueId": "0"}
        fields: dict[str, str] = {**random.choice((others, {})), name: ""}
        empty = len(peer.frame(code, fields, serialize_type=form))
        spelled = len(peer.frame(code, {**fields, name: character}, serialize_type=form)) - empty
        count = size(random, (FRAME_SIZE_MAX - empty - 8) // spelled)
        scene.note("field", (code, name, character, count, form))
        fields[name] = character * count
        _answered(peer, peer.frame(code, fields, serialize_type=form))
        peer.close()


def _deep(count: int) -> bytes:
    return b"[" * (count // 2) + b"]" * (count // 2)


def _rows(row: Callable[[int], bytes], size_max: int) -> bytes:
    count = size_max // (len(row(10**6)) + 1)
    return b",".join(map(row, range(count)))


_BODIES: Sequence[Callable[[int], bytes]] = (
    _deep,
    lambda size: b"{" + _rows(lambda n: b"%d:%d" % (n, n), size) + b"}",
    lambda size: b"[" + _rows(lambda n: b"'%d'" % n, size) + b"]",
    lambda size: b"[" + b"," * size + b"]",
    lambda size: b" " * size,
    lambda size: b'"' + b"\\u00e9" * (size // 6) + b'"',
    lambda size: b"'" + b"\\x41" * (size // 4) + b"'",
    lambda size: b"{'a':" + b"9" * size + b"}",
    lambda size: b"{a:" + b"-" * size,
    lambda size: (
        b'{"clientID":"c","consumerDataSet":['
        + _rows(lambda n: b'{"groupName":"g%d"}' % n, size)
        + b"]}"
    ),
    lambda size: (
        b'{"clientID":"c","producerDataSet":['
        + _rows(lambda n: b'{"groupName":"p%d"}' % n, size)
        + b"]}"
    ),
    lambda size: (
        b'{"consumerGroup":"g","clientId":"c","mqSet":['
        + _rows(lambda n: b'{"topic":"t","brokerName":"b","queueId":%d}' % n, size)
        + b"]}"
    ),
    lambda size: (
        b'{"groupConfigList":[' + _rows(lambda n: b'{"groupName":"g%d"}' % n, size) + b"]}"
    ),
    lambda size: (
        b'{"topicConfigList":['
        + _rows(lambda n: b'{"topicName":"t%d","readQueueNums":1}' % n, size)
        + b"]}"
    ),
    lambda size: (
        b'{"topicConfigList":[{"topicName":"t","attributes":{"+a":"'
        + b"+b=c," * (size // 5)
        + b'"}}]}'
    ),
    lambda size: b'{"topics":[' + _rows(lambda n: b'"t%d"' % n, size) + b"]}",
    lambda size: b"".join(b"name%d=value\n" % n for n in range(size // 18)),
    lambda size: b"a=" + b"\\u0041" * (size // 6),
    lambda size: b"a\\\n" * (size // 3),
)
_READ_BODIES = (
    *(Ask.HEART_BEAT, Ask.CHECK_CLIENT_CONFIG, Ask.LOCK_BATCH_MQ, Ask.UNLOCK_BATCH_MQ),
    *(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Ask.UPDATE_AND_CREATE_TOPIC_LIST),
    *(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Ask.UPDATE_BROKER_CONFIG, Ask.GET_TOPIC_STATS_INFO),
    *(Ask.SET_MESSAGE_REQUEST_MODE, Ask.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, Ask.SEND_BATCH_MESSAGE),
)
_READ_BODIES_BY_NAMES = (
    *(Ask.REGISTER_BROKER, Ask.QUERY_DATA_VERSION, Ask.REGISTER_TOPIC_IN_NAMESRV),
    *(Ask.UPDATE_NAMESRV_CONFIG, Ask.PUT_KV_CONFIG),
)


def long_bodies(scene: Scene) -> None:
    """Any request with a body of many rows, many levels, or of JSON as fastjson alone reads it."""
    random = scene.random
    names = dict.fromkeys(("brokerName", "brokerAddr", "clusterName", "topic", "key"), "x")
    ext = {**names, "brokerId": "0", "compressed": "false", "group": GROUP, "queueId": "0"}
    for _ in range(random.randint(3, 6)):
        is_brokers = random.random() < 0.75
        peer = scene.peer("" if is_brokers else scene.name_server)
        code = random.choice(_READ_BODIES if is_brokers else _READ_BODIES_BY_NAMES)
        if random.random() < 0.1:
            code = Ask(random.choice(_OF_BROKER if is_brokers else _OF_NAME_SERVER))
        kind, length = random.randrange(len(_BODIES)), size(random, FRAME_SIZE_MAX - 4_096)
        scene.note("body", (code.name, kind, length))
        body = _BODIES[kind](length)
        _answered(peer, try_frame(lambda: peer.frame(code, ext, body)))  # noqa: B023
        peer.close()


def _filters(random: Random, length: int) -> str:
    """Return a text of SQL92 of about this length."""
    kind = random.randrange(6)
    if kind == 0:
        return " OR ".join(f"a = {number}" for number in range(length // 12))
    if kind == 1:
        return "(" * (length // 2) + "a = 1" + ")" * (length // 2)
    if kind == 2:
        return "a IN (" + ",".join(f"'{number}'" for number in range(length // 9)) + ")"
    if kind == 3:
        return f"a = '{'x' * length}'"
    if kind == 4:
        return "NOT " * (length // 4) + "TRUE"
    return "a > " + "9" * length


def filters(scene: Scene) -> None:
    """Subscriptions by long expressions, and pulls by them."""
    random = scene.random
    peer = scene.peer()
    for number in range(random.randint(3, 6)):
        text = _filters(random, size(random, 4 * MIB))
        scene.note("filter", (len(text), text[:40]))
        wanted = {
            "topic": TOPIC,
            "subString": text,
            "expressionType": "SQL92",
            "subVersion": number,
        }
        consumer = {"groupName": "filtering", "subscriptionDataSet": [wanted]}
        _beat(peer, consumer)
        body = fastjson.dumps({"subscriptionData": wanted, "group": "filtering", "clientId": "c"})
        _answered(peer, try_frame(lambda: peer.frame(Ask.CHECK_CLIENT_CONFIG, {}, body)))  # noqa: B023
        pull = {**PULL, "consumerGroup": "filtering", "queueOffset": "0"}
        _answered(peer, peer.frame(Ask.PULL_MESSAGE, {**pull, "sysFlag": "0"}))
        pull |= {"subscription": text, "expressionType": "SQL92"}
        _answered(peer, try_frame(lambda: peer.frame(Ask.PULL_MESSAGE, pull)))  # noqa: B023


def _beat(peer: Peer, consumer: Mapping[str, object]) -> None:
    body = fastjson.dumps({"clientID": "c", "consumerDataSet": [consumer]})
    _answered(peer, try_frame(lambda: peer.frame(Ask.HEART_BEAT, {}, body)))


def many_groups(scene: Scene) -> None:
    """Heartbeats that each name another group, with as many subscriptions as fit a body."""
    random = scene.random
    peers = [scene.peer() for _ in range(random.choice((1, 1, 3)))]
    words = [f"tag-{number}" for number in range(1_000)]
    codes = [0] * len(words)
    for number in range(random.choice((6, 16))):
        wanted = [
            {"topic": f"t{number}-{each}", "subString": "a", "tagsSet": words, "codeSet": codes}
            for each in range(random.choice((40, 300, 300)))
        ]
        scene.note("subscriptions", len(wanted))
        beat = {"groupName": f"large-{number}", "subscriptionDataSet": wanted}
        _beat(random.choice(peers), beat)


def tags(scene: Scene) -> None:
    """Subscriptions and pulls by very many tags, of which some wait."""
    random = scene.random
    peer = scene.peer()
    for _ in range(random.randint(3, 6)):
        count = size(random, 666_666)
        scene.note("tags", count)
        words = [f"t{number}" for number in range(count)]
        pull = {**PULL, "queueOffset": "0", "subscription": "||".join(words)}
        _answered(peer, try_frame(lambda: peer.frame(Ask.PULL_MESSAGE, pull)))  # noqa: B023
        if count < 300_000:
            codes = list(range(count))
            wanted = {"topic": TOPIC, "subString": "a", "tagsSet": words, "codeSet": codes}
            _beat(peer, {"groupName": "tagged", "subscriptionDataSet": [wanted]})
