"""One queue that this client reads: what was pulled from it and is not finished.

    pulled --> WAITING --+--> READY --take--> RUNNING --finish--> gone
               (behind   |      ^                |
               its key)  |      +--due-- HELD <--hold
                         +-- when it is the first of its key, or has none

K1: the commit offset is never beyond an unfinished message. K2: of one ordering key at most one
message is ready, running or held, and it is the oldest. K3: without a lock that it needs, a queue
starts nothing.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue, ReceivedMessage

NEVER = float("-inf")
OFFSET_UNKNOWN = -1
MESSAGE_OVERHEAD = 1024
"""Bytes that Python keeps of a message beside its body and the text of its properties."""


class MessageStage(Enum):
    """Where an unfinished message is."""

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
    """The unfinished messages of one queue, in the order of their offsets.

    Args:
        queue: which queue.
        ordered: whether ordering keys count; without, every message is ready at once.
        needs_lock: whether messages may start only under a queue lock.
        settings: the flow limits.
        budget: what it shares with the other queues of its client; None: it has all for itself.
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
        self.leaving = False  # taken away by a rebalance, or closing: starts nothing more
        self.paused = False  # starts nothing more for now, and keeps what it has
        self.is_given_back = False  # somebody else may read it: what still runs here is nobody's
        self.wake_reader: Callable[[], None] | None = None  # a pull waits, for room say
        self.budget = budget or FlowBudget(settings.held_total_bytes_max)
        self.budget.join()
        self.end_offset = OFFSET_UNKNOWN  # the offset of the next message, as a broker told last
        self.told_at = NEVER  # when it told that
        self.taken_at = NEVER  # when a message was started last, by the clock of leases
        self.next_offset = OFFSET_UNKNOWN
        self.committed_offset = OFFSET_UNKNOWN
        self.read_from = 0  # the broker id that the broker suggests
        self.failures = 0  # pulls that failed in a row
        self._ordered = ordered
        self._settings = settings
        self._lock_expires = NEVER
        self._frozen_offset: int | None = None
        self._entries: dict[int, _Entry] = {}
        self._offsets: deque[int] = deque()  # ascending; finished ones leave when they are first
        self._lanes: dict[str, deque[int]] = {}  # unfinished offsets of each key, oldest first
        self._ready: deque[int] = deque()
        self._held: list[tuple[float, int]] = []
        self._running = 0
        self._size = 0
        self._cost = 0

    @property
    def is_started(self) -> bool:
        """Whether it is known where to read."""
        return self.next_offset != OFFSET_UNKNOWN

    @property
    def running(self) -> int:
        """How many messages are in the hands of the handler."""
        return self._running

    @property
    def has_ready(self) -> bool:
        """Whether a message could be taken, the lock aside."""
        return bool(self._ready) and not self.paused

    @property
    def ready(self) -> int:
        """How many messages could be taken, the lock aside."""
        return 0 if self.paused else len(self._ready)

    @property
    def unfinished(self) -> int:
        """How many messages are pulled and not finished."""
        return len(self._entries)

    @property
    def size(self) -> int:
        """How many bytes the bodies of the unfinished messages have."""
        return self._size

    @property
    def cost(self) -> int:
        """How many bytes of the client's budget the unfinished messages take."""
        return self._cost

    @property
    def lag(self) -> int:
        """How many offsets the group is behind the end of the queue that a broker told last."""
        return max(self.end_offset - self.commit_offset, 0) if self.is_started else 0

    @property
    def has_room(self) -> bool:
        """Whether the queue's own flow limits allow another pull."""
        span = self.next_offset - self.commit_offset
        return (
            len(self._entries) < self._settings.held_count_max
            and self._size < self._settings.held_bytes_max
            and span < self._settings.held_offset_span_max
        )

    @property
    def commit_offset(self) -> int:
        """The offset up to which everything is finished (K1), or that a broker demanded."""
        if self._frozen_offset is not None:
            return self._frozen_offset
        while self._offsets and self._offsets[0] not in self._entries:
            self._offsets.popleft()
        return self._offsets[0] if self._offsets else self.next_offset

    def holds_lock(self, now: float) -> bool:
        """Whether messages may start, as far as locks go (K3); `now` by the clock of leases."""
        return not self.needs_lock or now < self._lock_expires

    @property
    def lock_expires(self) -> float:
        """Until when the queue lock is trusted, by the clock of leases; NEVER without one."""
        return self._lock_expires

    def lock_until(self, expires: float) -> None:
        """Trust the queue lock until `expires`."""
        self._lock_expires = expires

    def lose_lock(self) -> None:
        """Start nothing more until the queue is locked again."""
        self._lock_expires = NEVER

    def note_end(self, offset: int, now: float) -> None:
        """Note where the queue ends, as a broker says."""
        self.end_offset = offset
        self.told_at = now

    def start_at(self, offset: int) -> None:
        """Read from `offset` on; a queue that has started is left as it is."""
        if not self.is_started:
            self.next_offset = offset

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Take what a pull brought, in the order of offsets, and read on at `next_offset`."""
        size = cost = 0
        for message in messages:
            offset = message.queue_offset
            if offset < self.next_offset:  # asked for before `forget_below`
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
            self._ready.append(offset)
        self._size += size
        self._cost += cost
        self.budget.take(cost)
        self.next_offset = max(next_offset, self.next_offset)

    def take(self, count: int, now: float, topic: str | None = None) -> list[ReceivedMessage]:
        """Return up to `count` messages to be handled now, each of another key.

        All are of one topic: `topic`, or else that of the first one that is ready. `now` is by the
        clock of leases.
        """
        taken: list[ReceivedMessage] = []
        if self.leaving or self.paused or not self.holds_lock(now):
            return taken
        while self._ready and len(taken) < count:
            entry = self._entries[self._ready[0]]
            topic = topic or entry.message.topic
            if entry.message.topic != topic:
                break
            self._ready.popleft()
            entry.stage = MessageStage.RUNNING
            taken.append(entry.message)
        self._running += len(taken)
        self.taken_at = now
        return taken

    def is_running(self, offset: int) -> bool:
        """Whether the message at `offset` is in the hands of the handler."""
        entry = self._entries.get(offset)
        return entry is not None and entry.stage is MessageStage.RUNNING

    def may_run_twice(self, offset: int) -> bool:
        """Whether a running message may be handed out again although its handler has not ended.

        One with an ordering key that counts may not: the handler would run beside itself (K2).
        """
        return not self._running_entry(offset).key

    def finish(self, offset: int) -> None:
        """Let a running message go: it is handled, sent back or a dead letter."""
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

    def hold(self, offset: int, until: float, *, counts: bool) -> None:
        """Hand a running message out again at `until`, as the next attempt when it `counts`."""
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
        """Drop what another owner has finished meanwhile; running messages stay."""
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
        self._ready = deque(at for at in self._ready if at in self._entries)
        self._held = [(due, at) for due, at in self._held if at in self._entries]
        heapq.heapify(self._held)
        for lane in self._lanes.values():
            if self._entries[lane[0]].stage is MessageStage.WAITING:
                self._make_ready(lane[0])
        self.next_offset = max(self.next_offset, offset)

    def jump_to(self, offset: int) -> bool:
        """Read on at `offset`, which the broker demands, and return whether that was possible.

        With unfinished messages it is not; see `freeze`.
        """
        if self._entries:
            self.freeze(offset)
            return False
        self.next_offset = offset
        self.committed_offset = OFFSET_UNKNOWN  # a reset has changed it
        return True

    def pass_over(self, offset: int) -> None:
        """Read on at `offset`: what lies before it is deleted. What was pulled is handled yet."""
        self.next_offset = max(self.next_offset, offset)

    def freeze(self, offset: int) -> None:
        """Commit `offset`, whatever is unfinished, and start nothing more.

        The queue must be given back, so that it is assigned anew and read from there.
        """
        self._frozen_offset = offset
        self.leaving = True

    def release(self) -> None:
        """Leave what is unfinished to the queue's next reader, and its room to other queues."""
        self.is_given_back = True
        self.budget.leave(self._cost)

    def invariants(self) -> None:
        """Hold K1, K2 and the sums.

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
        self._ready.append(offset)

    def _shrink(self, entry: _Entry) -> None:
        self._size -= len(entry.message.body)
        self._cost -= entry.cost
        if not self.is_given_back:  # else all of it was given at once
            self.budget.give(entry.cost)
        if self.wake_reader is not None:
            self.wake_reader()


def _cost_of(message: ReceivedMessage) -> int:
    return MESSAGE_OVERHEAD + len(message.body) + sum(map(len, message.properties.values()))
