"""Request and reply between two clients: properties of a request, and decoding of a reply.

A request is a normal message with the name of the client that waits for the reply. The reply is
sent to a topic of the cluster with a special request code, and a broker pushes it to that client.
Source: Apache RocketMQ `MessageUtil`, `DefaultMQProducerImpl.request`, `ClientRemotingProcessor`.
"""

from collections.abc import Mapping
from functools import partial

from reliable_mq.client.flow import Flow, work
from reliable_mq.client.sending.outgoing import extra_properties
from reliable_mq.errors import MessageRefused, ProtocolError, UsageError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX, TOPIC_LENGTH_MAX
from reliable_mq.message import Message, MessageQueue, ReceivedMessage
from reliable_mq.names import is_legal_name
from reliable_mq.wire.command import Command
from reliable_mq.wire.compression import decompress
from reliable_mq.wire.headers import PushReplyHeader
from reliable_mq.wire.properties import (
    CLUSTER,
    CORRELATION_ID,
    KEYS,
    MESSAGE_TYPE,
    REPLY_TO_CLIENT,
    TAGS,
    TTL,
    UNIQ_KEY,
    decode_properties,
)
from reliable_mq.wire.record import COMPRESSED

_TOPIC_SUFFIX = "REPLY_TOPIC"
_REPLY = "reply"
_WORK_SIZE_MIN = 16 * 1024


def request_of(message: Message, client_id: str, correlation_id: str, timeout: float) -> Message:
    """Return `message` as a request of a client that waits `timeout` seconds for the reply.

    Raises:
        MessageRefused: when it is not a `Message`.
    """
    if not isinstance(message, Message):
        raise MessageRefused(f"a request is of type {type(message).__name__}, it must be a Message")
    marks = {
        CORRELATION_ID: correlation_id,
        REPLY_TO_CLIENT: client_id,
        TTL: str(int(timeout * 1000)),
    }
    return extra_properties(message, marks)


def reply_to(
    request: ReceivedMessage, body: bytes, tag: str, properties: Mapping[str, str]
) -> Message:
    """Return the message that answers `request`.

    Raises:
        UsageError: when `request` is not a request, so that no client waits for a reply.
    """
    if not isinstance(request, ReceivedMessage):
        raise UsageError(f"only a received message can be answered, not a {type(request).__name__}")
    asked = request.properties
    missing = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if not asked.get(name)]
    if missing:
        raise UsageError(
            f"message {request.message_id} is not a request: it has no property {missing[0]}"
        )
    topic = f"{asked[CLUSTER]}_{_TOPIC_SUFFIX}"
    if not is_legal_name(topic, TOPIC_LENGTH_MAX):
        raise UsageError(
            f"message {request.message_id} has an invalid property {CLUSTER}: {asked[CLUSTER]!r}"
        )
    marks = {name: asked[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in asked}
    return Message(
        topic=topic, body=body, tag=tag, properties={**properties, **marks, MESSAGE_TYPE: _REPLY}
    )


def correlation_of(pushed: Command) -> str:
    """Return the correlation id of a pushed reply, which names the request.

    Raises:
        ProtocolError: when the reply has none.
    """
    header = PushReplyHeader.decode(pushed.ext_fields)
    correlation_id = decode_properties(header.properties or "").get(CORRELATION_ID)
    if not correlation_id:
        raise ProtocolError("a reply has no correlation id")
    return correlation_id


def read_reply(pushed: Command) -> Flow[ReceivedMessage]:
    """Return the message in a pushed reply. It has no place of storage.

    Raises:
        ProtocolError: when the reply cannot be decoded or decompressed.
    """
    header = PushReplyHeader.decode(pushed.ext_fields)
    properties = decode_properties(header.properties or "")
    body = pushed.body
    if header.sys_flag & COMPRESSED:
        unpack = partial(decompress, body, header.sys_flag, MESSAGE_BODY_SIZE_MAX)
        body = (yield from work(unpack)) if len(body) > _WORK_SIZE_MIN else unpack()
    keys = properties.get(KEYS)
    return ReceivedMessage(
        topic=header.topic,
        body=body,
        tag=properties.get(TAGS, ""),
        keys=tuple(keys.split()) if keys else (),
        message_id=properties.get(UNIQ_KEY, ""),
        properties=properties,
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=-1,
        born_time_ms=header.born_timestamp,
        store_time_ms=header.store_timestamp,
        reconsume_times=header.reconsume_times or 0,
    )
