"""Reads stored messages without consuming them, and sends a message back to its group.

It reads like Apache's tools, with the group that every broker has for them. It commits nothing, so
it disturbs no consumer. Source: Apache RocketMQ `DefaultMQAdminExtImpl`, `MQAdminImpl`.
"""

import contextlib
import sys

import msgspec

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.consuming.offsets import place_in
from reliable_mq.client.consuming.pulling import received
from reliable_mq.client.consuming.unpacking import unpack, unpacked
from reliable_mq.client.flow import Call, Flow, call, call_all, reply_of, succeeded
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import NoRoute, ProtocolError, RecordError, ReliableMQError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import (
    PullMessageHeader,
    PullResultHeader,
    QueryMessageHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendBackHeader,
)
from reliable_mq.wire.properties import UNIQ_KEY
from reliable_mq.wire.record import Record, iter_records
from reliable_mq.wire.remote_faults import remote_error

READER = "TOOLS_CONSUMER"
"""A consumer group that every broker has by default."""
SUBSCRIPTION = 0x4
FOUND_MAX = 64
TIME_MAX = 2**63 - 1
AT_ONCE = 1
"""The shortest delay level, 1 s: a message that is sent back always has a delay."""
NEVER_DEAD = 2**31 - 1

_NOTHING_THERE = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class Page(msgspec.Struct, frozen=True):
    """Messages of one queue in offset order, and the offset after the last examined one."""

    messages: list[ReceivedMessage]
    next_offset: int


def topic_names(name_servers: NameServers) -> Flow[list[str]]:
    """Return the names of all topics that the name servers know, sorted.

    Raises:
        RemoteError, Unavailable: when none answers.
        ProtocolError: when the answer cannot be decoded.
    """
    reply = yield from name_servers.ask(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    try:
        return sorted(fastjson.loads(succeeded(reply).body).get("topicList") or ())
    except (ValueError, AttributeError, TypeError) as error:
        raise ProtocolError(f"the list of topics cannot be decoded: {error!r}") from error


def queue_range(
    routes: RouteCache, settings: ClientSettings, queue: MessageQueue, since_ms: int
) -> Flow[tuple[int, int]]:
    """Return the range of offsets in a queue for messages stored since a time: (first, end).

    Raises:
        RemoteError, Unavailable: when the broker fails to answer.
    """
    address = _address(routes, queue)
    if since_ms > 0:
        search = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=since_ms)
        first = request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search.to_ext())
    else:
        at = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
        first = request(RequestCode.GET_MIN_OFFSET, at.to_ext())
    end = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    answers = yield from call_all(
        [
            Call(address, first, settings.request_timeout_seconds),
            Call(
                address,
                request(RequestCode.GET_MAX_OFFSET, end.to_ext()),
                settings.request_timeout_seconds,
            ),
        ]
    )
    low, high = (place_in(reply_of(answer)) for answer in answers)
    return low, high


def read_page(
    routes: RouteCache, settings: ClientSettings, queue: MessageQueue, offset: int
) -> Flow[Page]:
    """Return some messages of a queue, beginning at an offset; empty when there are none now.

    Raises:
        RemoteError, Unavailable: when the broker fails to answer.
    """
    header = PullMessageHeader(
        consumer_group=READER,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=settings.pull_count,
        sys_flag=SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        expression_type="TAG",
        max_msg_bytes=settings.pull_bytes,
    )
    command = request(RequestCode.PULL_MESSAGE, header.to_ext())
    reply = yield from call(_address(routes, queue), command, settings.request_timeout_seconds)
    if reply.code != ResponseCode.SUCCESS and reply.code not in _NOTHING_THERE:
        raise remote_error(reply.code, reply.remark)
    result = reply.pull_result or PullResultHeader.decode(reply.ext_fields)
    body = reply.body if reply.code == ResponseCode.SUCCESS else b""
    records = list(iter_records(body))
    yield from _unpacked(records)
    return Page([received(record, queue) for record in records], result.next_begin_offset)


def find_by_id(
    routes: RouteCache, settings: ClientSettings, topic: str, message_id: str
) -> Flow[list[ReceivedMessage]]:
    """Return a topic's messages with a message id, oldest first; empty without messages or topic.

    Raises:
        RemoteError, Unavailable: when a broker fails to answer.
    """
    try:
        answers = yield from query(routes, settings, topic, message_id, is_unique=True)
    except NoRoute:
        return []
    messages: list[ReceivedMessage] = []
    for answer in answers.values():
        if isinstance(answer, ReliableMQError):
            raise answer
        messages += answer
    return sorted(messages, key=lambda message: message.store_time_ms)


