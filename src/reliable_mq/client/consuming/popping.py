"""Popping: a broker hands out messages of all queues of a topic, each for a time.

One request with long polling brings messages that no other member gets meanwhile. What a pop
brings has to be acknowledged, message by message (`pop_leases`).
Source: Apache RocketMQ `PopMessageProcessor`, `DefaultMQPushConsumerImpl.popMessage`.
"""

from typing import NamedTuple

import msgspec

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.filters import expression_of
from reliable_mq.client.consuming.pop_leases import acknowledge
from reliable_mq.client.consuming.pop_shares import Share
from reliable_mq.client.consuming.popped_queue import PopLease
from reliable_mq.client.consuming.pulling import delivery
from reliable_mq.client.consuming.settling import dead_letter
from reliable_mq.client.consuming.unpacking import unpack
from reliable_mq.client.flow import NOW, Call, Flow, Instant, call
from reliable_mq.errors import ConfigurationError, NoRoute, ProtocolError, RemoteError, Unavailable
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX, PULL_COUNT_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import LANGUAGE, VERSION, Command
from reliable_mq.wire.pop_answer import handles_of
from reliable_mq.wire.pop_handle import stored_topic
from reliable_mq.wire.properties import FIRST_POP_TIME, POP_CK
from reliable_mq.wire.record import COMPRESSED, iter_records
from reliable_mq.wire.remote_faults import remote_error

