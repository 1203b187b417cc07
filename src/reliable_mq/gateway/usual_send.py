"""A SendMessage of one normal message in the form in which clients write it. Pure.

It is read as bytes. Its id, its time and its body are cut out. The rest is the same in send after
send, so `read_messages` judges it once. What has another form is left to protobuf's own reader, as
what it would refuse.
Source: the encoding of protobuf (protobuf.dev, "Encoding"); `message_facts` has the fields.
"""

from functools import lru_cache
from typing import Any, NamedTuple

from reliable_mq.gateway.call_body import PREFIX_SIZE
from reliable_mq.gateway.codes import KindOfMessage
from reliable_mq.gateway.field_bytes import field_tags
from reliable_mq.gateway.message_types import TYPES, DecodeError
from reliable_mq.gateway.sending import Outgoing, ms_of, read_messages
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.wire import properties as p
from reliable_mq.wire.batch_body import BatchItem

_MESSAGE, _SYSTEM_FIELDS = field_tags("Message"), field_tags("SystemProperties")
(_MESSAGES,) = field_tags("SendMessageRequest")["messages"]
(_TOPIC,), (_SYSTEM,), (_BODY,) = (
    _MESSAGE[name] for name in ("topic", "system_properties", "body")
)
(_ID,), (_ENCODING,), (_KIND,), (_BORN,) = (
    _SYSTEM_FIELDS[name]
    for name in ("message_id", "body_encoding", "message_type", "born_timestamp")
)
_KINDS_SIZE = 4  # of the encoding and the kind: a tag and a small number each
_MORE, _BITS = 0x80, 0x7F  # of a number: it goes on, and the bits of a byte
_SYSTEM_TYPE = TYPES["SystemProperties"]
_TIME: Any = type(_SYSTEM_TYPE().born_timestamp)
_OTHERS = frozenset({"born_host", "queue_id"})
"""What a client may also say of a message. A queue is chosen here, whatever it says."""
_A_ID, _A_SECOND = "0", 1
_STORED_BEGIN = f"{p.UNIQ_KEY}\x01".encode()
_A_BEGIN = _STORED_BEGIN + b"0\x02"
_STORED_END = f"{p.BORN_TIMESTAMP}\x01".encode()
_A_END = _STORED_END + b"1000\x02"


class SendForm(NamedTuple):
    """What sends have in common that differ in id, time and body only.

    `between`: of the stored properties, what is between the id and the time.
    """

    topic: str
    sys_flag: int
    between: bytes


def usual_send(body: bytes, peer: str) -> Outgoing | None:
    """Return what a call in a body wants to send; None: it is not in the usual form.

    Args:
        body: of the call.
        peer: the host of the client, for messages that name no host.

    Raises:
        RpcRefused: when no client may use its topic.
    """
    try:
        size, topic_at = _size_at(body, PREFIX_SIZE + 1)
        system_at = topic_at + 2 + body[topic_at + 1]
        id_at = system_at + 2
        kinds_at = id_at + 2 + body[id_at + 1]
        time_at = kinds_at + _KINDS_SIZE
        others_at = time_at + 2 + body[time_at + 1]
        system_end = id_at + body[system_at + 1]
        content_size, content_at = _size_at(body, system_end + 1)
        is_usual = (
            body[PREFIX_SIZE] == _MESSAGES
            and body[topic_at] == _TOPIC
            and body[system_at] == _SYSTEM
            and body[id_at] == _ID
            and body[time_at] == _BORN
            and body[system_end] == _BODY
            and others_at <= system_end
            and topic_at + size == content_at + content_size == len(body)
            and 0 < content_size <= MESSAGE_BODY_SIZE_MAX
        )
    except IndexError:
        return None
    sizes = body[topic_at + 1] | body[system_at + 1] | body[id_at + 1] | body[time_at + 1]
    if not is_usual or sizes & _MORE:
        return None
    if body[0] or int.from_bytes(body[1:PREFIX_SIZE]) != len(body) - PREFIX_SIZE:
        return None
    message_id = body[id_at + 2 : kinds_at]
    if not message_id.isalnum():  # of ASCII, as all of bytes
        return None
    form = _form_of(
        body[topic_at + 2 : system_at],
        body[kinds_at:time_at],
        body[others_at:system_end],
        peer,
    )
    if form is None:
        return None
    try:
        born_ms = ms_of(_TIME.FromString(body[time_at + 2 : others_at]))
    except DecodeError:
        return None
    parts = (_STORED_BEGIN, message_id, form.between, b"%d\x02" % born_ms)
    item = BatchItem(0, body[content_at:], b"".join(parts))
    ids = (message_id.decode(),)
    return Outgoing(form.topic, KindOfMessage.NORMAL, "", form.sys_flag, born_ms, (item,), ids)


def _size_at(body: bytes, at: int) -> tuple[int, int]:
    """Return a size, which has four bytes at most, and where the next byte is.

    Raises:
        IndexError: when it is longer, or does not end.
    """
    first = body[at]
    if not first & _MORE:
        return first, at + 1
    second = body[at + 1]
    if not second & _MORE:
        return first & _BITS | second << 7, at + 2
    third, size = body[at + 2], first & _BITS | (second & _BITS) << 7
    if not third & _MORE:
        return size | third << 14, at + 3
    fourth = body[at + 3]
    if fourth & _MORE:
        raise IndexError("more than four bytes")
    return size | (third & _BITS) << 14 | fourth << 21, at + 4


@lru_cache(maxsize=256)
def _form_of(topic: bytes, kinds: bytes, others: bytes, peer: str) -> SendForm | None:
    """Return what sends with these bytes have in common; None: they are not usual.

    Args:
        topic: what the message says of its topic.
        kinds: its encoding and its kind.
        others: what follows its time.
        peer: the host of the client.
    """
    if kinds[0] != _ENCODING or kinds[2] != _KIND or (kinds[1] | kinds[3]) & _MORE:
        return None
    try:
        named = {field.name for field, _ in _SYSTEM_TYPE.FromString(others).ListFields()}
        system = _SYSTEM_TYPE(message_id=_A_ID)
        system.MergeFromString(kinds + others)
        message = TYPES["Message"](system_properties=system, body=b"x")
        message.topic.MergeFromString(topic)
    except DecodeError:
        return None
    # A second id counts, also an empty one, which `ListFields` does not name.
    if not named <= _OTHERS or system.message_id != _A_ID:
        return None
    message.system_properties.born_timestamp.seconds = _A_SECOND
    outgoing = read_messages([message], peer, 0)
    stored = outgoing.items[0].properties
    is_cut = stored.startswith(_A_BEGIN) and stored.endswith(b"\x02" + _A_END)
    if not is_cut or outgoing.kind is not KindOfMessage.NORMAL:
        return None
    between = b"\x02" + stored[len(_A_BEGIN) : -len(_A_END)] + _STORED_END
    return SendForm(outgoing.topic, outgoing.sys_flag, between)
