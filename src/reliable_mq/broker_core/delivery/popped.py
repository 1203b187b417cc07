"""Progress of groups that consume by the message, and acknowledgements of the current turn.

What is popped moves the group's offset, but only when its checkpoint is durable: otherwise a crash
could save the offset without the checkpoint, and the messages would be lost. Until then `next_of`
knows it. Acknowledgements of one checkpoint that come in one turn share a record.

A crash may also save the checkpoint without the offset. So the offsets of all checkpoints since the
last save are read again at the next start; `config/popProgress.json` says from where. It also has
the resets since then: what was popped before them counts no more.
Invariant Y2: what is popped and not committed yet is behind the durable end of the log.
Source: Apache RocketMQ `PopBufferMergeService`, `PopInflightMessageCounter`.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.delivery.pop_extensions import PopExtensions
from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire import fastjson
from reliable_mq.wire.pop_records import CheckpointKey

PATH = "config/popProgress.json"
_ACKED_MAX = 10_000
RETRY_EVERY = 5  # Apache's popFromRetryProbability is 20 percent
_Queues = dict[tuple[str, str], dict[int, int]]  # by (topic, group) and queue
AckedTime = tuple[CheckpointKey, int]
"""A checkpoint, and when its messages come back. Two of different times may have one key."""


class PoppedPlace(NamedTuple):
    """How far a group has popped a queue: due when the log is durable up to `end`."""

    end: int
    checkpoint: int  # queue offset of its record in the topic of the timers
    group: str
    topic: str
    queue_id: int
    next_offset: int


class PopTurn(msgspec.Struct):
    """Whose turn it is in the pops of a group, by topic. The two numbers must not share a beat.

    Otherwise, with a backlog in the retry topic and five queues, one queue would get nothing.
    """

    pops: int = 0  # of these, each fifth begins with what came back
    queues: int = 0  # pops that came to the queues of the topic

    def is_of_retries(self) -> bool:
        """Whether the next pop begins with what came back; counts it."""
        self.pops += 1
        return self.pops % RETRY_EVERY == 0

    def first_queue(self, queues: int) -> int:
        """Return the queue with which a pop begins; the next one begins with another."""
        self.queues += 1
        return self.queues % queues


class TurnAcks(NamedTuple):
    """Acknowledgements of one checkpoint that came in one turn."""

    revive_queue: int
    offsets: dict[int, None]  # each once, also if it is acknowledged again and again


class ResetNote(NamedTuple):
    """A reset of a group's offset; `checkpoint` is the first one that can be of a later pop."""

    checkpoint: int
    offset: int


@decodable
class _File(msgspec.Struct, rename="camel"):
    timer_queue_offset: int | None = None
    resets: list[tuple[str, str, int, int, int]] = msgspec.field(default_factory=list)


