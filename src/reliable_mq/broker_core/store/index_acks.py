"""Index entries of acknowledgements of popped messages, which are timed messages.

Those of one checkpoint differ in a number in the middle of their unique key: the offset of their
message. So the hash of what is around this number is kept, and that of the number is added to it.
Receives the bytes behind the body of a record. Source of the keys: `wire/pop_records.py`.
"""

from operator import mul
from typing import NamedTuple

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.store.indexed_topic import make_room, tag_of
from reliable_mq.wire.java_hash import index_hash, java_string_hash
from reliable_mq.wire.properties import KEYS, UNIQ_KEY

_UNIQ_KEY, _KEYS = f"{UNIQ_KEY}\x01".encode(), f"{KEYS}\x01".encode()
_END = b"\x02"
TIMED = bytes((len(TIMER_TOPIC),)) + TIMER_TOPIC.encode()
"""What stands behind the body of a timed message: the length of its topic, and the topic."""
_TOPIC_SIZE = len(TIMED)
_AT = _TOPIC_SIZE + 2  # of the properties, behind their length
_DIGITS_MAX = 19
_PARTS = 4  # of a unique key, cut at its first three separators
_MASK, _SIGN_BIT = 0xFFFFFFFF, 0x80000000

Marks = tuple[int, ...]


class _Around(NamedTuple):
    """What is around a number: the hash of a key is `share`, and each digit times its factor."""

    digits: int
    share: int
    factors: tuple[int, ...]
    tag_marks: Marks


class AckKeys:
    """The forms of the last acknowledgements."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes, bytes, bytes], _Around] = {}

    def marks_of(self, text: bytes) -> Marks | None:
        """Return the hashes of unique key and tag; None: it is another record, or a rare one.

        Args:
            text: the bytes of a record behind its body; they begin with `TIMED`.
        """
        before, _, behind = text.partition(_UNIQ_KEY)
        parts = behind.split(b"@", _PARTS - 1)
        if len(parts) != _PARTS:
            return None
        topic, queue_id, number, rest = parts
        if not number.isdigit():
            return None
        around = self._known.get((before, topic, queue_id, rest))
        if around is None or around.digits != len(number):
            around = self._learned(text, before, parts)
            if around is None:
                return None
        value = around.share + sum(map(mul, number, around.factors)) & _MASK
        if value >= _SIGN_BIT:  # its absolute value; Apache stores 0 for the smallest int
            value = -value & _MASK if value > _SIGN_BIT else 0
        return (value, *around.tag_marks)

    def _learned(self, text: bytes, before: bytes, parts: list[bytes]) -> _Around | None:
        topic, queue_id, number, rest = parts
        key_rest, end, _ = rest.partition(_END)
        properties = text[_AT:]
        is_whole = int.from_bytes(text[_TOPIC_SIZE:_AT]) == len(properties)
        is_name = len(before) == _AT or before[-1:] == _END
        is_rare = (
            _KEYS in properties or properties.count(_UNIQ_KEY) > 1 or len(number) > _DIGITS_MAX
        )
        head = b"@".join((topic, queue_id, b""))
        key_end = b"@" + key_rest
        if not is_whole or not is_name or is_rare or not end or _END in head:
            return None
        if not (head.isascii() and key_end.isascii()):
            return None
        begin = java_string_hash(f"{TIMER_TOPIC}#{head.decode()}")
        power, size = pow(31, len(key_end), 1 << 32), len(number)
        share = begin * pow(31, size, 1 << 32) * power + java_string_hash(key_end.decode())
        factors = tuple(pow(31, size - 1 - at, 1 << 32) * power & _MASK for at in range(size))
        tag = tag_of(properties)
        tags = (index_hash(TIMER_TOPIC, f"T#{tag.decode('utf-8', 'replace')}"),) if tag else ()
        make_room(self._known)
        around = _Around(size, share & _MASK, factors, tags)
        self._known[before, topic, queue_id, rest] = around
        return around
