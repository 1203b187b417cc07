"""Pops in order: a queue hands out nothing else until its messages are acknowledged or come back.

The offset of the group stays at the first message that is not acknowledged. When the time of the
messages is over, the next pop gets them again, and learns how often. A pop that is repeated with
the same attempt id gets the same messages at once: its reply was lost.

Answers leave when the file has what they say, so a kill changes nothing. The file of the offsets is
saved less often; at the start it is moved up to what this file says.
File: `config/consumerOrderInfo.json`, in Apache's format. `raisesOffsets` is a field of ours.
Invariant Y3: a blocked queue has at least one message, and a bit only for its messages.
Source: Apache RocketMQ `ConsumerOrderInfoManager`, `ConsumerOrderInfoLockManager`.
"""

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire import fastjson
from reliable_mq.wire.pop_handle import count_field, message_place

PATH = "config/consumerOrderInfo.json"
ILLEGAL, NOTHING = -1, -2
"""What `acknowledge` returns: the queue has no such message; the pop is an older one."""
_UNUSED_MS = 24 * 3600 * 1_000
_DONE_MS = 3600 * 1_000  # the group's offset was saved long before
_HEAP_SIZE_MIN = 64
_Offset = Annotated[int, msgspec.Meta(ge=0)]
_Place = tuple[str, str, int]  # topic, group, queue


