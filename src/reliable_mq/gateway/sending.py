"""What a client sends, as a request to a broker. Pure.

Receives the messages of a SendMessage call. Returns the properties, flags and bodies as a broker
stores them, or refuses the call with Apache's code before a broker is asked.
Source: Apache RocketMQ `SendMessageActivity`, `GrpcValidator`, `ProducerProcessor`.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from reliable_mq.broker_core.names import group_fault, is_system_group, is_system_topic, topic_fault
from reliable_mq.errors import MessageRefused
from reliable_mq.gateway.codes import Code, KindOfMessage, RpcRefused
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.message_digest import RESERVED
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.wire import properties as p
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import SendMessageHeaderV2
from reliable_mq.wire.java_int import I64_MAX

DELAY_MS_MAX = 24 * 3600 * 1000
RECOVERY_SECONDS_MAX = 3600
USER_PROPERTIES_MAX = 128
USER_PROPERTIES_SIZE_MAX = 16 * 1024
GROUP_SIZE_MAX = 64
ECHOED_SIZE_MAX = 4096
BORN_HOST = "__BORNHOST"
TRACE_CONTEXT = "TRACE_CONTEXT"

_COMPRESSED, _PREPARED = 0x1, 0x4
_GZIP = 2
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_TAKEN = RESERVED | {
    p.KEYS,
    p.TAGS,
    p.UNIQ_KEY,
    p.SHARDING_KEY,
    p.CORRELATION_ID,
    p.REPLY_TO_CLIENT,
}
_IN_BATCHES = frozenset({KindOfMessage.NORMAL, KindOfMessage.FIFO})
_ALL = frozenset(
    {KindOfMessage.NORMAL, KindOfMessage.FIFO, KindOfMessage.DELAY, KindOfMessage.TRANSACTION}
)
KINDS_OF_TYPE: dict[str, frozenset[KindOfMessage]] = {
    "NORMAL": frozenset({KindOfMessage.NORMAL}),
    "FIFO": frozenset({KindOfMessage.FIFO}),
    "DELAY": frozenset({KindOfMessage.DELAY}),
    "TRANSACTION": frozenset({KindOfMessage.TRANSACTION}),
    "MIXED": _ALL,
}
"""What a topic takes, by its attribute `message.type`."""

_NAMES_MAX = 1_000  # that are known to be good; each has 255 characters at most
_good_topics: set[str] = set()
_good_groups: set[str] = set()


class Outgoing(NamedTuple):
    """The messages of one call: all of one topic, for one queue.

    `group`: the message group, which chooses the queue; "": none.
    """

    topic: str
    kind: KindOfMessage
    group: str
    sys_flag: int
    born_ms: int
    items: Sequence[BatchItem]
    message_ids: Sequence[str]


def check_topic(name: str) -> None:
    """Refuse a name that no client may use.

    Raises:
        RpcRefused: when it is illegal, or a topic of the system.
    """
    if name in _good_topics:
        return
    fault = topic_fault(name)
    if fault:
        raise RpcRefused(Code.ILLEGAL_TOPIC, fault)
    if is_system_topic(name):
        raise RpcRefused(Code.ILLEGAL_TOPIC, "cannot access system topic")
    _note(_good_topics, name)


def check_group(name: str) -> None:
    """Refuse a consumer group that no client may use.

    Raises:
        RpcRefused: when it is illegal, or a group of the system.
    """
    if name in _good_groups:
        return
    fault = group_fault(name)
    if fault:
        raise RpcRefused(Code.ILLEGAL_CONSUMER_GROUP, fault)
    if is_system_group(name):
        raise RpcRefused(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    _note(_good_groups, name)


def _note(names: set[str], name: str) -> None:
    """Note a name that may be used, and forget the others if they are many."""
    if len(names) >= _NAMES_MAX:
        names.clear()
    names.add(name)


def check_echoed(call: Any) -> None:
    """Refuse a topic and endpoints that are too long to be repeated for each queue.

    Raises:
        RpcRefused: when they are.
    """
    if call.topic.ByteSize() + call.endpoints.ByteSize() > ECHOED_SIZE_MAX:
        raise RpcRefused(
            Code.BAD_REQUEST, f"topic and endpoints have at most {ECHOED_SIZE_MAX} bytes"
        )


def read_messages(messages: Sequence[Any], peer: str, now_ms: int) -> Outgoing:
    """Return what a call wants to send.

    Args:
        messages: of the call.
        peer: the host of the client, for messages that name no host.
        now_ms: the time, in milliseconds since the epoch.

    Raises:
        RpcRefused: when a message cannot be sent.
    """
    if not messages:
        raise RpcRefused(Code.MESSAGE_CORRUPTED, "no message to send")
    first = messages[0]
    topic, system = first.topic.name, first.system_properties
    check_topic(topic)
    if len(messages) > 1:
        _check_alike(messages)
    items: list[BatchItem] = []
    message_ids: list[str] = []
    for message in messages:
        if message.topic.name != topic:
            raise RpcRefused(Code.MESSAGE_CORRUPTED, "topic in message is not same")
        body = message.body
        if not body:
            raise RpcRefused(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
        if len(body) > MESSAGE_BODY_SIZE_MAX:
            raise RpcRefused(
                Code.MESSAGE_BODY_TOO_LARGE,
                f"message body cannot exceed the max {MESSAGE_BODY_SIZE_MAX}",
            )
        found = _properties_of(message, topic, peer, now_ms)
        try:
            items.append(BatchItem(0, body, p.encode_properties(found)))
        except MessageRefused as refused:
            raise RpcRefused(Code.MESSAGE_PROPERTIES_TOO_LARGE, str(refused)) from refused
        message_ids.append(found[p.UNIQ_KEY])
    sys_flag = _COMPRESSED if system.body_encoding == _GZIP else 0
    if system.message_type == KindOfMessage.TRANSACTION:
        sys_flag |= _PREPARED
    born_ms = ms_of(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    group = system.message_group
    return Outgoing(topic, _kind_of(system), group, sys_flag, born_ms, items, message_ids)


def _check_alike(messages: Sequence[Any]) -> None:
    """Refuse messages that cannot be one batch: it has one queue, one kind and one encoding.

    Raises:
        RpcRefused: when they differ, or are of a kind that is sent alone.
    """
    first = messages[0].system_properties
    kind, fault = _kind_of(first), ""
    if kind not in _IN_BATCHES:
        fault = f"a message of the kind {kind.name} is sent alone"
    for system in (each.system_properties for each in messages):
        if _kind_of(system) is not kind:
            fault = f"messages of one call are of one kind, not {kind.name} and others"
        elif system.message_group != first.message_group:
            fault = "messages of one call have one message group"
        elif system.body_encoding != first.body_encoding:
            fault = "messages of one call have one body encoding"
    if fault:
        raise RpcRefused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, fault)


def _kind_of(system: Any) -> KindOfMessage:
    """Return what kind of message one is, by its properties: what it says of itself is no proof."""
    if system.message_type == KindOfMessage.TRANSACTION:
        return KindOfMessage.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return KindOfMessage.DELAY
    return KindOfMessage.FIFO if system.message_group else KindOfMessage.NORMAL


def check_kind(outgoing: Outgoing, taken: frozenset[KindOfMessage]) -> None:
    """Refuse messages of a kind that their topic does not take.

    Raises:
        RpcRefused: when it does not.
    """
    topic, kind = outgoing.topic, outgoing.kind
    if kind not in taken and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        expected = "MIXED" if len(taken) > 1 else "".join(each.name for each in taken)
        raise RpcRefused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {expected}, but actual type"
            f" is {kind.name}",
        )


def ms_of(timestamp: Any) -> int:
    """Return a time in milliseconds since the epoch."""
    return int(timestamp.seconds) * 1000 + int(timestamp.nanos) // 1_000_000


def _properties_of(message: Any, topic: str, peer: str, now_ms: int) -> dict[str, str]:
    """Return the properties of a message as a broker stores them."""
    system = message.system_properties
    found = _user_properties(message, system)
    found[p.UNIQ_KEY] = _id_of(system)
    if system.message_type == KindOfMessage.TRANSACTION:
        found[p.TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            if seconds > RECOVERY_SECONDS_MAX:
                raise RpcRefused(
                    Code.BAD_REQUEST,
                    "the max transaction recovery time of message is too large, max is"
                    f" {RECOVERY_SECONDS_MAX}",
                )
            found[p.CHECK_IMMUNITY_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        due_ms = ms_of(system.delivery_timestamp)
        if due_ms - now_ms > DELAY_MS_MAX:
            raise RpcRefused(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the max delay time of message is too large, max is {DELAY_MS_MAX}",
            )
        found[p.TIMER_DELIVER_MS] = str(due_ms)
    found[p.RECONSUME_TIME] = str(system.delivery_attempt)
    found[p.PRODUCER_GROUP] = topic  # clients of this protocol have no producer groups
    group = system.message_group
    if group:
        _check_message_group(group)
        found[p.SHARDING_KEY] = group
    found |= _origin_of(system, peer)
    if system.HasField("born_timestamp"):
        found[p.BORN_TIMESTAMP] = str(ms_of(system.born_timestamp))
    return found


def _id_of(system: Any) -> str:
    """Return the id of a message."""
    message_id = str(system.message_id)
    if not message_id.strip():
        raise RpcRefused(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if _CONTROL.search(message_id):
        raise RpcRefused(Code.ILLEGAL_MESSAGE_ID, "message id cannot contain control character")
    return message_id


def _origin_of(system: Any, peer: str) -> dict[str, str]:
    """Return where a message comes from."""
    found: dict[str, str] = {}
    if system.trace_context:
        found[TRACE_CONTEXT] = system.trace_context
    host = system.born_host.strip() or peer
    if host:
        found[BORN_HOST] = host
    if any(map(_CONTROL.search, found.values())):
        raise RpcRefused(
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
            "trace context and born host cannot contain control character",
        )
    return found


def _user_properties(message: Any, system: Any) -> dict[str, str]:
    if not (message.user_properties or system.tag or system.keys):
        return {}
    found: dict[str, str] = dict(message.user_properties)
    if len(found) > USER_PROPERTIES_MAX:
        raise RpcRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {USER_PROPERTIES_MAX}",
        )
    size = 0
    for name, value in found.items():
        if name in _TAKEN:
            raise RpcRefused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}"
            )
        if _CONTROL.search(name) or _CONTROL.search(value):
            which = "key" if _CONTROL.search(name) else "value"
            raise RpcRefused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the {which} of property cannot contain control character",
            )
        size += len(name.encode()) + len(value.encode())
    tag = system.tag
    if tag:
        check_tag(tag)
        found[p.TAGS] = tag
        size += len(tag.encode())
    keys = list(system.keys)
    for key in keys:
        if key and not key.strip():
            raise RpcRefused(
                Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace"
            )
        if _CONTROL.search(key):
            raise RpcRefused(Code.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")
        size += len(key.encode())
    if keys:
        found[p.KEYS] = " ".join(keys)
    if size > USER_PROPERTIES_SIZE_MAX:
        raise RpcRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {USER_PROPERTIES_SIZE_MAX}",
        )
    return found


def check_tag(tag: str) -> None:
    """Refuse a tag that is none.

    Raises:
        RpcRefused: when it is blank, or contains "|" or a control character.
    """
    fault = ""
    if not tag.strip():
        fault = "tag cannot be the char sequence of whitespace"
    elif "|" in tag:
        fault = "tag cannot contain '|'"
    elif _CONTROL.search(tag):
        fault = "tag cannot contain control character"
    if fault:
        raise RpcRefused(Code.ILLEGAL_MESSAGE_TAG, fault)


def _check_message_group(group: str) -> None:
    fault = ""
    if not group.strip():
        fault = "message group cannot be the char sequence of whitespace"
    elif len(group.encode()) >= GROUP_SIZE_MAX:
        fault = f"message group exceed the max size {GROUP_SIZE_MAX}"
    elif _CONTROL.search(group):
        fault = "message group cannot contain control character"
    if fault:
        raise RpcRefused(Code.ILLEGAL_MESSAGE_GROUP, fault)


def command_of(outgoing: Outgoing, queue_id: int, *, is_here: bool = False) -> Command:
    """Return the request to the broker of a queue.

    `is_here`: the broker is in this process. It gets the header of a single message as an object.
    """
    items, born_ms = outgoing.items, outgoing.born_ms
    is_batch = len(items) > 1
    header = SendMessageHeaderV2(
        producer_group=outgoing.topic,
        topic=outgoing.topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=outgoing.sys_flag,
        born_timestamp=born_ms,
        flag=0,
        properties=items[0].properties.decode(),
        reconsume_times=0,
        unit_mode=False,
        batch=is_batch,
    )
    if is_batch:
        return request(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), encode_batch(items))
    command = request(RequestCode.SEND_MESSAGE_V2, None, items[0].body)
    if is_here and abs(born_ms) <= I64_MAX:
        command.send_header = header
    else:
        command.ext_fields = header.to_ext()
    return command
