"""Pulling: one request with long polling, and the effect of its answer on the queue.

Stored records become messages here (`delivery`), also those of a pop. A message from a retry topic
gets its original topic back.

A pull commits no offset, unlike in Apache's client. In a test, 3,000 pulls were sent right before a
commit. Apache's broker stored the offsets of 1,097 of them after the commit, which set the group
back.

Source: Apache RocketMQ `DefaultMQPushConsumerImpl.pullMessage`, `PullSysFlag`, `MessageDecoder`.
"""

import logging
from collections.abc import Iterable

import msgspec

from reliable_mq.client.connecting.routes import MASTER_ID, Broker
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.filters import expression_of
from reliable_mq.client.consuming.settling import dead_letter
from reliable_mq.client.consuming.unpacking import unpack
from reliable_mq.client.flow import NOW, Call, Flow, Instant
from reliable_mq.errors import ProtocolError, RemoteError, Unavailable
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX, TOPIC_LENGTH_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_legal_name
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import queue_facts
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import LANGUAGE, VERSION, Command
from reliable_mq.wire.headers import PullResultHeader
from reliable_mq.wire.message_id import is_usual_id, ledger_id
from reliable_mq.wire.properties import (
    KEYS,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
)
from reliable_mq.wire.record import COMPRESSED, Record, iter_records
from reliable_mq.wire.remote_faults import pause_seconds, remote_error

log = logging.getLogger(__name__)

SUSPEND = 0x2
SUBSCRIPTION = 0x4

_DELETED = "OFFSET_TOO_SMALL"  # Apache RocketMQ `GetMessageStatus`
_FLOW_CONTROL_SECONDS = 0.02
_RETRY_SECONDS = 0.1


def pull_once(group: ConsumerGroup, assigned: AssignedQueue) -> Flow[float]:
    """Pull once and keep the messages; return the seconds to wait before the next pull."""
    queue = assigned.queue
    broker = group.routes.broker(queue.broker_name)
    address = broker.to_read_from(assigned.read_from) if broker is not None else None
    if broker is None or address is None:
        return group.settings.pull_retry_seconds_max
    instant: Instant = yield NOW
    # At the end of a queue a pull may wait for long; it must not reserve room meanwhile.
    waits = assigned.next_offset == assigned.end_offset
    granted = 0 if waits else assigned.budget.ask(assigned.cost, group.settings.pull_bytes)
    size = granted or group.settings.pull_bytes
    command = _pull_command(group, assigned, size)
    try:
        reply: Command = yield Call(address, command, group.settings.pull_timeout_seconds)
        pause = yield from _accept(group, assigned, reply, broker, address, instant.seconds)
    except Unavailable as error:
        client_events.PULL_UNANSWERED.log(log, group=group.name, **queue_facts(queue), error=error)
        assigned.read_from = MASTER_ID  # the suggested slave may be gone for good
        group.routes.mark_stale(queue.topic)
    except (RemoteError, ProtocolError) as error:
        if not assigned.leaving:
            group.pull_faults.failed(queue, error, instant.seconds)
        if isinstance(error, RemoteError) and error.code in _NOT_HEARD:
            group.is_unheard = True
    else:
        if assigned.failures:
            assigned.failures = 0
            group.pull_faults.works(queue, instant.seconds)
        return pause
    finally:
        if granted or any(assigned.budget.lines):
            assigned.budget.answered(granted)
    assigned.failures += 1
    pause = _RETRY_SECONDS * 2.0 ** min(assigned.failures - 1, 10)
    return min(pause, group.settings.pull_retry_seconds_max)


def _pull_command(group: ConsumerGroup, assigned: AssignedQueue, size: int) -> Command:
    flags = SUSPEND
    wanted = None
    if not group.is_member:  # brokers do not know its subscription from heartbeats
        flags |= SUBSCRIPTION
        wanted = expression_of(group, assigned.queue.topic)
    topic = assigned.queue.topic
    # The fields of `PullMessageHeader` in its order. Not made through that class: the hot path.
    ext = {
        "consumerGroup": group.name,
        "topic": topic,
        "queueId": str(assigned.queue.queue_id),
        "queueOffset": str(assigned.next_offset),
        "maxMsgNums": str(group.settings.pull_count),
        "sysFlag": str(flags),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(int(group.settings.pull_suspend_seconds * 1000)),
    }
    if wanted is not None:
        ext["subscription"] = wanted
    ext["subVersion"] = str(group.version)
    ext["expressionType"] = group.expression_types[topic]
    ext["maxMsgBytes"] = str(size)
    return Command(
        code=RequestCode.PULL_MESSAGE, language=LANGUAGE, version=VERSION, ext_fields=ext
    )


def _accept(
    group: ConsumerGroup,
    assigned: AssignedQueue,
    reply: Command,
    broker: Broker,
    address: str,
    begun: float,
) -> Flow[float]:
    if reply.code == ResponseCode.FLOW_CONTROL:
        return pause_seconds(reply.ext_fields) or _FLOW_CONTROL_SECONDS
    if reply.code not in _PULL_RESULTS:
        raise remote_error(reply.code, reply.remark)
    header = reply.pull_result or PullResultHeader.decode(reply.ext_fields)
    instant: Instant = yield NOW
    # A slave may know an older end than others have reported.
    lags = address != broker.addresses.get(MASTER_ID)
    end = max(header.max_offset, assigned.end_offset) if lags else header.max_offset
    assigned.note_end(end, instant.seconds)
    assigned.read_from = header.suggest_which_broker_id
    if reply.code == ResponseCode.PULL_OFFSET_MOVED:
        return _move(group, assigned, reply, header.next_begin_offset, broker, address)
    if reply.code != ResponseCode.SUCCESS:
        assigned.add_pulled((), header.next_begin_offset)
        return 0.0
    pulled_from = assigned.next_offset
    messages, next_offset = yield from _read(group, assigned, reply.body, header.next_begin_offset)
    took = instant.seconds - begun
    rates = group.rates_of(assigned.queue.topic, begun)
    rates.pulled(len(messages), took, instant.seconds)
    assigned.add_pulled(messages, next_offset)
    return 0.0 if assigned.next_offset > pulled_from else group.settings.pull_retry_seconds_max


