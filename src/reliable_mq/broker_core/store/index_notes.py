"""What the index must know of messages that were stored as columns, so that it need not read them.

Receives unique keys and places of messages when they are appended. Returns them in the order of the
log. A note may be missing: the index reads the log there, as after a restart. So notes are limited,
and nothing depends on them.
"""

import struct
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from reliable_mq.broker_core.store.index_entries import COMPUTED, Cut, IndexEntries
from reliable_mq.broker_core.store.indexed_topic import make_room
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.java_hash import TAIL, KeyHashes
from reliable_mq.wire.properties import KEYS, UNIQ_KEY, property_value
from reliable_mq.wire.record_form import RecordForm

_NOTED_MAX = 262_144  # messages; those with a key of 32 bytes have 13 MB
_TOGETHER_MAX = 256  # messages of one note; the index lists whole notes
_MARKS_MAX = 8  # entries of one message
_KEY_SIZE_MAX = 64
_UNIQ_KEY, _KEYS = f"{UNIQ_KEY}\x01".encode(), f"{KEYS}\x01".encode()


class IndexNote(NamedTuple):
    """Messages side by side in the log, of one form and one store time.

    Attributes:
        begin: log offset of the first one.
        end: where the last one ends.
        form: of their records.
        offsets: of each record, in few bytes.
        keys: their unique keys, one after another.
        time_ms: the store time.
    """

    begin: int
    end: int
    form: RecordForm
    offsets: Sequence[int]
    keys: bytes
    time_ms: int


class IndexNotes:
    """The notes that the index has not used yet.

    Invariant I3: notes stand in the order of the log, do not overlap, and `count` counts their
    messages.
    """

    def __init__(self) -> None:
        self._notes: deque[IndexNote] = deque()
        self.count = 0
        # By form: how its messages are listed; None: that depends on each message.
        self._forms: dict[RecordForm, tuple[KeyHashes, tuple[int, ...], Cut] | None] = {}

    def invariants(self) -> None:
        """Check I3.

        Raises:
            InvariantBroken: when notes overlap, or the count is wrong.
        """
        ends = [0, *(note.end for note in self._notes)]
        is_ordered = all(end <= note.begin for end, note in zip(ends, self._notes, strict=False))
        if not is_ordered or self.count != sum(len(note.offsets) for note in self._notes):
            raise InvariantBroken(f"I3: {self.count} messages in {len(self._notes)} notes")

    def __iter__(self) -> Iterator[IndexNote]:
        return iter(self._notes)

    def add(
        self,
        offsets: Sequence[int],
        end: int,
        form: RecordForm,
        keys: Sequence[bytes],
        time_ms: int,
    ) -> None:
        """Note messages that were appended, if there is room. The arguments: see `IndexNote`."""
        for at in range(0, len(offsets), _TOGETHER_MAX):
            if self.count >= _NOTED_MAX:
                return
            own = offsets[at : at + _TOGETHER_MAX]
            if not isinstance(own, range):
                own = array("q", own)
            after = at + len(own)
            note_end = offsets[after] if after < len(offsets) else end
            joined = b"".join(keys[at:after])
            self._notes.append(IndexNote(own[0], note_end, form, own, joined, time_ms))
            self.count += len(own)

    def forget_before(self, offset: int) -> None:
        """Forget the notes that begin before a log offset."""
        notes = self._notes
        while notes and notes[0].begin < offset:
            self.count -= len(notes.popleft().offsets)

    def list_in(
        self, entries: IndexEntries, note: IndexNote, others: Iterator[IndexNote], until: int
    ) -> tuple[int, IndexNote | None]:
        """Add the messages of a note to entries, and of notes that go on from it and are like it.

        Something else than the unique key may differ in what is listed of them. Then nothing is
        added.

        Args:
            entries: takes them until it is enough.
            note: the first one.
            others: the notes behind it.
            until: log offset at which the last one ends at the latest.

        Returns:
            Where the added messages end, or where the note begins if there are none. The next note.
        """
        form, end, known = note.form, note.begin, self._forms
        if form not in known:
            make_room(known)
            known[form] = _listing(entries, form)
        listing = known[form]
        if listing is None:
            return end, note
        hashes, marks, cut = listing
        left = entries.noted_left(marks)
        keys: list[bytes] = []
        offsets: list[int] = []
        times_ms: list[int] = []
        following: IndexNote | None = note
        while following is not None and following.begin == end:
            _, note_end, own_form, own, joined, time_ms = following
            # Clients that send alike messages to one topic have forms of their own.
            is_like = own_form is form or known.get(own_form) == listing
            if not is_like or note_end > until or len(offsets) >= left:
                break
            keys.append(joined)
            offsets += own
            times_ms += [time_ms] * len(own)
            end, following = note_end, next(others, None)
        if keys:
            entries.add_columns(hashes, marks, b"".join(keys), cut, offsets, times_ms)
        return end, following


def _listing(
    entries: IndexEntries, form: RecordForm
) -> tuple[KeyHashes, tuple[int, ...], Cut] | None:
    """Return how messages of a form are listed; this is tried with two unique keys."""
    size, (before, behind) = form.key_size, form.properties
    if not TAIL < size <= _KEY_SIZE_MAX:
        return None
    topic, others = entries.topic(form.topic), set()
    for key in (b"0" * size, b"1" * size):
        properties = before + key + behind
        if property_value(properties, _UNIQ_KEY) != key:
            return None
        others.add((property_value(properties, _KEYS) or b"", topic.tag_hash(properties)))
    if len(others) > 1:
        return None
    ((keys, tag_hash),) = others
    marks = [COMPUTED, *(topic.hashes.whole(key) for key in keys.split(b" ") if key)]
    if tag_hash >= 0:
        marks.append(tag_hash)
    if len(marks) > _MARKS_MAX:
        return None
    return topic.hashes, tuple(marks), _cut_of(size)


@lru_cache(maxsize=_KEY_SIZE_MAX)
def _cut_of(size: int) -> Cut:
    """Return what cuts keys of a size."""
    unpack = struct.Struct(f"{size - TAIL}s{TAIL}s").iter_unpack
    width = size // TAIL
    last = slice(width - 1, None, width)

    def cut(keys: bytes) -> tuple[bytes, bytes]:
        heads, tails = zip(*unpack(keys), strict=True)
        head = heads[0]
        return head, b"".join(tails) if heads.count(head) == len(heads) else b""

    def cut_words(keys: bytes) -> tuple[bytes, bytes]:
        head, words = keys[: size - TAIL], memoryview(keys).cast("q")
        others = bytearray((head + keys[-TAIL:]) * (len(keys) // size))
        memoryview(others).cast("q")[last] = tails = words[last]
        return head, tails.tobytes() if others == keys else b""

    return cut if size % TAIL else cut_words