class _QueueOrder(msgspec.Struct, kw_only=True, omit_defaults=False):
    """The last pop of a queue. `o`: the first offset, then the distances of the others to it."""

    popTime: int  # noqa: N815 - the name in the file
    i: int | None = None  # how long its messages are invisible, in milliseconds
    o: list[int] = msgspec.field(default_factory=list)
    ot: dict[int, int] | None = None  # when a message comes back, if that was changed
    oc: dict[int, int] | None = None  # how often a message came back
    l: int = 0  # noqa: E741 - the time of the pop
    cm: int = 0  # a bit for each acknowledged message
    a: str | None = None  # the attempt id

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of its messages."""
        return self.o[:1] + [self.o[0] + apart for apart in self.o[1:]]

    def free_ms(self, invisible_ms: int) -> int:
        """Return when the last message that is not acknowledged comes back; 0: all are."""
        comes_ms = self.popTime + (self.i if self.i and self.i > 0 else invisible_ms)
        times = [
            (self.ot or {}).get(offset, comes_ms)
            for index, offset in enumerate(self.offsets)
            if not self.cm >> index & 1
        ]
        return max(times, default=0)

    @property
    def next_offset(self) -> int:
        """The first offset that is not acknowledged."""
        offsets = self.offsets
        left = (each for index, each in enumerate(offsets) if not self.cm >> index & 1)
        return next(left, offsets[-1] + 1)


@decodable
class _File(msgspec.Struct, rename="camel"):
    table: dict[str, dict[int, _QueueOrder]] = msgspec.field(default_factory=dict)
    raises_offsets: bool = False


class PopOrders:
    """The last pop in order of each queue, by topic, group and queue.

    `is_dirty` is True after a change until a dump. `raises_offsets`: the loaded file is ours, so no
    group stands before what it says. Apache's broker may have reset an offset without changing it.
    """

    def __init__(self) -> None:
        self._table: dict[_Place, _QueueOrder] = {}
        self._rows: dict[_Place, str] = {}  # of the file; none for what has changed
        self.raises_offsets = False
        self._free: list[tuple[int, _Place]] = []  # a heap: when to look at a queue again
        self.is_dirty = False

    def __len__(self) -> int:
        return len(self._table)

    def invariants(self) -> None:
        """Y3; see the head of the module."""
        for place, order in self._table.items():
            if not order.o or order.cm >> len(order.o):
                raise InvariantBroken(f"Y3: {place} is blocked by {order}")

    def blocks(
        self,
        topic: str,
        group: str,
        queue_id: int,
        attempt_id: str | None,
        invisible_ms: int,
        now_ms: int,
    ) -> bool:
        """Whether a pop must wait; not if it is the last pop again."""
        order = self._table.get((topic, group, queue_id))
        if order is None or (order.a is not None and order.a == attempt_id):
            return False
        return now_ms < order.free_ms(invisible_ms)

    def handed_out(
        self,
        topic: str,
        group: str,
        queue_id: int,
        attempt_id: str | None,
        now_ms: int,
        invisible_ms: int,
        offsets: Sequence[int],
    ) -> list[str]:
        """Note the messages of a pop; return how often each came back, for the reply."""
        place = topic, group, queue_id
        former = self._table.get(place)
        order = _QueueOrder(
            popTime=now_ms,
            i=invisible_ms,
            o=[offsets[0], *(offset - offsets[0] for offset in offsets[1:])],
            l=now_ms,
            a=attempt_id,
        )
        if former is not None:
            order.oc = _counts(former, attempt_id, offsets)
        self._table[place] = order
        self._changed(place, order)
        counts = order.oc or {}
        fields = [
            count_field(topic, message_place(queue_id, offset), count)
            for offset, count in counts.items()
        ]
        least = min(counts.values(), default=0) if len(counts) == len(order.o) else 0
        return [*fields, count_field(topic, str(queue_id), least)]

    def _changed(self, place: _Place, order: _QueueOrder) -> None:
        self.is_dirty = True
        self._rows.pop(place, None)
        free_ms = order.free_ms(0)
        if free_ms:
            heapq.heappush(self._free, (free_ms, place))
            if len(self._free) > 2 * len(self._table) + _HEAP_SIZE_MIN:
                self._free = [(each.free_ms(0), at) for at, each in self._table.items()]
                heapq.heapify(self._free)

    def acknowledge(
        self, topic: str, group: str, queue_id: int, offset: int, popped_ms: int, known: int | None
    ) -> int:
        """Note an acknowledgement; return the group's next offset, `ILLEGAL` or `NOTHING`.

        Nothing is known of the pop after a promotion. Then only the message at the group's offset,
        `known`, can be acknowledged: others would take those before them along.
        """
        place = topic, group, queue_id
        order = self._table.get(place)
        if order is None:
            return offset + 1 if offset == known else NOTHING
        if order.popTime != popped_ms:
            return NOTHING
        offsets = order.offsets
        if offset not in offsets:
            return ILLEGAL
        order.cm |= 1 << offsets.index(offset)
        self._changed(place, order)
        return order.next_offset

    def show_at(
        self, topic: str, group: str, queue_id: int, offset: int, popped_ms: int, at_ms: int
    ) -> None:
        """Let a message come back at another time, if it is one of the last pop."""
        place = topic, group, queue_id
        order = self._table.get(place)
        if order is None or order.popTime != popped_ms or offset not in order.offsets:
            return
        order.ot = {**(order.ot or {}), offset: at_ms}
        self._changed(place, order)

    def take_free(self, now_ms: int) -> _Place | None:
        """Return a queue that may hand out messages again; None: there is none."""
        while self._free and self._free[0][0] <= now_ms:
            _, place = heapq.heappop(self._free)
            order = self._table.get(place)
            if order is not None and order.free_ms(0) <= now_ms:
                return place
        return None

    def standings(self) -> Iterator[tuple[_Place, int, int]]:
        """Yield each queue, its first offset that is not acknowledged, and its last one."""
        for place, order in self._table.items():
            yield place, order.next_offset, order.offsets[-1]

    def forget_queue(self, topic: str, group: str, queue_id: int) -> None:
        """Forget the last pop of a queue: its offset was reset."""
        self._rows.pop((topic, group, queue_id), None)
        if self._table.pop((topic, group, queue_id), None) is not None:
            self.is_dirty = True

    def forget(self, *, topic: str = "", group: str = "") -> None:
        """Forget the pops of a deleted topic or group."""
        for place in [place for place in self._table if topic == place[0] or group == place[1]]:
            self.forget_queue(*place)

    def expire(self, topics: Collection[str], groups: Collection[str], now_ms: int) -> None:
        """Forget what is done for an hour, unused for a day, or belongs to no topic or group."""
        for place, order in list(self._table.items()):
            free_ms = order.free_ms(0)
            kept_ms = max(order.l, free_ms) + (_UNUSED_MS if free_ms else _DONE_MS)
            if now_ms >= kept_ms or place[0] not in topics or place[1] not in groups:
                self.forget_queue(*place)

    def dump(self) -> str:
        """Return the content of the file, and clear `is_dirty`."""
        self.is_dirty = False
        table: dict[str, list[str]] = {}
        for place, order in self._table.items():
            row = self._rows.get(place)
            if row is None:  # only what has changed is encoded again
                row = self._rows[place] = _encoded(order)
            table.setdefault(f"{place[0]}@{place[1]}", []).append(f"{place[2]}:{row}")
        rows = ",".join(
            f"{fastjson.dumps(name).decode()}:{{{','.join(queues)}}}"
            for name, queues in table.items()
        )
        return f'{{"orderedConsumptionLevel":"QUEUE","raisesOffsets":true,"table":{{{rows}}}}}'

    def load(self, text: str) -> None:
        """Load the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        file = msgspec.convert(fastjson.loads(text), _File, strict=False)
        self._table, self._free, self._rows = {}, [], {}
        self.raises_offsets = file.raises_offsets
        for name, queues in file.table.items():
            topic, _, group = name.partition("@")
            for queue_id, order in queues.items():
                if order.o:
                    order.cm &= (1 << len(order.o)) - 1
                    self._table[topic, group, queue_id] = order
                    self._changed((topic, group, queue_id), order)
        self.is_dirty = False


def _encoded(order: _QueueOrder) -> str:
    fields = msgspec.to_builtins(order).items()
    return fastjson.dumps({name: value for name, value in fields if value is not None}).decode()


def _counts(former: _QueueOrder, attempt_id: str | None, offsets: Sequence[int]) -> dict[int, int]:
    """Return how often each message came back; a repeated attempt does not count."""
    counts = former.oc or {}
    if former.a is not None and former.a == attempt_id:
        return counts
    known = set(former.offsets)
    return {offset: counts.get(offset, 0) + 1 for offset in offsets if offset in known}
