"""An AckMessage of one message in the form in which clients write it, and its answer. Pure.

It is read as bytes. Its group and topic are the same in call after call, and so is all of a receipt
handle but its end. What has another form is left to protobuf's own reader, as what it would refuse.
The answer has the bytes of the entry again: the fields of both have the same numbers.
Source: the encoding of protobuf (protobuf.dev, "Encoding"); `message_facts` has the fields.
"""

from functools import lru_cache
from typing import NamedTuple

from reliable_mq.gateway.call_body import PREFIX_SIZE
from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.field_bytes import STATUS_OK, EncodedAnswer, field_tags, sized, varint
from reliable_mq.gateway.handles import real_topic
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.sending import check_group, check_topic
from reliable_mq.wire.pop_handle import PopHandle, known_head

_CALL, _ENTRY = field_tags("AckMessageRequest"), field_tags("AckMessageEntry")
(_GROUP,), (_TOPIC,), (_ENTRIES,) = _CALL["group"], _CALL["topic"], _CALL["entries"]
(_ID,), (_HANDLE,) = _ENTRY["message_id"], _ENTRY["receipt_handle"]
_ANSWER, _RESULT = field_tags("AckMessageResponse"), field_tags("AckMessageResultEntry")
_ALL_ACKNOWLEDGED, _RESULTS = sized(_ANSWER["status"], STATUS_OK), _ANSWER["entries"]
_ACKNOWLEDGED = sized(_RESULT["status"], STATUS_OK)
_MORE, _BITS = 0x80, 0x7F  # of a number: it goes on, and the bits of a byte
_HANDLE_SPACES = 8
_DIGITS_MAX = 18  # of a number: more are none of a broker


class UsualAck(NamedTuple):
    """What an AckMessage says.

    `stored_topic`: the topic in which its message lies. `entry`: the bytes of its only entry.
    `head`: what its handle has in common with others.
    """

    group: str
    topic: str
    stored_topic: str
    entry: bytes
    message_id: str
    handle: str
    head: PopHandle
    offset: int


def usual_ack(body: bytes) -> UsualAck | None:
    """Return the call in a body; None: it is not in the usual form.

    Raises:
        RpcRefused: when no client may use its topic or group.
        HandleInvalid: when its handle is none.
    """
    try:
        topic_at = PREFIX_SIZE + 2 + body[PREFIX_SIZE + 1]
        entry_at = topic_at + 2 + body[topic_at + 1]
        length, at = body[entry_at + 1], entry_at + 2
        if length & _MORE:
            length, at = length & _BITS | body[at] << 7, at + 1
        id_end = at + 2 + body[at + 1]
        handle_at = id_end + 2
        handle_size = body[handle_at - 1]
        is_usual = (
            body[PREFIX_SIZE] == _GROUP
            and body[topic_at] == _TOPIC
            and body[entry_at] == _ENTRIES
            and body[at] == _ID
            and body[id_end] == _HANDLE
            and at + length == handle_at + handle_size == len(body)
        )
    except IndexError:
        return None
    sizes = body[PREFIX_SIZE + 1] | body[topic_at + 1] | body[at - 1] | body[at + 1] | handle_size
    if not is_usual or sizes & _MORE:  # a size has one byte, but for that of the entry
        return None
    if body[0] or int.from_bytes(body[1:PREFIX_SIZE]) != len(body) - PREFIX_SIZE:
        return None
    entry = body[at:]
    if not entry.isascii():
        return None
    text = entry.decode()
    handle = text[handle_at - at :]
    if handle.count(" ") != _HANDLE_SPACES:
        return None
    # The last field of a handle is the offset in the log: nothing is needed but that it is one.
    head_text, offset, last = handle.rsplit(" ", 2)
    if len(offset) > _DIGITS_MAX or len(last) > _DIGITS_MAX:
        return None
    if not (offset.isdecimal() and last.isdecimal()):
        return None
    group, topic, stored, head = _known(body[PREFIX_SIZE:entry_at], head_text)
    return UsualAck(group, topic, stored, entry, text[2 : id_end - at], handle, head, int(offset))


@lru_cache(maxsize=1024)
def _known(names: bytes, head_text: str) -> tuple[str, str, str, PopHandle]:
    """Return what the acknowledgements of one pop of a queue have in common.

    Args:
        names: the bytes of the group and the topic.
        head_text: their handles without the offsets.
    """
    head = known_head(head_text)
    group, topic = _names(names)
    return group, topic, real_topic(head, topic, group), head


@lru_cache(maxsize=256)
def _names(data: bytes) -> tuple[str, str]:
    """Return the group and the topic in the bytes of both."""
    call = TYPES["AckMessageRequest"].FromString(data)
    check_topic(call.topic.name)
    check_group(call.group.name)
    return call.group.name, call.topic.name


def acknowledged(entry: bytes) -> EncodedAnswer:
    """Return the answer to a call whose only entry is acknowledged."""
    size = varint(len(entry) + len(_ACKNOWLEDGED))
    data = b"".join((_ALL_ACKNOWLEDGED, _RESULTS, size, entry, _ACKNOWLEDGED))
    return EncodedAnswer(data, Code.OK)
