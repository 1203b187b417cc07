"""One queue that this client reads, with its pulled and unfinished messages.

    pulled --> WAITING --+--> READY --take--> RUNNING --finish--> gone
               (behind   |     ^                 |
               its key)  |     +--due-- HELD <--hold
                         +-- when it is the first of its key, or has no key

K1: the commit offset is never beyond an unfinished message. K2: at most one message of an ordering
key is ready, running or held, and it is the oldest. K3: a queue that needs a lock starts nothing
without it.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from reliable_mq.client.connecting.routes import MASTER_ID
from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue, ReceivedMessage

NEVER = float("-inf")
OFFSET_UNKNOWN = -1
MESSAGE_OVERHEAD = 1024
"""Memory of a message besides its body and the text of its properties, in bytes."""


class MessageStage(Enum):
    """The states of an unfinished message."""

    WAITING = 0
    READY = 1
    RUNNING = 2
    HELD = 3


class _Entry(msgspec.Struct):
    message: ReceivedMessage
    key: str
    stage: MessageStage
    cost: int


class AssignedQueue:
    """The unfinished messages of one queue, ordered by offset.

    Args:
        queue: the queue.
        ordered: whether ordering keys count; otherwise every message is ready at once.
        needs_lock: whether messages may start only under a queue lock.
        settings: the flow control limits.
        budget: shared by all queues of the client; None: this queue has the whole budget.
    """

    def __init__(
        self,
        queue: MessageQueue,
        *,
        ordered: bool,
        needs_lock: bool,
        settings: ClientSettings,
        budget: FlowBudget | None = None,
    ) -> None:
        self.queue = queue
        self.needs_lock = needs_lock
        self.leaving = False  # revoked by a rebalance, or closing: starts no more messages
        self.paused = False  # starts no more messages for now, and keeps those it has
        self.is_given_back = False  # another member may read it: running results do not count
        self.wake_reader: Callable[[], None] | None = None  # set while a pull waits
        self.budget = budget or FlowBudget(settings.held_total_bytes_max)
        self.budget.add_queue()
        self.end_offset = OFFSET_UNKNOWN  # the end of the queue, from the broker's last answer
        self.told_at = NEVER  # time of that answer
        self.taken_at = NEVER  # when a message was last started, on the lease clock
        self.next_offset = OFFSET_UNKNOWN
        self.committed_offset = OFFSET_UNKNOWN
        self.is_committed_at_slave = False  # the master may not have the committed offset
        self.read_from = MASTER_ID  # later the broker id suggested by the broker
        self.failures = 0  # failed pulls in a row
        self._ordered = ordered
        self._settings = settings
        self._lock_expires = NEVER
        self._frozen_offset: int | None = None
        self._entries: dict[int, _Entry] = {}
        self._offsets: deque[int] = deque()  # ascending; the first one is always unfinished
        self._lanes: dict[str, deque[int]] = {}  # unfinished offsets by ordering key, oldest first
        self.ready_offsets: deque[int] = deque()  # also while it is paused
        self._held: list[tuple[float, int]] = []
        self._running = 0
        self._size = 0
        self._cost = 0

    @property
    def is_started(self) -> bool:
        """Whether the offset to read from is known."""
        return self.next_offset != OFFSET_UNKNOWN

    @property
    def running(self) -> int:
        """Number of messages in handlers."""
        return self._running

    @property
    def has_ready(self) -> bool:
        """Whether a message is ready, ignoring the lock."""
        return bool(self.ready_offsets) and not self.paused

    @property
    def ready(self) -> int:
        """Number of ready messages, ignoring the lock."""
        return 0 if self.paused else len(self.ready_offsets)

    @property
    def unfinished(self) -> int:
        """Number of pulled and unfinished messages."""
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of the bodies of the unfinished messages."""
        return self._size

    @property
    def cost(self) -> int:
        """Bytes of the client's budget that the unfinished messages use."""
        return self._cost

    @property
    def lag(self) -> int:
        """Number of offsets between the commit offset and the last known end of the queue."""
        return max(self.end_offset - self.commit_offset, 0)

    @property
    def has_room(self) -> bool:
        """Whether the queue's own flow control limits allow another pull."""
        span = self.next_offset - self.commit_offset
        return (
            len(self._entries) < self._settings.held_count_max
            and self._size < self._settings.held_bytes_max
            and span < self._settings.held_offset_span_max
        )

    def may_be_pulled(self) -> bool:
        """Whether to fetch more messages for a handler now."""
        return not self.paused and self.has_room

    @property
    def commit_offset(self) -> int:
        """The offset up to which all messages are finished (K1), or the offset set by a reset."""
        if self._frozen_offset is not None:
            return self._frozen_offset
        while self._offsets and self._offsets[0] not in self._entries:
            self._offsets.popleft()
        return self._offsets[0] if self._offsets else self.next_offset

    def holds_lock(self, now: float) -> bool:
        """Whether the lock allows to start messages (K3); `now` on the lease clock."""
        return not self.needs_lock or now < self._lock_expires

    @property
    def lock_expires(self) -> float:
        """Until when the queue lock counts, on the lease clock; NEVER without a lock."""
        return self._lock_expires

    def lock_until(self, expires: float) -> None:
        """Use the queue lock until `expires`."""
        self._lock_expires = expires

    def lose_lock(self) -> None:
        """Start no more messages until the queue is locked again."""
        self._lock_expires = NEVER

    def note_end(self, offset: int, now: float) -> None:
        """Note the end of the queue, from a broker's answer."""
        self.end_offset = offset
        self.told_at = now

    def start_at(self, offset: int) -> None:
        """Read from `offset` on. Ignored if the queue has started already."""
        if not self.is_started:
            self.next_offset = offset

    def add_pulled(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Add pulled messages, in offset order, and continue to read at `next_offset`."""
        size = cost = 0
        for message in messages:
            offset = message.queue_offset
            if offset < self.next_offset:  # pulled before `forget_below`
                continue
            key = message.ordering_key if self._ordered else ""
            entry = _Entry(message, key, MessageStage.READY, _cost_of(message))
            self._entries[offset] = entry
            self._offsets.append(offset)
            size += len(message.body)
            cost += entry.cost
            if key:
                lane = self._lanes.setdefault(key, deque())
                lane.append(offset)
                if len(lane) > 1:
                    entry.stage = MessageStage.WAITING
                    continue
            self.ready_offsets.append(offset)
        self._size += size
        self._cost += cost
        self.budget.held += cost
        self.next_offset = max(next_offset, self.next_offset)

    def take_ready(self, count: int, now: float, topic: str | None = None) -> list[ReceivedMessage]:
        """Return up to `count` ready messages for a handler call, each with another key.

        All have one topic: `topic`, or that of the first ready message. `now` is on the lease
            clock.
        """
        taken: list[ReceivedMessage] = []
        if self.leaving or self.paused or not self.holds_lock(now):
            return taken
        while self.ready_offsets and len(taken) < count:
            entry = self._entries[self.ready_offsets[0]]
            topic = topic or entry.message.topic
            if entry.message.topic != topic:
                break
            self.ready_offsets.popleft()
            entry.stage = MessageStage.RUNNING
            taken.append(entry.message)
        if taken:
            self._running += len(taken)
            self.taken_at = now
        return taken

    def is_running(self, offset: int) -> bool:
        """Whether the message at `offset` is in a handler."""
        entry = self._entries.get(offset)
        return entry is not None and entry.stage is MessageStage.RUNNING

    def may_run_twice(self, offset: int) -> bool:
        """Whether a running message may be delivered again before its handler has ended.

        Not if its ordering key counts: two handlers would work on the key at the same time (K2).
        """
        return not self._running_entry(offset).key

    def finish(self, offset: int) -> None:
        """Remove a running message: it is handled, sent back or a dead letter."""
        entry = self._running_entry(offset)
        del self._entries[offset]
        self._running -= 1
        self._shrink(entry)
        if entry.key:
            lane = self._lanes[entry.key]
            lane.popleft()
            if lane:
                self._make_ready(lane[0])
            else:
                del self._lanes[entry.key]

    def postpone(self, offset: int, until: float, *, counts: bool) -> None:
        """Make a running message ready again at `until`; as the next attempt when it `counts`."""
        entry = self._running_entry(offset)
        entry.stage = MessageStage.HELD
        self._running -= 1
        if counts:
            entry.message = msgspec.structs.replace(
                entry.message, reconsume_times=entry.message.reconsume_times + 1
            )
        heapq.heappush(self._held, (until, offset))

    def wake(self, now: float) -> None:
        """Make held messages ready whose time has come."""
        while self._held and self._held[0][0] <= now:
            _, offset = heapq.heappop(self._held)
            self._make_ready(offset)

    def next_due(self) -> float | None:
        """Return when the next held message is ready, or None."""
        return self._held[0][0] if self._held else None

    def forget_below(self, offset: int) -> None:
        """Drop messages that another owner has finished meanwhile; running messages stay."""
        gone = [
            at
            for at, entry in self._entries.items()
            if at < offset and entry.stage is not MessageStage.RUNNING
        ]
        for at in gone:
            entry = self._entries.pop(at)
            self._shrink(entry)
            if entry.key:
                self._lanes[entry.key].remove(at)
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane}
        self.ready_offsets = deque(at for at in self.ready_offsets if at in self._entries)
        self._held = [(due, at) for due, at in self._held if at in self._entries]
        heapq.heapify(self._held)
        for lane in self._lanes.values():
            if self._entries[lane[0]].stage is MessageStage.WAITING:
                self._make_ready(lane[0])
        self.next_offset = max(self.next_offset, offset)

    def jump_to(self, offset: int) -> bool:
        """Continue to read at `offset`, set by the broker; return whether that was possible.

        It is impossible with unfinished messages; see `freeze`.
        """
        if self._entries:
            self.freeze(offset)
            return False
        self.next_offset = offset
        self.committed_offset = OFFSET_UNKNOWN  # a reset has changed it
        return True

    def skip_to(self, offset: int) -> None:
        """Skip to `offset`: earlier messages are deleted. Pulled messages are still handled."""
        self.next_offset = max(self.next_offset, offset)

    def freeze(self, offset: int) -> None:
        """Commit `offset`, whatever is unfinished, and start no more messages.

        The caller must give the queue back. Then it is assigned again and read from `offset`.
        """
        self._frozen_offset = offset
        self.leaving = True

    def release(self) -> None:
        """Leave unfinished messages to the queue's next reader, and their room to other queues."""
        self.is_given_back = True
        self.budget.remove_queue(self._cost)

    def invariants(self) -> None:
        """Check K1, K2 and the sums.

        Raises:
            InvariantBroken: when one does not hold; a bug.
        """
        lowest = min(self._entries, default=self.next_offset)
        if self._frozen_offset is None and self.commit_offset > lowest:
            raise InvariantBroken(f"K1: {self.commit_offset} is beyond the unfinished {lowest}")
        active: set[str] = set()
        for at, entry in self._entries.items():
            if entry.key and entry.stage is not MessageStage.WAITING:
                if entry.key in active or self._lanes[entry.key][0] != at:
                    raise InvariantBroken(f"K2: {at} overtakes its ordering key {entry.key!r}")
                active.add(entry.key)
        running = sum(entry.stage is MessageStage.RUNNING for entry in self._entries.values())
        size = sum(len(entry.message.body) for entry in self._entries.values())
        cost = sum(entry.cost for entry in self._entries.values())
        if (running, size, cost) != (self._running, self._size, self._cost):
            raise InvariantBroken("the sums of running messages and held bytes are wrong")

    def _running_entry(self, offset: int) -> _Entry:
        entry = self._entries.get(offset)
        if entry is None or entry.stage is not MessageStage.RUNNING:
            raise InvariantBroken(f"message {offset} of {self.queue} is not running")
        return entry

    def _make_ready(self, offset: int) -> None:
        self._entries[offset].stage = MessageStage.READY
        self.ready_offsets.append(offset)

    def _shrink(self, entry: _Entry) -> None:
        self._size -= len(entry.message.body)
        self._cost -= entry.cost
        if not self.is_given_back:  # otherwise all of it was released at once
            self.budget.remove_bytes(entry.cost)
        if self.wake_reader is not None:
            self.wake_reader()


def _cost_of(message: ReceivedMessage) -> int:
    return MESSAGE_OVERHEAD + len(message.body) + sum(map(len, message.properties.values()))