def _move(
    group: ConsumerGroup,
    assigned: AssignedQueue,
    reply: Command,
    offset: int,
    broker: Broker,
    address: str,
) -> float:
    """Continue to read at `offset`, if its source can know it; return the pause before that.

    A slave behind its master would treat missing newer messages as deleted, and send readers back
    over handled messages. So only the master may set an offset. Without a master, a slave may only
    report that messages before `offset` are deleted.

    Messages deleted at the broker may have been pulled before: these are kept and handled. Any
    other change, such as an administrator's reset, drops all messages that are not running.
    """
    if address != broker.master:
        assigned.read_from = MASTER_ID
        if broker.master is not None:
            return 0.0
        if offset < assigned.next_offset:
            return group.settings.pull_retry_seconds_max
    if offset != assigned.next_offset:  # a reset may lead to where the group is
        client_events.OFFSET_CHANGED.log(
            log,
            group=group.name,
            **queue_facts(assigned.queue),
            offset=offset,
            expected=assigned.next_offset,
        )
    if reply.remark == _DELETED:
        assigned.skip_to(offset)
    elif group.polled:  # handled messages do not count any more: begin again
        assigned.freeze(offset)
    else:
        assigned.jump_to(offset)
    return 0.0


_NOT_HEARD = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)

_PULL_RESULTS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


def _read(
    group: ConsumerGroup, assigned: AssignedQueue, body: bytes, next_offset: int
) -> Flow[tuple[list[ReceivedMessage], int]]:
    """Return the messages of a pull, and the offset to continue at.

    A message that cannot be decompressed may become a dead letter, but only while its queue is
    locked. Without the lock another owner may handle it. Then the rest of the pull is dropped, to
    be pulled again. The same happens when the decompressed bodies exceed the requested size.
    """
    records = list(iter_records(body))
    properties = list(map(Record.property_map, records))
    offset_ids = list(map(Record.offset_message_id, records))
    faults: dict[int, str] = {}
    flags = size = 0
    for record in records:
        flags |= record.sys_flag
        size += len(record.body)
    if flags & COMPRESSED or size >= group.settings.pull_bytes:
        size_max = max(MESSAGE_BODY_SIZE_MAX, group.settings.body_bytes_max)
        count, faults = yield from unpack(records, size_max, group.settings.pull_bytes)
        if count < len(records):
            next_offset = records[count].queue_offset
            del records[count:]
    messages: list[ReceivedMessage] = []
    for at, record in enumerate(records):
        message = delivery(record, assigned.queue, properties[at], offset_ids[at])
        if at in faults and group.subscription.takes_faulty:
            message = msgspec.structs.replace(message, fault=faults[at])
        elif at in faults:
            if record.queue_offset < assigned.next_offset:  # another owner has finished it
                continue
            instant: Instant = yield NOW
            if not assigned.holds_lock(instant.lease_seconds):
                next_offset = record.queue_offset
                break
            yield from dead_letter(group, message, faults[at])
            continue
        messages.append(message)
    tags = group.tags[assigned.queue.topic]
    return with_tags(messages, tags) if tags else messages, next_offset


def received(record: Record, queue: MessageQueue) -> ReceivedMessage:
    """Return the delivery of a `record` read from `queue`; its body is as stored."""
    return delivery(record, queue, record.property_map(), record.offset_message_id())


def delivery(
    record: Record, queue: MessageQueue, properties: dict[str, str], offset_id: str
) -> ReceivedMessage:
    """Return the delivery of a `record` with these properties and this offset message id.

    A message without a producer's id gets the id of the place where it was first stored, also as a
    copy in a retry topic: it is one message, and its effect happens once. If no ledger can store an
    id, its digest replaces it. A copy without an original topic stays in the retry topic.
    """
    topic = record.topic
    message_id = properties.get(UNIQ_KEY)
    if not message_id and topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        # A copy has a new place, but the broker that copied it recorded the first place.
        message_id = properties.get(ORIGIN_MESSAGE_ID)
    if topic.startswith(RETRY_PREFIX):
        origin = properties.get(RETRY_TOPIC, "")
        topic = origin if is_legal_name(origin, TOPIC_LENGTH_MAX) else topic
    keys = properties.get(KEYS)
    message_id = message_id or offset_id
    return ReceivedMessage(
        topic=topic,
        body=record.body,
        tag=properties.get(TAGS, ""),
        keys=tuple(keys.split()) if keys else (),
        message_id=message_id if is_usual_id(message_id) else ledger_id(message_id),
        ordering_key=properties.get(SHARDING_KEY, ""),
        properties=properties,
        queue=queue,
        queue_offset=record.queue_offset,
        commit_log_offset=record.commit_log_offset,
        offset_message_id=offset_id,
        born_time_ms=record.born_time_ms,
        store_time_ms=record.store_time_ms,
        reconsume_times=record.reconsume_times,
    )


def with_tags(messages: Iterable[ReceivedMessage], tags: frozenset[str]) -> list[ReceivedMessage]:
    """Return the messages with one of `tags`; all when `tags` is empty.

    A broker compares only hashes of tags, which may collide. So the text is compared here.
    """
    if not tags:
        return list(messages)
    return [message for message in messages if message.tag in tags]
