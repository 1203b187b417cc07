"""Single messages found by their names: offset message id, message id, key, place in a queue.

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
    """Return the message that is stored where its broker's name for it says.

    The broker at the address in it is asked; when the name servers know none there, as behind
    another address, all are, and what they answer must be that very message.

    Raises:
        UsageError: when the id is none.
        NotFound: when no broker has it.
        RemoteError, Unavailable, ProtocolError: when a broker that may have it does not tell.
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
    told = yield from ask_all(cluster, there or brokers, asked, _read_record)
    for name, message in told.value.items():
        if message.offset_message_id == offset_message_id.upper():
            queue = MessageQueue(message.queue.topic, name, message.queue.queue_id)
            return msgspec.structs.replace(message, queue=queue)
    failures = {name: error for name, error in told.failures.items() if not _is_absent(error)}
    if failures:
        raise first_failure(failures)
    raise FoundNowhere(f"no broker has a message {offset_message_id}")


def _read_record(reply: Command) -> ReceivedMessage:
    for record in iter_records(reply.body):
        return shown(record, MessageQueue(record.topic, "", record.queue_id))
    raise ProtocolError("the answer to a question for a message holds none")


def _is_absent(error: ReliableMQError) -> bool:
    """Say whether a broker has nothing there: no code says so, and Apache's may send any bytes."""
    return isinstance(error, RecordError) or (
        isinstance(error, RemoteError) and error.code == ResponseCode.SYSTEM_ERROR
    )


def by_message_id(
    cluster: AdminTarget, topic: str, message_id: str
) -> Flow[ClusterReply[list[ReceivedMessage]]]:
    """Return what a topic holds under a message id (UNIQ_KEY), the oldest first.

    Several: its producer sent it more than once.

    Raises:
        NoRoute: when the name servers do not know the topic.
        RemoteError, Unavailable, ProtocolError: when nobody tells.
    """
    return (yield from _queried(cluster, topic, message_id, is_unique=True))


def by_key(
    cluster: AdminTarget, topic: str, key: str, begin_ms: int = 0, end_ms: int = TIME_MAX
) -> Flow[ClusterReply[list[ReceivedMessage]]]:
    """Return the messages of a topic that bear a key, the oldest first; 64 of each broker at most.

    Args:
        cluster: whose.
        topic: the topic.
        key: one of the keys that the sender gave them.
        begin_ms: stored at this time or later, milliseconds since the epoch.
        end_ms: stored at this time or earlier.

    Raises:
        NoRoute: when the name servers do not know the topic.
        RemoteError, Unavailable, ProtocolError: when nobody tells.
    """
    told = yield from _queried(
        cluster, topic, key, is_unique=False, begin_ms=begin_ms, end_ms=end_ms
    )
    return told


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
    """Return the messages of a queue from an offset on; fewer when it ends.

    Args:
        cluster: whose.
        queue: the queue.
        offset: of the first one.
        count: so many at most.

    Raises:
        UsageError: when a number is negative.
        NoRoute: when the name servers do not know the topic, or no such broker of it.
        RemoteError, Unavailable, ProtocolError: when the broker does not tell.
    """
    if offset < 0 or count < 0 or queue.queue_id < 0:
        raise UsageError("a queue, an offset and a count are not negative")
    yield from cluster.routes.of(queue.topic)  # it names the broker
    found: list[ReceivedMessage] = []
    while len(found) < count:
        page = yield from read_page(cluster.routes, cluster.settings, queue, offset)
        found += [each for each in page.messages if each.queue_offset >= offset]
        if page.next_offset <= offset or not page.messages:
            break
        offset = page.next_offset
    return found[:count]