class Popped:
    """What was popped, and is not committed or not acknowledged yet.

    `in_flight` counts messages by topic, group and queue. Those that were in flight at the start,
    at `counted_from_ms`, are added later, see `popped_before`: `uncounted` records are left. Until
    then a number may be negative. `number` counts pops.
    """

    def __init__(self) -> None:
        self.number = 0
        self.now_ms = 0  # of the last pop or tick
        self.latest_ms = 0  # of all pops; a clock that is set back does not change it
        self.uncommitted: deque[PoppedPlace] = deque()
        self._next: _Queues = {}
        self.in_flight: _Queues = {}
        self.acks: dict[AckedTime, TurnAcks] = {}  # of this turn
        self.replies: list[tuple[int, bytes]] = []  # they leave when these are stored
        self.acks_ms = 0
        self.counted_from_ms = 0
        self.uncounted = 0
        self.gone = 0  # since the start: messages in flight that retention has deleted
        self._acked: dict[CheckpointKey, set[int]] = {}  # the last checkpoints that had some
        # Of the revive topic, by queue: the last record that an earlier broker has put there.
        self.revive_queues: dict[int, int] = {}
        self.noted: int | None = None  # checkpoints before it have saved offsets
        self.extensions = PopExtensions()
        self._turns: dict[tuple[str, str], PopTurn] = {}
        self.pairs: set[tuple[str, str]] = set()  # topics and groups
        self.resets: dict[tuple[str, str, int], ResetNote] = {}  # since the note
        self.is_changed = False  # whether something was popped since the last note

    def invariants(self, durable: int) -> None:
        """Y2; see the head of the module."""
        if self.uncommitted and self.uncommitted[0].end <= durable:
            raise InvariantBroken(f"Y2: {self.uncommitted[0]} is durable, and not committed")
        waiting = {(place.topic, place.group) for place in self.uncommitted}
        if not self._next.keys() <= waiting:
            raise InvariantBroken("Y2: the next offsets differ from what waits to be committed")

    def turn_of(self, topic: str, group: str) -> PopTurn:
        """Return whose turn it is when a group pops a topic."""
        turn = self._turns.get((topic, group))
        if turn is None:
            turn = self._turns[topic, group] = PopTurn()
        return turn

    @property
    def is_due(self) -> bool:
        """Whether acknowledgements of this turn must be stored."""
        return bool(self.acks or self.replies)

    def next_of(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the next offset that is not committed yet; None: there is none."""
        queues = self._next.get((topic, group)) if self._next else None
        return None if queues is None else queues.get(queue_id)

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many messages of a queue are in flight in a group."""
        counts = self.in_flight.get((topic, group)) if self.in_flight else None
        return 0 if counts is None else max(0, counts.get(queue_id, 0))

    @property
    def total(self) -> int:
        """How many messages are in flight in all groups."""
        return sum(max(0, each) for counts in self.in_flight.values() for each in counts.values())

    def was_in_flight(self, revive_ms: int) -> bool:
        """Whether messages that come back at this time were in flight at the start, or are now.

        Not what is popped under a clock that was set back behind the start.
        """
        return revive_ms > self.counted_from_ms

    def all_counted(self) -> None:
        """Note that everything is counted that was in flight at the start."""
        self.uncounted = 0
        for key, counts in list(self.in_flight.items()):
            self.in_flight[key] = {queue: count for queue, count in counts.items() if count > 0}
            if not self.in_flight[key]:
                del self.in_flight[key]

    def popped(self, place: PoppedPlace, count: int, revive_ms: int) -> None:
        """Note that messages were popped, whose checkpoint is durable with the log at `end`."""
        self.commit_later(place)
        self.pairs.add((place.topic, place.group))
        if self.was_in_flight(revive_ms):
            self.add(place.topic, place.group, place.queue_id, count)
        self.is_changed = True

    def add(self, topic: str, group: str, queue_id: int, count: int) -> None:
        """Count messages that are in flight."""
        counts = self.in_flight.setdefault((topic, group), {})
        counts[queue_id] = counts.get(queue_id, 0) + count

    def commit_later(self, place: PoppedPlace) -> None:
        """Move the group's offset when the log is durable up to `end`."""
        self.uncommitted.append(place)
        queues = self._next.setdefault((place.topic, place.group), {})
        queues[place.queue_id] = place.next_offset

    def stored(self, end: int, offsets: OffsetTable) -> None:
        """Commit what is popped by checkpoints before log offset `end`, which is durable."""
        while self.uncommitted and self.uncommitted[0].end <= end:
            place = self.uncommitted.popleft()
            key = place.topic, place.group
            queues = self._next.get(key, {})
            if place.queue_id not in queues:  # a reset has come between
                continue
            if offsets.pending_reset(place.group, place.topic, place.queue_id) is None:
                offsets.commit(place.group, place.topic, place.queue_id, place.next_offset)
            if queues[place.queue_id] == place.next_offset:
                del queues[place.queue_id]
                if not queues:
                    del self._next[key]

    def reset(self, topic: str, group: str, queue_id: int) -> None:
        """Forget what a reset of the offset has made void."""
        queues = self._next.get((topic, group), {})
        queues.pop(queue_id, None)
        if not queues:
            self._next.pop((topic, group), None)

    def note_reset(
        self, topic: str, group: str, queue_id: int, offset: int, queue_end: int
    ) -> bool:
        """Note a reset of an offset; return whether the file changes."""
        if (topic, group) not in self.pairs:
            return False
        after = max((place.checkpoint + 1 for place in self.uncommitted), default=0)
        self.resets[topic, group, queue_id] = ResetNote(max(queue_end, after), offset)
        self.is_changed = True
        return True

    def saved(self, up_to: int, resets: dict[tuple[str, str, int], ResetNote]) -> None:
        """Note that the offsets are saved for the checkpoints before `up_to`, with these resets."""
        self.noted = up_to
        for key, note in resets.items():
            if note.checkpoint <= up_to and self.resets.get(key) == note:
                del self.resets[key]
        self.is_changed |= bool(self.resets)

    def ended(self, of: CheckpointKey, revive_ms: int, count: int) -> None:
        """Note that messages are in flight no more: acknowledged, or back in a retry topic."""
        pair, queue_id = (of.topic, of.group), of.queue_id
        counts = self.in_flight.get(pair)
        is_known = counts is not None and queue_id in counts
        if not self.was_in_flight(revive_ms) or not (is_known or self.uncounted):
            return
        if counts is None:
            counts = self.in_flight[pair] = {}
        left = counts[queue_id] = counts.get(queue_id, 0) - count
        if not left or (left < 0 and not self.uncounted):
            del counts[queue_id]
            if not counts:
                del self.in_flight[pair]

    def acknowledge(
        self, key: CheckpointKey, revive_ms: int, revive_queue: int, offsets: Sequence[int]
    ) -> None:
        """Note acknowledgements for the record of this turn."""
        acked = self._acked.get(key)
        if acked is None:
            acked = self._acked[key] = set()
            if len(self._acked) > _ACKED_MAX:
                del self._acked[next(iter(self._acked))]
        acks = self.acks.get((key, revive_ms))
        if acks is None:
            acks = self.acks[key, revive_ms] = TurnAcks(revive_queue, {})
        known = len(acked)
        for offset in offsets:
            acked.add(offset)
            acks.offsets[offset] = None
        if len(acked) > known:
            self.ended(key, revive_ms, len(acked) - known)

    def forget(self, *, topic: str = "", group: str = "") -> None:
        """Forget what a deleted topic or group has popped."""
        for table in (self.in_flight, self._next):
            for key in [key for key in table if topic == key[0] or group == key[1]]:
                del table[key]
        for place in [place for place in self.resets if topic == place[0] or group == place[1]]:
            del self.resets[place]
        for turn in [key for key in self._turns if topic == key[0] or group == key[1]]:
            del self._turns[turn]
        self.pairs = {key for key in self.pairs if topic != key[0] and group != key[1]}

    def begin_note(self, queue_end: int) -> int:
        """Return the checkpoint from which a start must read, if the offsets are saved as of now.

        Args:
            queue_end: of the topic of the timers.
        """
        return min(queue_end, *(place.checkpoint for place in self.uncommitted), queue_end)

    def lower_note(self, queue_end: int) -> bool:
        """Let the note end where the topic of the timers does; return whether that changes it.

        A loss of power may have taken records that the note knows. Later ones get their numbers,
        and must not count as noted.
        """
        before = self.noted, dict(self.resets)
        if self.noted is not None:
            self.noted = min(self.noted, queue_end)
        for place, note in before[1].items():
            self.resets[place] = note._replace(checkpoint=min(note.checkpoint, queue_end))
        return before != (self.noted, self.resets)

    def dump(self) -> str:
        """Return the content of the file."""
        resets = [[*place, *note] for place, note in self.resets.items()]
        fields = {"timerQueueOffset": self.noted, "resets": resets or None}
        some = {name: value for name, value in fields.items() if value is not None}
        return fastjson.dumps(some, indent=True).decode()

    def load(self, text: str) -> None:
        """Load the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        file = msgspec.convert(fastjson.loads(text), _File)
        self.noted = None if file.timer_queue_offset is None else max(0, file.timer_queue_offset)
        self.resets = {
            (topic, group, queue_id): ResetNote(checkpoint, offset)
            for topic, group, queue_id, checkpoint, offset in file.resets
        }