def query(
    routes: RouteCache,
    settings: ClientSettings,
    topic: str,
    key: str,
    *,
    is_unique: bool,
    begin_ms: int = 0,
    end_ms: int = TIME_MAX,
) -> Flow[dict[str, list[ReceivedMessage] | ReliableMQError]]:
    """Query the index of each broker for messages of a topic with a key.

    Args:
        routes: know the brokers.
        settings: have the timeout.
        topic: the topic.
        key: a message id, or one of its sender's keys.
        is_unique: whether the key is a message id.
        begin_ms: stored at this time or later, milliseconds since the epoch.
        end_ms: stored at this time or earlier.

    Returns:
        By broker name: the messages, at most `FOUND_MAX`, or the error.

    Raises:
        NoRoute: when the name servers do not know the topic.
        RemoteError, Unavailable: when no name server answers.
    """
    route = yield from routes.of(topic)
    header = QueryMessageHeader(
        topic=topic, key=key, max_num=FOUND_MAX, begin_timestamp=begin_ms, end_timestamp=end_ms
    )
    ext = header.to_ext() | ({"_UNIQUE_KEY_QUERY": "true"} if is_unique else {})
    command = request(RequestCode.QUERY_MESSAGE, ext)
    addresses = {name: broker.to_read_from(0) for name, broker in route.brokers.items()}
    asked = {name: address for name, address in addresses.items() if address}
    answers = yield from call_all(
        [Call(address, command, settings.request_timeout_seconds) for address in asked.values()]
    )
    found: dict[str, list[ReceivedMessage] | ReliableMQError] = {}
    for name, answer in zip(asked, answers, strict=True):
        try:
            records = _records(reply_of(answer))
        except ReliableMQError as error:
            found[name] = error
            continue
        yield from _unpacked(records)
        messages = [
            received(record, MessageQueue(topic, name, record.queue_id)) for record in records
        ]
        found[name] = [  # the index has only hashes
            message
            for message in messages
            if key in (_ids_of(message) if is_unique else message.keys)
        ]
    return found


def _records(reply: Command) -> list[Record]:
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    return list(iter_records(succeeded(reply).body))


def _unpacked(records: list[Record]) -> Flow[None]:
    """Decompress bodies without blocking other work. A body that cannot be stays as stored."""
    yield from unpack(records, MESSAGE_BODY_SIZE_MAX, sys.maxsize)


def _ids_of(message: ReceivedMessage) -> tuple[str, ...]:
    """Return the id of a message, and its producer's id if no ledger can store that one."""
    return (message.message_id, message.properties.get(UNIQ_KEY, ""))


def redeliver(
    routes: RouteCache, settings: ClientSettings, group: str, message: ReceivedMessage
) -> Flow[None]:
    """Deliver a stored message again to one consumer group only, after about a second.

    The broker copies it from its log to the group's retry topic. A send to that topic would not
    work: for a group with queue locks, a broker treats such messages as given up.

    Raises:
        NoRoute: when the dead-letter topic or its broker is not known.
        RemoteError, Unavailable: when the broker fails to do it.
    """
    header = SendBackHeader(
        offset=message.commit_log_offset,
        group=group,
        delay_level=AT_ONCE,
        origin_msg_id=message.offset_message_id,
        origin_topic=message.topic,
        unit_mode=False,
        max_reconsume_times=NEVER_DEAD,
    )
    command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
    yield from routes.of(message.queue.topic)  # it has the broker's address
    address = _address(routes, message.queue)
    succeeded((yield from call(address, command, settings.request_timeout_seconds)))


def _address(routes: RouteCache, queue: MessageQueue) -> str:
    broker = routes.broker(queue.broker_name)
    address = broker.to_read_from(0) if broker is not None else None
    if address is None:
        raise NoRoute(f"no broker {queue.broker_name} of topic {queue.topic} is known")
    return address


def shown(record: Record, queue: MessageQueue) -> ReceivedMessage:
    """Return a stored message with its body decompressed; as stored when that fails."""
    with contextlib.suppress(RecordError):
        record.body = unpacked(record)
    return received(record, queue)
