"""Index entries of records: one pass over a piece of the log.

Receives bytes of the log and their offset. Returns entries in columns. Does not know files. A
message is listed under its unique key, each of its keys, and its tag, in this order; a rolled-back
message is not listed. Source: Apache RocketMQ 5.4.0 `IndexService.buildIndex`.

Messages of one client are alike: the bytes after the body differ only in the unique key, or in one
more key. So the bytes around these keys are parsed once and cached as a shape. A message of a known
shape needs only two lookups (`_read`, `_add_pair`). Acknowledgements have their own forms
(`index_acks`). Others use `_add_usual`, which caches the bytes after the unique key, or `_add`.
"""

import struct
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from reliable_mq.broker_core.store.index_acks import TIMED, AckKeys
from reliable_mq.broker_core.store.indexed_topic import IndexedTopic, make_room, tag_of
from reliable_mq.errors import RecordError
from reliable_mq.wire.java_hash import TAIL, KeyHashes, index_hashes
from reliable_mq.wire.properties import KEYS, TAGS, UNIQ_KEY, property_value
from reliable_mq.wire.record import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)
from reliable_mq.wire.record_scan import head_at

_UNIQ_KEY = f"{UNIQ_KEY}\x01".encode()
_KEYS = f"{KEYS}\x01".encode()
_KEYS_SIZE = len(_KEYS)
_TAGS = f"{TAGS}\x01".encode()
_END, _MAGICS = b"\x02", (MAGIC_V1, MAGIC_V2)
_RECORDS_MAX = 160
_NOTED_MAX = 512  # messages that come as columns; one costs half as much as a record
_ENTRIES_MAX = 1024
_TOPICS_MAX = 32  # that are not cached: each takes 10 us, as three records of a cached one
_LEARN_EVERY = 16
_SHORT_SHARE = 8  # a small slice takes 0.1 to 0.2 ms, most of it for pages of the index

# The fixed part of a record when both hosts are IPv4: size, magic, own offset, flags, store time,
# body size. x skips a byte.
_FIXED = struct.Struct(">iI20xqi16xq20xI")
_FIXED_SIZE = _FIXED.size
_LENGTH_SIZE = 2  # of PROPERTIESLENGTH
_WATCHED = BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_MASK
COMPUTED = -1  # in place of a hash that is computed later, together with all others
_ALONE = (COMPUTED,)  # the marks of a message with a unique key only

Cut = Callable[[bytes], tuple[bytes, bytes]]
"""Cuts keys of one size that stand one after another before their last `TAIL` bytes.

Returns the head of the first one, and all tails, one after another; no tails: heads differ."""


class IndexColumns(NamedTuple):
    """Entries as columns: hash of the key, log offset and store time (ms) of the record."""

    hashes: list[int]
    offsets: list[int]
    times_ms: list[int]

    def since(self, begin: int) -> "IndexColumns":
        """Return the entries from index `begin` on."""
        if not begin:
            return self
        return IndexColumns(self.hashes[begin:], self.offsets[begin:], self.times_ms[begin:])


_Unpack = Callable[[bytes, int], tuple[bytes, ...]]
_ShareOf = Callable[[bytes], bytes | None]
_Shape = tuple[_ShareOf, tuple[int, ...]]
_PairShape = tuple[_ShareOf, _ShareOf, tuple[int, ...]]
_NO_SHAPE: _Shape = (dict[bytes, bytes]().get, ())


def _spread(values: list[int], counts: list[int]) -> list[int]:
    """Repeat each value as often as its count says."""
    count = counts[0] if counts else 0
    if counts.count(count) != len(counts):
        return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
    spread = [0] * (count * len(values))
    for at in range(count):
        spread[at::count] = values
    return spread


