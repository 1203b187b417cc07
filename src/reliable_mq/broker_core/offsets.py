"""Consumer offsets: the progress of each group in each queue; file `config/consumerOffset.json`.

An offset is the queue offset of the next message to consume.
Source: Apache RocketMQ `ConsumerOffsetManager`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from reliable_mq.broker_core.json_rows import plain_json
from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.topics import DataVersion
from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import OFFSETS_SIZE_MAX, PULLED_SIZE_MAX, TOPIC_OFFSETS_COST
from reliable_mq.wire import fastjson

PATH = "config/consumerOffset.json"
_SEPARATOR = "@"
_BARE_NUMBER = re.compile(r"([{,\s])([0-9]+):")
_ENCODED_AT_ONCE = 20_000  # size of rows, about 4 ms; a topic has at most 65,535 queues
# The op queue is read from the half queue's offset on, so both offsets must be of one moment; see
# `delivery.half`.
_AT_ONCE = ((HALF_TOPIC, TRANSACTION_GROUP), (OP_TOPIC, TRANSACTION_GROUP))


class OffsetTable:
    """Offsets by (topic, group) and queue. `is_dirty` is True from a change until the next dump.

    Only changed rows are encoded for the file again, some milliseconds at a time, because there may
    be millions of offsets. So the rows of a file are of different moments, except `_AT_ONCE`.

    A reset is the group's offset until the group's next pull of the queue takes it. Until then
    commits are dropped. Invariant O1: no offset is negative. Invariant O2: `_size` is the cost of
    the committed offsets and `_pulled_size` that of pulls. An offset costs 1, and each pair of
    topic and group costs 8 more. Invariant O3: `_topics` and `_groups` list the pairs that have
    committed offsets.
    """

    def __init__(self) -> None:
        self._size = 0
        self._pulled_size = 0
        self._topics: dict[str, set[str]] = {}  # by group
        self._groups: dict[str, set[str]] = {}  # by topic
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        # Where each group pulls next. Whoever notes a pull may replace a number, but adds none.
        self.pulls: dict[tuple[str, str], dict[int, int]] = {}
        self.resets: dict[tuple[str, str], dict[int, int]] = {}
        self.version = DataVersion()
        self._rows: dict[tuple[str, str], str] = {}
        self._changed: set[tuple[str, str]] = set()  # since the last `begin_dump`
        self._unencoded: list[tuple[str, str]] = []  # changed before the last `begin_dump`
        self._is_changed = False  # also set by removals

    @property
    def is_dirty(self) -> bool:
        """Whether there is a change since the last dump."""
        return self._is_changed

    def invariants(self) -> None:
        """O1 to O3; see the class."""
        sizes = [sum(map(_size_of, table.values())) for table in (self._offsets, self.pulls)]
        if sizes != [self._size, self._pulled_size]:
            raise InvariantBroken(f"O2: {self._size}, {self._pulled_size} are counted, not {sizes}")
        by_group = {(topic, group) for group, names in self._topics.items() for topic in names}
        by_topic = {(topic, group) for topic, names in self._groups.items() for group in names}
        if not by_group == by_topic == self._offsets.keys():
            raise InvariantBroken("O3: the listed pairs differ from the pairs with offsets")
        for (topic, group), queues in self._offsets.items():
            if any(offset < 0 for offset in queues.values()):
                raise InvariantBroken(f"O1: group {group} has a negative offset in {topic}")

    def has_room(self, size: int) -> bool:
        """Whether offsets of this size may be added; a limit, because peers can add many."""
        return self._size + size <= OFFSETS_SIZE_MAX

    def may_commit(self, group: str, topic: str, queue_ids: Collection[int]) -> bool:
        """Whether these offsets exist, or there is room for the missing ones."""
        if self.has_room(TOPIC_OFFSETS_COST + len(queue_ids)):
            return True
        queues = self._offsets.get((topic, group))
        if queues is None:
            return False
        added = sum(queue_id not in queues for queue_id in queue_ids)
        return not added or self.has_room(added)

    def may_clone(self, source: str, group: str, topics: Iterable[str]) -> bool:
        """Whether there is room to copy a group's offsets in these topics to another group."""
        return self.has_room(
            sum(self.size_of(source, topic) - self.size_of(group, topic) for topic in topics)
        )

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's offset, or None when the group never committed one."""
        reset = self.pending_reset(group, topic, queue_id)
        if reset is not None:
            return reset
        queues = self._offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's offset; a reset may move it back. A negative offset is dropped."""
        if offset >= 0:
            key = (topic, group)
            queues = self._offsets.get(key)
            if queues is None:
                queues = self._put(key, {})
            if queue_id not in queues:
                self._size += 1
            queues[queue_id] = offset
            self._change(key)

    def _change(self, key: tuple[str, str]) -> None:
        self._changed.add(key)
        self._is_changed = True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's offset, and keep it until `take_reset`."""
        if queue_id >= 0 and offset >= 0:
            self.resets.setdefault((topic, group), {})[queue_id] = offset
            self.commit(group, topic, queue_id, offset)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset that no pull has taken yet, or None."""
        return self.resets.get((topic, group), {}).get(queue_id) if self.resets else None

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a pending reset for a pull, or None; the reset ends."""
        queues = self.resets.get((topic, group)) if self.resets else None
        offset = queues.pop(queue_id, None) if queues else None
        if queues is not None and not queues:
            del self.resets[topic, group]
        return offset

    def size_of(self, group: str, topic: str) -> int:
        """Return the cost of the group's offsets in a topic, 0 without offsets; see the class."""
        queues = self._offsets.get((topic, group))
        return 0 if queues is None else _size_of(queues)

    def all_of(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets in a topic, by queue."""
        return dict(self._offsets.get((topic, group), {}))

    def clone(self, source: str, group: str, topic: str) -> None:
        """Copy a group's offsets in a topic to another group, if there are any."""
        offsets = self._offsets.get((topic, source))
        if offsets:
            self._put((topic, group), dict(offsets))
            self._change((topic, group))

    def _put(self, key: tuple[str, str], offsets: dict[int, int]) -> dict[int, int]:
        topic, group = key
        self._topics.setdefault(group, set()).add(topic)
        self._groups.setdefault(topic, set()).add(group)
        self._size += _size_of(offsets) - self.size_of(group, topic)
        self._offsets[key] = offsets
        return offsets

    def settle(self, store: MessageStore) -> None:
        """Reduce offsets beyond the end of a queue, after the queue lost messages.

        Otherwise the groups would skip the messages that get these queue offsets next.
        """
        for (topic, group), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                queue = store.queue(topic, queue_id)
                end = queue.end if queue else 0
                if offset > end:
                    queues[queue_id] = end
                    self._change((topic, group))

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last pulled message; 0 when the group never pulled."""
        return self.pulls.get((topic, group), {}).get(queue_id, 0)

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note the queue offset of the group's next pull, if there is room. This is not saved."""
        queues = self.pulls.get((topic, group))
        if queues is None:
            if self._pulled_size >= PULLED_SIZE_MAX:
                return
            queues = self.pulls[topic, group] = {}
            self._pulled_size += TOPIC_OFFSETS_COST
        if queue_id not in queues:
            if self._pulled_size >= PULLED_SIZE_MAX:
                return
            self._pulled_size += 1
        queues[queue_id] = next_offset

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has an offset."""
        return sorted(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have an offset in the topic."""
        return sorted(self._groups.get(topic, ()))

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Return the pairs of topic and group that have an offset; not to be kept."""
        return self._offsets.keys()

    def rows(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield group, topic, queue and offset of each committed offset."""
        for (topic, group), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                yield group, topic, queue_id, offset

    def remove_group(self, group: str) -> None:
        """Remove a group's offsets in all topics."""
        self._remove([(topic, group) for topic in self._topics.get(group, ())])
        self._forget_unsaved(lambda key: key[1] == group)

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets of all groups in a topic."""
        self._remove([(topic, group) for group in self._groups.get(topic, ())])
        self._forget_unsaved(lambda key: key[0] == topic)

    def _remove(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            topic, group = key
            self._size -= _size_of(self._offsets.pop(key))
            self._rows.pop(key, None)
            self._changed.discard(key)
            self._is_changed = True
            for listed, name, other in ((self._topics, group, topic), (self._groups, topic, group)):
                listed[name].discard(other)
                if not listed[name]:
                    del listed[name]

    def _forget_unsaved(self, is_gone: Callable[[tuple[str, str]], bool]) -> None:
        for key in [key for key in self.pulls if is_gone(key)]:
            self._pulled_size -= _size_of(self.pulls.pop(key))
        for key in [key for key in self.resets if is_gone(key)]:
            del self.resets[key]

    def begin_dump(self) -> None:
        """Begin to encode the changed rows; call `encode_some` until it returns False."""
        self._is_changed = False
        self._unencoded = [*self._unencoded, *self._changed]
        self._changed = set()

    def encode_some(self) -> bool:
        """Encode some rows that changed before `begin_dump`; return whether more are left."""
        room = _ENCODED_AT_ONCE
        while self._unencoded and room > 0:
            room -= self._encode(self._unencoded.pop())
        return bool(self._unencoded)

    def _encode(self, key: tuple[str, str]) -> int:
        """Encode the row of a pair, unless it was removed; return its size."""
        if key not in self._offsets:
            return 1
        queues = sorted(self._offsets[key].items())
        offsets = ",".join([f"\n\t\t\t{queue_id}:{offset}" for queue_id, offset in queues])
        name = plain_json(_SEPARATOR.join(key))
        self._rows[key] = f"\n\t\t{name}:{{{offsets}\n\t\t}}"
        return _size_of(self._offsets[key])

    def is_text_cheap(self, size_max: int) -> bool:
        """Whether the unencoded offsets have at most this size, so that `text` is cheap."""
        size = 0
        for topic, group in chain(self._changed, self._unencoded):
            size += self.size_of(group, topic)
            if size > size_max:
                return False
        return True

    @property
    def has_all_rows(self) -> bool:
        """Whether each pair of topic and group has an encoded row."""
        return len(self._rows) == len(self._offsets)

    def dump(self) -> str:
        """Return the content of the file with all offsets, and clear `is_dirty`."""
        self._is_changed = False
        return self.text()

    def text(self) -> str:
        """Return the table with all offsets, in the format of the file and of tools."""
        for key in chain(self._changed, self._unencoded):
            self._encode(key)
        self._changed, self._unencoded = set(), []
        return self.dump_encoded()

    def dump_encoded(self) -> str:
        """Return the content of the file; each row is as of `begin_dump`, or somewhat later."""
        for key in _AT_ONCE:
            self._encode(key)
        return (
            f'{{\n\t"dataVersion":{plain_json(self.version)},'
            f'\n\t"offsetTable":{{{",".join(self._rows.values())}\n\t}}\n}}'
        )

    def load(self, text: str) -> None:
        """Load the offsets from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        self._load(_read(text))

    def take_over(self, text: str) -> None:
        """Take over the offsets of a master's table, also that some are gone.

        Raises:
            ValueError: when the text is no such table. Nothing was changed then.
        """
        file = _read(text)
        was_changed = self._is_changed
        known = self._load(file)
        self._is_changed |= was_changed
        self._remove([key for key in self._offsets if key not in known])

    def _load(self, file: "_File") -> set[tuple[str, str]]:
        """Take the offsets of a file; return the pairs of topic and group that it has."""
        known: set[tuple[str, str]] = set()
        for name, queues in file.offset_table.items():
            topic, _, group = name.partition(_SEPARATOR)
            known.add((topic, group))
            offsets = {q: offset for q, offset in queues.items() if offset >= 0}
            if self._offsets.get((topic, group)) != offsets:
                self._put((topic, group), offsets)
                self._changed.add((topic, group))
        self._is_changed = bool(self._changed)  # so that the next save encodes all rows
        self.version = file.data_version
        return known


@decodable
class _File(msgspec.Struct, rename="camel"):
    offset_table: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


def _read(text: str) -> _File:
    """Read the file; about a million offsets per second if only queue ids are bare keys."""
    try:
        plain = _BARE_NUMBER.sub(r'\1"\2":', text)
        return msgspec.json.decode(plain, type=_File, strict=False)
    except (msgspec.MsgspecError, RecursionError):  # also if a text contains a bare number key
        return msgspec.convert(fastjson.loads(text), _File, strict=False)


def _size_of(queues: Mapping[int, int]) -> int:
    return TOPIC_OFFSETS_COST + len(queues)
