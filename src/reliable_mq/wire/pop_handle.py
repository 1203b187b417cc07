"""The handle of a popped message, and the fields of replies from which clients build handles.

    handle         startOffset popTime invisibleTime reviveQueue kind broker queue [offset]
    start offsets  kind queue startOffset;…
    offsets        kind queue offset,offset,…;…

`kind` is 0 for the topic itself, 1 and 2 for its retry topics of both versions. Times are in
milliseconds. Source: Apache RocketMQ `ExtraInfoUtil`, `KeyBuilder`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from reliable_mq.errors import ProtocolError

ORDER_QUEUE = 999
"""The "revive queue" in handles of messages that were popped in order."""
NORMAL, RETRY, RETRY_V2 = "0", "1", "2"
_RETRY_PREFIX, _V2_SEPARATOR = "%RETRY%", "+"
_OF_KIND = {RETRY: "_", RETRY_V2: _V2_SEPARATOR}
_KNOWN_LENGTH_MAX = 255
_DIGITS_MAX = 18
_FIELDS = ("start offset", "pop time", "invisible time", "revive queue", "kind", "broker", "queue")


class HandleInvalid(ProtocolError):
    """A text is not the handle of a popped message."""


class PopHandle(NamedTuple):
    """What a consumer gives back with a popped message. `offset` is None in old handles."""

    start_offset: int
    popped_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker: str
    queue_id: int
    offset: int | None = None

    @property
    def is_order(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue == ORDER_QUEUE

    @property
    def revive_ms(self) -> int:
        """When the message comes back."""
        return self.popped_ms + self.invisible_ms

    def text(self) -> str:
        """Return the handle as it is sent."""
        start, popped, invisible, revive, kind, broker, queue_id, offset = self
        text = f"{start} {popped} {invisible} {revive} {kind} {broker} {queue_id}"
        return text if offset is None else f"{text} {offset}"


def kind_of(topic: str) -> str:
    """Return the kind of the topic from which a message was popped."""
    if not topic.startswith(_RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if _V2_SEPARATOR in topic else RETRY


def stored_topic(topic: str, group: str, kind: str) -> str:
    """Return the topic in which messages of a kind are stored that a group popped from `topic`."""
    separator = _OF_KIND.get(kind)
    return topic if separator is None else f"{_RETRY_PREFIX}{group}{separator}{topic}"


def popped_topic(stored: str, group: str) -> str:
    """Return the topic whose messages come back in `stored`; `stored` itself if it is no retry."""
    for kind in (RETRY_V2, RETRY):
        prefix = stored_topic("", group, kind)
        if group and stored.startswith(prefix):
            return stored.removeprefix(prefix)
    return stored


def parse_handle(text: str) -> PopHandle:
    """Return the handle in a text; more fields than a handle has are ignored.

    Raises:
        HandleInvalid: when a field is missing or is no number.
    """
    cut = _cut(text)
    if cut is None:
        return _parse(text)
    start, popped, invisible, revive, kind, broker, queue_id, _ = known_head(cut[0])
    return PopHandle(start, popped, invisible, revive, kind, broker, queue_id, int(cut[1]))


def parse_checkpoint(text: str) -> PopHandle:
    """Return the handle in a text like `parse_handle`, but it may be without its offset.

    What it says of its checkpoint is read once for all messages of one pop of a queue.
    """
    cut = _cut(text)
    return _parse(text) if cut is None else known_head(cut[0])


def _cut(text: str) -> tuple[str, str] | None:
    """Return the parts of a handle before the offset, and the offset; None: it is not usual."""
    fields = text.count(" ") - len(_FIELDS) + 1  # behind the usual ones
    if fields not in _OFFSETS or len(text) > _KNOWN_LENGTH_MAX:
        return None
    head, offset, *_ = text.rsplit(" ", fields)
    return (head, offset) if offset.isdecimal() and len(offset) <= _DIGITS_MAX else None


def _parse(text: str) -> PopHandle:
    fields = text.split(" ")
    if len(fields) < len(_FIELDS):
        missing = _FIELDS[len(fields) if text else 0]
        raise HandleInvalid(f"the handle {text[:100]!r} has no {missing}: pop the message again")
    try:
        start, popped, invisible, revive = map(_number, fields[:4])
        queue_id = _number(fields[6])
        offset = _number(fields[7]) if len(fields) > len(_FIELDS) else None
    except ValueError:
        raise HandleInvalid(
            f"the handle {text[:100]!r} has a field that is no number: pop the message again"
        ) from None
    return PopHandle(start, popped, invisible, revive, fields[4], fields[5], queue_id, offset)


def _number(text: str) -> int:
    if len(text) > 20:
        raise ValueError
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError
    return number


_OFFSETS = (1, 2)  # the one in the queue, and that in the log, which only the endpoint reads
# The handles of one pop of a queue differ in their ends only.
known_head = lru_cache(maxsize=1024)(_parse)
"""Returns the handle in a text without an offset."""


def start_offset_field(topic: str, queue_id: int, start_offset: int) -> str:
    """Return the part of the start offsets for one queue."""
    return f"{kind_of(topic)} {queue_id} {start_offset}"


def offsets_field(topic: str, queue_id: int, offsets: Sequence[int]) -> str:
    """Return the part of the offsets for one queue."""
    return f"{kind_of(topic)} {queue_id} {','.join(map(str, offsets))}"


def count_field(topic: str, place: str, count: int) -> str:
    """Return the part of the numbers of attempts for one queue, or one message of it."""
    return f"{kind_of(topic)} {place} {count}"


def message_place(queue_id: int, offset: int) -> str:
    """Return how the numbers of attempts name a message."""
    return f"qo{queue_id}%{offset}"
