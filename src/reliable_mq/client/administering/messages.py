"""Finds single messages by offset message id, message id, key, or place in a queue.

Source: Apache RocketMQ `MQAdminImpl.viewMessage`, `MQAdminImpl.queryMessage`,
`DefaultMQAdminExtImpl.messageTrackDetail`.
"""

import ipaddress

import msgspec

from reliable_mq.client.administering.browsing import TIME_MAX, query, read_page, shown
from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    ClusterReply,
    all_brokers,
    ask_all,
    first_failure,
)
from reliable_mq.client.flow import Flow
from reliable_mq.errors import (
    FoundNowhere,
    ProtocolError,
    RecordError,
    ReliableMQError,
    RemoteError,
    UsageError,
)
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.record import iter_records


def by_offset_id(cluster: AdminTarget, offset_message_id: str) -> Flow[ReceivedMessage]:
    """Return the message with an offset message id.

    The id has a broker's address, and that broker is asked. If the name servers do not know the
    address (for example behind NAT), all brokers are asked. Then only an answer with this id
    counts.

    Raises:
        UsageError: when the id is invalid.
        NotFound: when no broker has it.
        RemoteError, Unavailable, ProtocolError: when a broker that may have it fails to answer.
    """
    try:
        place = decode_offset_message_id(offset_message_id)
    except RecordError as error:
        raise UsageError(f"{error}: it has 32 or 56 hexadecimal digits") from error
    brokers = yield from all_brokers(cluster)
    host = ipaddress.ip_address(place.ip)
    named = f"[{host}]" if host.version == 6 else str(host)
    address = f"{named}:{place.port}"
    there = {
        name: broker for name, broker in brokers.items() if address in broker.addresses.values()
    }
    ext = {"offset": str(place.commit_log_offset)}
    asked = request(RequestCode.VIEW_MESSAGE_BY_ID, ext)
    answers = yield from ask_all(cluster, there or brokers, asked, _read_record)
    for name, message in answers.value.items():
        if message.offset_message_id == offset_message_id.upper():
            queue = MessageQueue(message.queue.topic, name, message.queue.queue_id)
            return msgspec.structs.replace(message, queue=queue)
    failures = {name: error for name, error in answers.failures.items() if not _is_absent(error)}
    if failures:
        raise first_failure(failures)
    raise FoundNowhere(f"no broker has a message {offset_message_id}")


def _read_record(reply: Command) -> ReceivedMessage:
    for record in iter_records(reply.body):
        return shown(record, MessageQueue(record.topic, "", record.queue_id))
    raise ProtocolError("the answer to a query for a message contains none")


def _is_absent(error: ReliableMQError) -> bool:
    """Return whether a broker has no message there. No code says so. Apache's sends any bytes."""
    return isinstance(error, RecordError) or (
        isinstance(error, RemoteError) and error.code == ResponseCode.SYSTEM_ERROR
    )


def by_message_id(
    cluster: AdminTarget, topic: str, message_id: str
) -> Flow[ClusterReply[list[ReceivedMessage]]]:
    """Return the messages of a topic with a message id (UNIQ_KEY), oldest first.

    There are several if the producer has sent it more than once.

    Raises:
        NoRoute: when the name servers do not know the topic.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    return (yield from _queried(cluster, topic, message_id, is_unique=True))


def by_key(
    cluster: AdminTarget, topic: str, key: str, begin_ms: int = 0, end_ms: int = TIME_MAX
) -> Flow[ClusterReply[list[ReceivedMessage]]]:
    """Return the messages of a topic with a key, oldest first; at most 64 per broker.

    Args:
        cluster: the cluster to ask.
        topic: the topic.
        key: one of the keys that the sender set.
        begin_ms: stored at this time or later, milliseconds since the epoch.
        end_ms: stored at this time or earlier.

    Raises:
        NoRoute: when the name servers do not know the topic.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    answers = yield from _queried(
        cluster, topic, key, is_unique=False, begin_ms=begin_ms, end_ms=end_ms
    )
    return answers


def _queried(
    cluster: AdminTarget,
    topic: str,
    key: str,
    *,
    is_unique: bool,
    begin_ms: int = 0,
    end_ms: int = TIME_MAX,
) -> Flow[ClusterReply[list[ReceivedMessage]]]:
    answers = yield from query(
        cluster.routes,
        cluster.settings,
        topic,
        key,
        is_unique=is_unique,
        begin_ms=begin_ms,
        end_ms=end_ms,
    )
    failures = {
        name: answer for name, answer in answers.items() if isinstance(answer, ReliableMQError)
    }
    if failures and len(failures) == len(answers):
        raise first_failure(failures)
    messages = [
        message
        for answer in answers.values()
        if not isinstance(answer, ReliableMQError)
        for message in answer
        if begin_ms <= message.store_time_ms <= end_ms
    ]
    messages.sort(key=lambda message: message.store_time_ms)
    return ClusterReply(messages, failures)


def at(
    cluster: AdminTarget, queue: MessageQueue, offset: int, count: int = 1
) -> Flow[list[ReceivedMessage]]:
    """Return messages of a queue, beginning at an offset; fewer at its end.

    Args:
        cluster: the cluster to ask.
        queue: the queue.
        offset: offset of the first message.
        count: maximum number of messages.

    Raises:
        UsageError: when a number is negative.
        NoRoute: when the name servers do not know the topic, or the broker for it.
        RemoteError, Unavailable, ProtocolError: when the broker fails to answer.
    """
    if offset < 0 or count < 0 or queue.queue_id < 0:
        raise UsageError(
            f"queue {queue.queue_id}, offset {offset}, count {count}: none may be negative"
        )
    yield from cluster.routes.of(queue.topic)  # it has the broker's address
    found: list[ReceivedMessage] = []
    while len(found) < count:
        page = yield from read_page(cluster.routes, cluster.settings, queue, offset)
        found += [each for each in page.messages if each.queue_offset >= offset]
        if page.next_offset <= offset or not page.messages:
            break
        offset = page.next_offset
    return found[:count]
