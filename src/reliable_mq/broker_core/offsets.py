"""How far each consumer group has come in each queue, and `config/consumerOffset.json`.

An offset is the queue offset of the next message to consume.
Source: Apache RocketMQ `ConsumerOffsetManager`.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from reliable_mq.broker_core.json_rows import plain_json
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.topics import DataVersion
from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import OFFSETS_SIZE_MAX, TOPIC_OFFSETS_COST
from reliable_mq.wire import fastjson

PATH = "config/consumerOffset.json"
_SEPARATOR = "@"
_BARE_NUMBER = re.compile(r"([{,\s])([0-9]+):")
_ENCODED_AT_ONCE = 20_000  # offsets, in some 4 ms; a topic has 65,535 queues at most


class OffsetTable:
    """Offsets by (topic, group) and queue. `is_dirty` until it was dumped.

    Only what changed since is encoded for the file again, some milliseconds at a time: there may be
    millions of offsets.

    A reset holds until the group's next pull of the queue takes it: it is the group's offset, and
    commits are dropped. Invariant O1: no offset is negative. Invariant O2: `_size` is what the
    committed offsets and those of pulls take; each counts 1, and each topic of a group 8 more.
    """

    def __init__(self) -> None:
        self._size = 0
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._pulled: dict[tuple[str, str], dict[int, int]] = {}
        self._resets: dict[tuple[str, str], dict[int, int]] = {}
        self.version = DataVersion()
        self._rows: dict[tuple[str, str], str] = {}
        self._changed: set[tuple[str, str]] = set()  # since the last `begin_dump`
        self._unencoded: list[tuple[str, str]] = []  # what had changed before it
        self._is_changed = False  # also by what was removed

    @property
    def is_dirty(self) -> bool:
        """Whether something changed since the last `dump`."""
        return self._is_changed

    def invariants(self) -> None:
        """O1 and O2; see the class."""
        size = sum(map(_size_of, (*self._offsets.values(), *self._pulled.values())))
        if size != self._size:
            raise InvariantBroken(f"O2: offsets of size {self._size} are counted, it is {size}")
        for (topic, group), queues in self._offsets.items():
            if any(offset < 0 for offset in queues.values()):
                raise InvariantBroken(f"O1: group {group} has a negative offset in {topic}")

    def has_room(self, count: int) -> bool:
        """Whether so many more offsets may be kept; peers multiply groups and queues."""
        return self._size + count <= OFFSETS_SIZE_MAX

    def may_commit(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether an offset is there already, or there is room for it."""
        return self.has_room(1) or queue_id in self._offsets.get((topic, group), ())

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's offset, or None when it never committed one."""
        reset = self.pending_reset(group, topic, queue_id)
        if reset is not None:
            return reset
        queues = self._offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's offset. It may go back: a reset does that. A negative one is dropped."""
        if offset >= 0:
            key = (topic, group)
            queues = self._offsets.get(key)
            if queues is None:
                queues = self._offsets[key] = {}
                self._size += TOPIC_OFFSETS_COST
            if queue_id not in queues:
                self._size += 1
            queues[queue_id] = offset
            self._change(key)

    def _change(self, key: tuple[str, str]) -> None:
        self._changed.add(key)
        self._is_changed = True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's offset, and let it hold until `take_reset`."""
        if queue_id >= 0 and offset >= 0:
            self._resets.setdefault((topic, group), {})[queue_id] = offset
            self.commit(group, topic, queue_id, offset)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset that no pull has taken yet, or None."""
        return self._resets.get((topic, group), {}).get(queue_id) if self._resets else None

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset for the pull that is told of it, or None; it ends here."""
        queues = self._resets.get((topic, group)) if self._resets else None
        offset = queues.pop(queue_id, None) if queues else None
        if queues is not None and not queues:
            del self._resets[topic, group]
        return offset

    def count_of(self, group: str, topic: str) -> int:
        """Return of how many queues of a topic the group has committed an offset."""
        return len(self._offsets.get((topic, group), ()))

    def all_of(self, group: str, topic: str) -> dict[int, int]:
        """Return what the group committed in a topic, by queue."""
        return dict(self._offsets.get((topic, group), {}))

    def clone(self, source: str, group: str, topic: str) -> None:
        """Give a group the offsets of another in a topic, if that has any."""
        offsets = self._offsets.get((topic, source))
        if offsets:
            self._put((topic, group), dict(offsets))
            self._change((topic, group))

    def _put(self, key: tuple[str, str], offsets: dict[int, int]) -> None:
        known = self._offsets.get(key)
        self._size += _size_of(offsets) - (0 if known is None else _size_of(known))
        self._offsets[key] = offsets

    def settle(self, store: MessageStore) -> None:
        """Take back the offsets behind the ends of queues that lost messages.

        Otherwise the groups would step over the messages that come in their place.
        """
        for (topic, group), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                queue = store.queue(topic, queue_id)
                end = queue.end if queue else 0
                if offset > end:
                    queues[queue_id] = end
                    self._change((topic, group))

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return up to where the group was handed messages; 0 when it never pulled."""
        return self._pulled.get((topic, group), {}).get(queue_id, 0)

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note where a group's next pull begins, if there is room. This is not saved."""
        queues = self._pulled.get((topic, group))
        if queues is None:
            if not self.has_room(1):
                return
            queues = self._pulled[topic, group] = {}
            self._size += TOPIC_OFFSETS_COST
        if queue_id not in queues:
            if not self.has_room(1):
                return
            self._size += 1
        queues[queue_id] = next_offset

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has an offset."""
        return sorted(topic for topic, owner in self._offsets if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have an offset in the topic."""
        return sorted(group for name, group in self._offsets if name == topic)

    def remove_group(self, group: str) -> None:
        """Forget a group's offsets of all topics."""
        self._remove(lambda key: key[1] == group)

    def remove_topic(self, topic: str) -> None:
        """Forget all groups' offsets of a topic."""
        self._remove(lambda key: key[0] == topic)

    def _remove(self, is_gone: Callable[[tuple[str, str]], bool]) -> None:
        for key in [key for key in self._offsets if is_gone(key)]:
            self._size -= _size_of(self._offsets.pop(key))
            self._rows.pop(key, None)
            self._changed.discard(key)
            self._is_changed = True
        for key in [key for key in self._pulled if is_gone(key)]:
            self._size -= _size_of(self._pulled.pop(key))
        for key in [key for key in self._resets if is_gone(key)]:
            del self._resets[key]

    def begin_dump(self) -> None:
        """Begin to encode what has changed; call `encode_some` until nothing is left."""
        self._is_changed = False
        self._unencoded = [*self._unencoded, *self._changed]
        self._changed = set()

    def encode_some(self) -> bool:
        """Encode some of what changed before `begin_dump`; return whether more is left."""
        room = _ENCODED_AT_ONCE
        while self._unencoded and room > 0:
            key = self._unencoded.pop()
            if key in self._offsets:  # it may have been removed
                room -= self._encode(key)
        return bool(self._unencoded)

    def _encode(self, key: tuple[str, str]) -> int:
        """Encode what a group has in a topic; return how many offsets that are."""
        queues = sorted(self._offsets[key].items())
        offsets = ",".join([f"\n\t\t\t{queue_id}:{offset}" for queue_id, offset in queues])
        name = plain_json(_SEPARATOR.join(key))
        self._rows[key] = f"\n\t\t{name}:{{{offsets}\n\t\t}}"
        return len(queues) + 1

    @property
    def unencoded_count(self) -> int:
        """How many offsets `text` has to encode."""
        changed = (*self._changed, *self._unencoded)
        return sum(len(self._offsets.get(key, ())) for key in changed)

    def dump(self) -> str:
        """Return the text of the file, with all that there is."""
        self._is_changed = False
        return self.text()

    def text(self) -> str:
        """Return the table as the file has it, and tools want it, with all that there is."""
        for key in (*self._changed, *self._unencoded):
            if key in self._offsets:
                self._encode(key)
        self._changed, self._unencoded = set(), []
        return self.dump_encoded()

    def dump_encoded(self) -> str:
        """Return the text of the file as of `begin_dump`, or somewhat later."""
        return (
            f'{{\n\t"dataVersion":{plain_json(self.version)},'
            f'\n\t"offsetTable":{{{",".join(self._rows.values())}\n\t}}\n}}'
        )

    def load(self, text: str) -> None:
        """Take the offsets from the text of the file.

        Raises:
            ValueError: when the text is no such file.
        """
        file = _read(text)
        for name, queues in file.offset_table.items():
            topic, _, group = name.partition(_SEPARATOR)
            self._put((topic, group), {q: offset for q, offset in queues.items() if offset >= 0})
            self._changed.add((topic, group))
        self.version = file.data_version


@decodable
class _File(msgspec.Struct, rename="camel"):
    offset_table: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


def _read(text: str) -> _File:
    """Read the file, a million offsets a second where only the numbers of queues are bare."""
    try:
        plain = _BARE_NUMBER.sub(r'\1"\2":', text)
        return msgspec.json.decode(plain, type=_File, strict=False)
    except (msgspec.MsgspecError, RecursionError):  # also when a text held what looks like a key
        return msgspec.convert(fastjson.loads(text), _File, strict=False)


def _size_of(queues: Mapping[int, int]) -> int:
    return TOPIC_OFFSETS_COST + len(queues)