class IndexEntries:
    """The entries of a slice of the log.

    Invariant: each record has one element in `_offsets`, `_times_ms` and `_marks`; each `COMPUTED`
    mark has `TAIL` bytes in `_shares` and in `_tails`, alone or joined with those of others.
    """

    def __init__(self) -> None:
        self._topics: dict[bytes, IndexedTopic] = {}
        # Properties after a unique key without other keys, and their tag. They are the same in all
        # topics of a client. Those that occurred once wait: most others never come again.
        self._rests: dict[bytes, bytes] = {}
        self._seen: set[bytes] = set()
        # By the size of the bytes after a body: how to split them into the part before the unique
        # key, its head, its tail, and the part after it. Shapes: the meaning of the outer parts.
        self._unpacks: dict[int, _Unpack] = {}
        self._shapes: dict[tuple[bytes, bytes], _Shape] = {}
        # The same with one key before the unique key, as Apache's Java client orders them.
        self._pair_unpacks: dict[int, _Unpack] = {}
        self._pair_shapes: dict[tuple[bytes, bytes, bytes], _PairShape] = {}
        self._acks = AckKeys()
        self.begin()

    def begin(self, *, is_short: bool = False) -> None:
        """Remove all entries; the next slice is a small one if `is_short`."""
        share = _SHORT_SHARE if is_short else 1
        self._records_max, self._topics_max = _RECORDS_MAX // share, _TOPICS_MAX // share
        self._noted_max = _NOTED_MAX // share
        # Messages that came as columns: `_noted`; entries of messages with many keys: `_many`.
        self._new_topics = self._noted = self._many = 0
        self._marks: list[tuple[int, ...]] = []
        self._shares: list[bytes] = []
        self._tails: list[bytes] = []
        self._offsets: list[int] = []
        self._times_ms: list[int] = []

    @property
    def is_enough(self) -> bool:
        """Whether enough was read for one slice."""
        read, noted = len(self._marks) - self._noted, self._noted
        if read >= self._records_max or noted >= self._noted_max or self._many >= _ENTRIES_MAX:
            return True
        return self._new_topics >= self._topics_max

    def noted_left(self, marks: tuple[int, ...]) -> int:
        """Return after how many more messages with such marks it is enough."""
        left, more = self._noted_max - self._noted, len(marks) - 2
        return left if more < 1 else min(left, (_ENTRIES_MAX - self._many) // more + 1)

    def columns(self) -> IndexColumns:
        """Return the entries."""
        hashes, marks = index_hashes(self._shares, self._tails), self._marks
        if marks and marks[0] == _ALONE and marks.count(_ALONE) == len(marks):
            return IndexColumns(hashes, self._offsets, self._times_ms)
        counts = list(map(len, marks))
        if len(hashes) < sum(counts):
            computed, each = iter(hashes), chain.from_iterable(marks)
            hashes = [next(computed) if mark < 0 else mark for mark in each]
        return IndexColumns(hashes, _spread(self._offsets, counts), _spread(self._times_ms, counts))

    def add_columns(
        self,
        hashes: KeyHashes,
        marks: tuple[int, ...],
        keys: bytes,
        cut: Cut,
        offsets: list[int],
        times_ms: list[int],
    ) -> None:
        """Add messages of one topic that differ only in place and unique key.

        Args:
            hashes: of the keys of the topic.
            marks: of each message; the first one stands for its unique key.
            keys: the unique keys, one after another.
            cut: cuts them.
            offsets, times_ms: of the records.
        """
        count = len(offsets)
        head, tails = cut(keys)
        share = hashes.shares.get(head)
        if share is None or not tails:
            size = len(keys) // count
            for at in range(0, len(keys), size):
                self._mark(hashes, keys[at : at + size])
        else:
            self._shares.append(share * count)
            self._tails.append(tails)
        self._marks += [marks] * count
        self._offsets += offsets
        self._times_ms += times_ms
        self._noted += count
        self._many += max(0, len(marks) - 2) * count

    def read(self, piece: bytes, offset: int) -> int:
        """Read whole records until it is enough; return their size in bytes.

        A piece is a part of a segment, and begins with a record at a log offset.
        """
        records, keys, many = len(self._marks), len(self._tails), self._many
        size, tails = self._read(piece, offset, is_careful=False), b"".join(self._tails[keys:])
        if tails.isascii() and _END not in tails:
            return size
        # A unique key is not ASCII, or is shorter than assumed: parse each message separately.
        del self._marks[records:], self._offsets[records:], self._times_ms[records:]
        del self._shares[keys:], self._tails[keys:]
        self._many = many
        return self._read(piece, offset, is_careful=True)

    def _read(self, piece: bytes, offset: int, *, is_careful: bool) -> int:
        marks, shares, tails = self._marks, self._shares, self._tails
        offsets, times_ms, marks_of = self._offsets, self._times_ms, self._acks.marks_of
        known_unpack = ({} if is_careful else self._unpacks).get
        unpack, known_shape = _FIXED.unpack_from, self._shapes.get
        last_before = last_behind = b""
        share_of, shape_marks = _NO_SHAPE
        at, size = 0, len(piece)
        last = size - RECORD_SIZE_MIN
        for _ in range(self._records_max + self._noted - len(marks)):
            if at > last:
                break
            record_size, magic, own_offset, flag, time_ms, body_size = unpack(piece, at)
            end = at + record_size
            if own_offset != offset + at or end > size or record_size < RECORD_SIZE_MIN:
                break
            if magic == MAGIC_V1 and flag & _WATCHED < TRANSACTION_ROLLBACK:
                topic_at = at + _FIXED_SIZE + body_size
                unpack_text = known_unpack(end - topic_at)
                if unpack_text:
                    before, head, tail, behind = unpack_text(piece, topic_at)
                    if before != last_before or behind != last_behind:
                        last_before, last_behind = before, behind
                        share_of, shape_marks = known_shape((before, behind), _NO_SHAPE)
                    share = share_of(head)
                    if share:
                        marks.append(shape_marks)
                        shares.append(share)
                        tails.append(tail)
                        offsets.append(own_offset)
                        times_ms.append(time_ms)
                        at = end
                        continue
                    last_before = b""  # the shape may be cached afterwards
                text = piece[topic_at:end]
                if text.startswith(TIMED) and (own := marks_of(text)):
                    self._note(own, own_offset, time_ms)
                    at = end
                    continue
                is_added = not is_careful and self._add_pair(text, own_offset, time_ms)
                if not text or not (is_added or self._add_usual(text, own_offset, time_ms)):
                    break
            elif magic not in _MAGICS or not self._add_unusual(piece, at, end, own_offset):
                break
            at = end
            if self.is_enough:
                break
        return at

    def topic(self, name: bytes) -> IndexedTopic:
        """Return what is known of a topic."""
        topic = self._topics.get(name)
        if topic is None:
            make_room(self._topics)
            topic = self._topics[name] = IndexedTopic(name)
            self._new_topics += 1
        return topic

    def _add_pair(self, text: bytes, offset: int, time_ms: int) -> bool:
        """Add a message with one key before its unique key; return whether its shape is known."""
        unpack = self._pair_unpacks.get(len(text))
        if unpack is None:
            return False
        before, key_head, key_tail, between, head, tail, behind = unpack(text, 0)
        shape = self._pair_shapes.get((before, between, behind))
        if shape is None:
            return False
        key_share_of, share_of, marks = shape
        key_share, share = key_share_of(key_head), share_of(head)
        if key_share is None or share is None or b" " in key_head or b" " in key_tail:
            return False
        self._shares += share, key_share
        self._tails += tail, key_tail.rjust(TAIL, b"\0")
        self._note(marks, offset, time_ms)
        return True

    def _add_usual(self, text: bytes, offset: int, time_ms: int) -> bool:
        """Add a message from the bytes after its body; return whether these are complete.

        Expects the unique key alone, or after the keys, as Apache's Java client orders them. Caches
        the parts that the next message may share.
        """
        begin = 1 + text[0] + _LENGTH_SIZE
        topic = self.topic(text[1 : begin - _LENGTH_SIZE])
        properties = text[begin:]
        if int.from_bytes(text[begin - _LENGTH_SIZE : begin]) != len(properties):
            return False  # its size is damaged: the next record is not at its end
        before, _, behind = properties.partition(_UNIQ_KEY)
        unique, _, rest = behind.partition(_END)
        tag_hash = topic.rests.get(rest)
        if (is_new := tag_hash is None) and (tag := self._rests.get(rest)) is not None:
            make_room(topic.rests)
            tag_hash = topic.rests[rest] = topic.hash_of_tag(tag)
        has_keys = before[:_KEYS_SIZE] == _KEYS and before.find(_END) == len(before) - 1
        if not unique or tag_hash is None or (before and not has_keys):
            self._add(topic, properties, offset, time_ms)
            if rest in self._seen:
                self._learn(topic, text, begin + len(before), unique, rest)
            make_room(self._seen)
            self._seen.add(rest)
            return True
        marks = [self._mark(topic.hashes, unique)]
        if before:
            keys = before[_KEYS_SIZE:-1].split(b" ")
            marks += [self._mark(topic.hashes, key) for key in keys if key]
            if len(text) not in self._pair_unpacks or len(self._marks) % _LEARN_EVERY == 0:
                self._learn_pair(topic, text, begin + _KEYS_SIZE, before[_KEYS_SIZE:-1], unique)
        elif not (is_new or topic.is_learned) or len(self._marks) % _LEARN_EVERY == 0:
            # It is the second message of the topic, or the size of the text may be new.
            self._learn(topic, text, begin, unique, rest)
        if tag_hash >= 0:
            marks.append(tag_hash)
        self._note(tuple(marks), offset, time_ms)
        return True

    def _learn(self, topic: IndexedTopic, text: bytes, at: int, unique: bytes, rest: bytes) -> None:
        """Cache the parts around a unique key whose name begins at `at`, if they are simple."""
        if not unique or _KEYS in rest or _UNIQ_KEY in rest:
            return
        topic.is_learned = True
        make_room(topic.rests)
        make_room(self._rests)
        tag = self._rests[rest] = tag_of(rest)
        tag_hash = topic.rests[rest] = topic.hash_of_tag(tag)
        key_at = at + len(_UNIQ_KEY)
        before, behind = text[:key_at], text[key_at + len(unique) :]
        is_first = at == 1 + text[0] + _LENGTH_SIZE
        is_whole_name = is_first or text[at - 1 : at] == _END
        if is_whole_name and len(unique) > TAIL and not (_KEYS in before or _TAGS in before):
            sizes = f"{len(before)}s{len(unique) - TAIL}s{TAIL}s{len(behind)}s"
            marks = (COMPUTED, tag_hash) if tag_hash >= 0 else (COMPUTED,)
            make_room(self._unpacks)
            self._unpacks[len(text)] = struct.Struct(sizes).unpack_from
            make_room(self._shapes)
            self._shapes[before, behind] = (topic.hashes.shares.get, marks)

    def _learn_pair(
        self, topic: IndexedTopic, text: bytes, at: int, key: bytes, unique: bytes
    ) -> None:
        """Cache the parts around a key that begins at `at`, and the unique key after it."""
        cut = topic.hashes.cut(key)
        if cut is None or not key or b" " in key or len(unique) <= TAIL:
            return
        unique_at = at + len(key) + len(_END) + len(_UNIQ_KEY)
        before, between = text[:at], text[at + len(key) : unique_at]
        behind = text[unique_at + len(unique) :]
        tail_size = min(len(key), TAIL)
        sizes = f"{len(before)}s{len(key) - tail_size}s{tail_size}s{len(between)}s"
        sizes += f"{len(unique) - TAIL}s{TAIL}s{len(behind)}s"
        tag_hash = topic.rests[behind[len(_END) :]]
        marks = (COMPUTED, COMPUTED, tag_hash) if tag_hash >= 0 else (COMPUTED, COMPUTED)
        shares = topic.hashes.shares
        key_shares = shares if len(key) > TAIL else {b"": cut[0]}  # a short key has no head
        make_room(self._pair_unpacks)
        self._pair_unpacks[len(text)] = struct.Struct(sizes).unpack_from
        make_room(self._pair_shapes)
        self._pair_shapes[before, between, behind] = (key_shares.get, shares.get, marks)

    def _add_unusual(self, piece: bytes, at: int, end: int, offset: int) -> bool:
        """Add a record of any kind; return whether it is a complete record."""
        try:
            head = head_at(memoryview(piece), at)
        except (struct.error, IndexError, RecordError):
            return False
        properties_at = end - len(head.properties)
        length = int.from_bytes(piece[properties_at - _LENGTH_SIZE : properties_at])
        if length != len(head.properties):
            return False
        if head.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            self._note((), offset, head.store_time_ms)
        else:
            topic = self.topic(head.topic.encode())
            self._add(topic, head.properties, offset, head.store_time_ms)
        return True

    def _add(self, topic: IndexedTopic, properties: bytes, offset: int, time_ms: int) -> None:
        """Add a message with any properties."""
        unique = property_value(properties, _UNIQ_KEY)
        keys = (property_value(properties, _KEYS) or b"").split(b" ")
        marks = [self._mark(topic.hashes, key) for key in (unique, *keys) if key]
        tag_hash = topic.tag_hash(properties)
        if tag_hash >= 0:
            marks.append(tag_hash)
        self._note(tuple(marks), offset, time_ms)

    def _mark(self, hashes: KeyHashes, key: bytes) -> int:
        cut = hashes.cut(key)
        if cut is None:
            return hashes.whole(key)
        self._shares.append(cut[0])
        self._tails.append(cut[1])
        return COMPUTED

    def _note(self, marks: tuple[int, ...], offset: int, time_ms: int) -> None:
        self._marks.append(marks)
        self._offsets.append(offset)
        self._times_ms.append(time_ms)
        self._many += max(0, len(marks) - 2)
