"""The requests of attackers: cheap ones, the dearest ones, and those that fill tables.

`attackers` sends them. `prepare` puts there what the dearest ones read.
"""

import asyncio
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import encode_command, request

LARGE, MANY, KEYED = "attack-large", "attack-many", "attack-keyed"  # topics
GROUP, CROWD = "attack-group", "attack-crowd"  # consumer groups
LARGE_SIZE = 4 * 1024 * 1024 - 1024
KEYED_COUNT, KEYED_SIZE = 64, 180 * 1024
MANY_COUNT = 2_000
TOPICS = 8_000  # of the table that is asked for
CROWD_SIZE = 1_000  # members of a group, each by a connection of its own
_CREATION = {
    "defaultTopic": "TBW102",
    "perm": "6",
    "order": "false",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
}
_REGISTERED = 300  # topics of a registration
_BOMB_SIZE = 31 * 1024 * 1024


def frame(code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> bytes:
    """Return a request as bytes; None is left out."""
    texts = {name: str(value) for name, value in (fields or {}).items() if value is not None}
    return encode_command(request(code, texts, body))


def _pull(topic: str, **changes: object) -> bytes:
    return frame(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            **changes,
        },
    )


def _send(topic: str, body: bytes, sys_flag: int = 0) -> bytes:
    fields = {"a": "attackers", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": sys_flag, "g": 1}
    fields |= {"h": 0, "i": "", "j": 0, "k": "false", "l": 0, "m": "false"}
    return frame(RequestCode.SEND_MESSAGE_V2, fields, body)


def large_pulls(count: int = 1) -> list[bytes]:
    """Pulls whose answers have 4 MiB."""
    return [_pull(LARGE)] * count


def sends() -> list[bytes]:
    """Sends of 64 bytes."""
    return [_send(MANY, b"x" * 64)]


def commits() -> list[bytes]:
    """Commits of an offset."""
    fields = {"consumerGroup": GROUP, "topic": MANY, "queueId": 0, "commitOffset": 1}
    return [frame(RequestCode.UPDATE_CONSUMER_OFFSET, fields)]


def offsets() -> list[bytes]:
    """Requests for the end of a queue: cheap, and not among those that are known as small."""
    return [frame(RequestCode.GET_MAX_OFFSET, {"topic": MANY, "queueId": 0})]


def keys() -> list[bytes]:
    """Queries by a key that 64 messages have, together 11 MiB."""
    fields = {"topic": KEYED, "key": "k", "maxNum": 64, "beginTimestamp": 0}
    return [frame(RequestCode.QUERY_MESSAGE, {**fields, "endTimestamp": 2**62})]


def times() -> list[bytes]:
    """Searches for the offset of a time."""
    fields = {"topic": MANY, "queueId": 0, "timestamp": 1}
    return [frame(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)]


def tables() -> list[bytes]:
    """Requests for the whole table of topics."""
    return [frame(RequestCode.GET_ALL_TOPIC_CONFIG)]


def filters() -> list[bytes]:
    """Pulls by a long filter that no message passes, each with another text."""
    parts = " OR ".join(f"price = {number}" for number in range(450))
    return [
        _pull(MANY, subscription=f"{parts} OR price = {number}", expressionType="SQL92")
        for number in range(1_000, 1_020)
    ]


def members() -> list[bytes]:
    """Requests for all connections of a group that has a thousand."""
    return [frame(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": CROWD})]


def dear() -> list[bytes]:
    """One of each of the dearest requests."""
    return [*keys(), *times(), *tables(), *filters()[:2], *members(), *large_pulls()]


def packed_bodies() -> list[bytes]:
    """Sends whose bodies claim to be compressed, and unpack to a thousand times their size."""
    bomb = zlib.compress(bytes(4 * 1024 * 1024 - 1), 9)
    return [_send(MANY, bomb, sys_flag=0x1 | 0x300)]


def sends_to_new(lane: int, lanes: int) -> Iterator[bytes]:
    """Sends to topics that do not exist, each to another one."""
    of_zero = _send(f"attack-{0:09d}", b"x")
    for number in itertools.count(lane, lanes):
        yield of_zero.replace(b"attack-000000000", b"attack-%09d" % number)


def creations(lane: int, lanes: int) -> Iterator[bytes]:
    """Creations of topics by an administrator, one a request."""
    ext = {**_CREATION, "topic": f"admin-{0:09d}"}
    of_zero = frame(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    for number in itertools.count(lane, lanes):
        yield of_zero.replace(b"admin-000000000", b"admin-%09d" % number)


def lists(lane: int, lanes: int) -> Iterator[bytes]:
    """Creations of topics by an administrator, a thousand a request."""
    for number in itertools.count(lane, lanes):
        rows = [
            {"topicName": f"list-{number}-{row}", "readQueueNums": 1, "writeQueueNums": 1}
            for row in range(1_000)
        ]
        body = json.dumps({"topicConfigList": rows}).encode()
        yield frame(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)


def routes(lane: int, lanes: int) -> Iterator[bytes]:
    """Requests for the routes of topics that do not exist."""
    of_zero = frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": f"route-{0:09d}"})
    for number in itertools.count(lane, lanes):
        yield of_zero.replace(b"route-000000000", b"route-%09d" % number)


def _registration(broker: str, address: str, body: bytes, **fields: object) -> bytes:
    header = {
        "brokerName": broker,
        "brokerAddr": address,
        "clusterName": "attackers",
        "haServerAddr": address,
        "brokerId": 0,
        **fields,
    }
    return frame(RequestCode.REGISTER_BROKER, header, body)


def registrations(lane: int, lanes: int) -> Iterator[bytes]:
    """Registrations of invented brokers, each with 300 topics, again and again."""
    for number in itertools.count(lane, lanes):
        of = f"invented-{number % 1_100}"
        rows = {
            f"{of}-{row}": {"topicName": f"{of}-{row}", "readQueueNums": 8, "writeQueueNums": 8}
            for row in range(_REGISTERED)
        }
        version = {"counter": number, "stateVersion": 0, "timestamp": number}
        table = {"topicConfigTable": rows, "dataVersion": version}
        body = json.dumps({"topicConfigSerializeWrapper": table}).encode()
        yield _registration(of, f"10.0.{number % 1_100 // 250}.{number % 250}:10911", body)


def bombs(lane: int, _lanes: int) -> Iterator[bytes]:
    """Registrations that unpack to 31 MiB each."""
    bomb = zlib.compress(bytes(_BOMB_SIZE), 9)
    one = _registration(f"bomb-{lane}", f"10.1.0.{lane % 250}:10911", bomb, compressed="true")
    return itertools.repeat(one)


def prepared_tables() -> list[bytes]:
    """The requests that create the group and the topics which the dearest requests read."""
    group = json.dumps({"groupName": GROUP}).encode()
    asks = [frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)]
    for begin in range(0, TOPICS, 1_000):
        rows = [{"topicName": f"prepared-{begin + row}"} for row in range(1_000)]
        body = json.dumps({"topicConfigList": rows}).encode()
        asks.append(frame(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body))
    return asks


async def prepare(client: AsyncClient) -> None:
    """Send the messages that the dearest requests read."""
    for topic in (LARGE, MANY, KEYED):
        await client.create_topic(topic, 1)
    for _ in range(4):
        await client.send(Message(topic=LARGE, body=b"x" * LARGE_SIZE))
    for _ in range(KEYED_COUNT):
        await client.send(Message(topic=KEYED, body=b"x" * KEYED_SIZE, keys=("k",)))
    gate = asyncio.Semaphore(64)

    async def send(number: int) -> None:
        async with gate:
            properties = {"price": str(number % 7), "region": "north"}
            await client.send(Message(topic=MANY, body=b"x" * 100, properties=properties))

    await asyncio.gather(*map(send, range(MANY_COUNT)))


def crowd(number: int) -> bytes:
    """Return the heartbeat of one member of the large group."""
    beat = {
        "clientID": f"10.2.{number // 250}.{number % 250}@attack-{number}",
        "consumerDataSet": [
            {
                "groupName": CROWD,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": MANY, "subString": "*", "subVersion": 1}],
                "unitMode": False,
            }
        ],
        "producerDataSet": [],
    }
    return frame(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