RENEW_PART = 0.5
"""After this part of its invisible time a message is extended."""
_ANSWER_SECONDS = 10.0  # longer than the broker holds the request
RETURNS_MAX = 16
"""So many times more than its attempts a message may come back. No handler saw it, or it died."""
_WAY_PART = 0.1
"""For this part of its invisible time a message may have been on its way here."""
_NO_QUEUE = 2**31 - 1
_FROM_FIRST, _FROM_LAST = "0", "1"  # Apache RocketMQ `ConsumeInitMode`
_NOTHING = frozenset(
    (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
)


class PopReply(NamedTuple):
    """The answer to a pop: leases of messages, and how many more the broker has, about."""

    leases: list[PopLease]
    rest: int
    is_full: bool = False


def pop(
    group: ConsumerGroup, share: Share, count: int, *, invisible_seconds: float, poll_seconds: float
) -> Flow[PopReply]:
    """Pop up to `count` messages of a share; empty when none comes in `poll_seconds`.

    Raises:
        Unavailable: when the broker cannot be reached, or does not answer in time.
        RemoteError: when it refuses.
        ProtocolError: when its answer cannot be decoded.
    """
    address = group.master_of(share.broker_name)
    if address is None:
        raise NoRoute(f"no name server knows the master of {share.broker_name}")
    command = _pop_command(group, share, count, invisible_seconds, poll_seconds)
    asked: Instant = yield NOW
    reply: Command = yield Call(address, command, poll_seconds + _ANSWER_SECONDS)
    if reply.code in _NOTHING:
        return PopReply([], 0, is_full=reply.code == ResponseCode.POLLING_FULL)
    if reply.code != ResponseCode.SUCCESS:
        raise remote_error(reply.code, reply.remark, reply.ext_fields)
    answered: Instant = yield NOW
    begun = asked.lease_seconds
    if poll_seconds:  # nobody says how long the broker held the request
        begun = max(begun, answered.lease_seconds - invisible_seconds * _WAY_PART)
    leases = yield from _read(group, share, reply, begun, invisible_seconds)
    rest = reply.ext_fields.get("restNum", "")
    return PopReply(leases, int(rest) if rest.isascii() and rest.isdecimal() else 0)


def _pop_command(
    group: ConsumerGroup, share: Share, count: int, invisible_seconds: float, poll_seconds: float
) -> Command:
    starts = _FROM_FIRST if group.subscription.from_where == "first" else _FROM_LAST
    ext = {
        "consumerGroup": group.name,
        "topic": share.topic,
        "queueId": str(share.queue_id),
        "maxMsgNums": str(min(count, PULL_COUNT_MAX)),
        "invisibleTime": str(int(invisible_seconds * 1000)),
        "pollTime": str(int(poll_seconds * 1000)),
        "bornTime": "0",  # the broker takes its own clock; ours may differ
        "initMode": starts,
        "expType": group.expression_types[share.topic],
        "exp": expression_of(group, share.topic),
        "order": "false",
    }
    return Command(code=RequestCode.POP_MESSAGE, language=LANGUAGE, version=VERSION, ext_fields=ext)


def _read(
    group: ConsumerGroup, share: Share, reply: Command, begun: float, invisible_seconds: float
) -> Flow[list[PopLease]]:
    """Return the leases in an answer, which count from `begun` on the lease clock.

    What nobody wants is acknowledged: it would come again. That is a message whose tag has only the
    hash of a wanted tag. Others become dead letters here: they cannot be decompressed, or were
    delivered as often as they may, and each lease ended.
    """
    records = list(iter_records(reply.body))
    handles = handles_of(reply.ext_fields, records, share.topic, share.broker_name)
    expires = begun + invisible_seconds
    renew_at = begun + invisible_seconds * RENEW_PART
    faults: dict[int, str] = {}
    if any(record.sys_flag & COMPRESSED for record in records):
        size_max = max(MESSAGE_BODY_SIZE_MAX, group.settings.body_bytes_max)
        _, faults = yield from unpack(records, size_max, size_max * len(records))
    tags = group.tags[share.topic]
    wanted: list[PopLease] = []
    unwanted: list[PopLease] = []
    for at, (record, handle) in enumerate(zip(records, handles, strict=True)):
        stored = stored_topic(share.topic, group.name, handle.kind)
        queue = MessageQueue(stored, handle.broker, handle.queue_id)
        offset_id, properties = record.offset_message_id(), record.property_map()
        properties.pop(POP_CK, None)
        properties.setdefault(FIRST_POP_TIME, str(handle.popped_ms))
        record.topic = share.topic
        message = delivery(record, queue, properties, offset_id)
        lease = PopLease(message, share.topic, handle, expires, renew_at)
        if tags and message.tag not in tags:
            unwanted.append(lease)
        elif reason := _hopeless(group, message, faults.get(at)):
            yield from dead_letter(group, message, reason)
            unwanted.append(lease)
        else:
            if at in faults:
                lease.message = msgspec.structs.replace(message, fault=faults[at])
            wanted.append(lease)
    if unwanted:
        yield from acknowledge(group, share.broker_name, unwanted)
    return wanted


def _hopeless(group: ConsumerGroup, message: ReceivedMessage, fault: str | None) -> str:
    """Return why a message becomes a dead letter without an attempt; "": it does not.

    A broker counts each return, also those of messages that only waited for a handler. So some
    returns more than attempts are allowed. One that kills each process must not come for ever.
    """
    if fault is not None and not group.subscription.takes_faulty:
        return fault
    most = group.subscription.max_attempts
    if message.reconsume_times < most + RETURNS_MAX:
        return ""
    return (
        f"it came back {message.reconsume_times} times without an acknowledgement, and it has"
        f" {most} attempts"
    )


def check_popping(group: ConsumerGroup) -> Flow[None]:
    """Ask every broker of the group's topics whether messages can be popped there.

    A topic that does not exist yet, or a silent broker, does not prevent the start.

    Raises:
        ConfigurationError: when a broker cannot hand out messages one by one.
    """
    asked: set[str] = set()
    for topic in group.subscription.topics:
        try:
            route = yield from group.routes.of(topic)
        except (Unavailable, RemoteError, ProtocolError):
            continue
        for broker in route.brokers.values():
            if broker.master is None or broker.name in asked:
                continue
            asked.add(broker.name)
            # No topic has this queue, so a broker that can pop refuses the number of the queue.
            share = Share(topic, broker.name, _NO_QUEUE)
            command = _pop_command(group, share, 1, group.subscription.invisible_time, 0.0)
            try:
                reply = yield from call(
                    broker.master, command, group.settings.request_timeout_seconds
                )
            except Unavailable:
                continue
            raise_if_no_pop(broker.name, reply.code, reply.remark or "")


def raise_if_no_pop(broker_name: str, code: int, remark: str) -> None:
    """Raise if an answer says that this broker cannot pop messages.

    Raises:
        ConfigurationError: it says so.
    """
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise ConfigurationError(
            f'broker {broker_name} cannot deliver by the message: consume with by="queue", or use'
            " a broker that answers POP_MESSAGE (ours, or Apache RocketMQ 5.0 and later)"
        )
    if code == ResponseCode.SYSTEM_ERROR and "timerWheelEnable" in remark:
        raise ConfigurationError(
            f"broker {broker_name} delivers by the message only with timerWheelEnable=true: set"
            ' that at the broker, or consume with by="queue"'
        )
