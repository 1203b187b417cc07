"""Half messages: stored, but invisible until their transaction is committed or rolled back.

A half is in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC, with its real place in its properties. A record of
RMQ_SYS_TRANS_OP_HALF_TOPIC (tag d, body `offset,offset,`) names settled halves. It is written
directly after the message of a commit. With each check-back an unsettled half is stored again at
the end of its queue; the copy then represents the transaction. The consumer offsets of
CID_RMQ_SYS_TRANS mark where the relevant part of both queues begins, so any broker that opens the
store finds the pending halves. They advance only over durable records.

Receives stored and settled halves. Returns the pending halves. Does not know the producers.
Invariant H1: pending halves are in the order of their queue, and each is before its end. A known
copy is pending.
Source: Apache RocketMQ `TransactionalMessageServiceImpl`, `TransactionalMessageBridge`.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from reliable_mq.broker_core.names import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OFFSET_SEPARATOR,
    OP_TOPIC,
    SETTLED_TAG,
    TRANSACTION_GROUP,
)
from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.broker_core.store.appender import AppendResult
from reliable_mq.broker_core.store.log_walk import sound_records
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.properties import (
    TAGS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_FIRST_OFFSET,
    UNIQ_KEY,
)
from reliable_mq.wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Record, decode_record
from reliable_mq.wire.record_scan import head_at

# Queue of the op topic for transactions that were given up, and then settled or resumed. Its
# records name those of TRANS_CHECK_MAX_TIME_TOPIC, which expire after every half of a transaction.
# Apache's broker reads only queue 0, and does not need these records.
LATE_QUEUE = 2
# A transaction may end long after the broker gave it up. So many of these are remembered.
_GIVEN_UP_MAX = 10_000
_READ_AT_ONCE = 1_000
_DIGITS_MAX = 18  # digits of an offset

_Identity = tuple[str, int, bytes, int]
_Latest = dict[_Identity, tuple[int, int]]  # queue offset and log offset of the latest copy


class PendingHalves:
    """Pending halves by queue offset, and the halves that were given up."""

    def __init__(self) -> None:
        self._pending: dict[int, int] = {}  # log offset by queue offset
        self._copies: dict[_Identity, int] = {}  # queue offsets of pending copies
        self._given_up: dict[_Identity, int] = {}  # queue offsets in TRANS_CHECK_MAX_TIME_TOPIC
        self._unrecorded: list[int] = []  # settled halves without an op record
        self._late: list[int] = []  # the same, for what was given up before
        self._ops: deque[tuple[int, int]] = deque()  # (queue offset of an op record, highest half)
        self._end = 0
        self._op_offset = 0
        self.is_op_due = False  # whether a settled half has no op record yet
        self.saving: tuple[int, int, int] | None = None  # log end, half offset, op offset

    def invariants(self) -> None:
        """H1; see the head of the module."""
        if any(first >= second for first, second in pairwise(self._pending)):
            raise InvariantBroken("H1: the pending halves are out of order")
        if any(offset >= self._end for offset in self._pending):
            raise InvariantBroken(f"H1: a pending half is not before {self._end}")
        if any(offset not in self._pending for offset in self._copies.values()):
            raise InvariantBroken("H1: a copy of a half is not pending")

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def end(self) -> int:
        """The queue offset of the next half."""
        return self._end

    def oldest(self, count: int) -> list[tuple[int, int]]:
        """Return (queue offset, log offset) of the first `count` pending halves."""
        return list(islice(self._pending.items(), count))

    def add(self, place: AppendResult) -> None:
        """Note a new half."""
        self._pending[place.queue_offset] = place.commit_log_offset
        self._end = place.queue_offset + 1

    def put_back(self, offset: int, half: Record, place: AppendResult) -> None:
        """Replace a pending half by its copy at `place`."""
        del self._pending[offset]
        self.add(place)
        self._copies[_identity(half)] = place.queue_offset

    def resume(self, half: Record, place: AppendResult) -> None:
        """Note that the copy at `place` of a half that can be resumed is pending from now on."""
        pending = self._pending_offset_of(half)
        if pending is not None:
            del self._pending[pending]
        given_up = self._given_up.pop(_identity(half), None)
        if given_up is not None:
            self._late.append(given_up)
            self.is_op_due = True
        self.add(place)
        self._copies[_identity(half)] = place.queue_offset

    def can_be_resumed(self, half: Record) -> bool:
        """Whether a half, or a given-up one, belongs to a transaction that is not settled."""
        return self._pending_offset_of(half) is not None or _identity(half) in self._given_up

    def give_up(self, offset: int, half: Record, place: AppendResult) -> None:
        """Note that a pending half was moved to TRANS_CHECK_MAX_TIME_TOPIC, to `place`."""
        self._forget(offset, half)
        self._note_given_up(half, place.queue_offset)

    def drop(self, offset: int) -> None:
        """Remove a pending half whose record is lost."""
        del self._pending[offset]
        self._copies = {key: copy for key, copy in self._copies.items() if copy != offset}

    def _note_given_up(self, half: Record, offset: int) -> None:
        self._given_up[_identity(half)] = offset
        if len(self._given_up) > _GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def is_settled(self, half: Record) -> bool:
        """Whether the transaction has ended. A half that was given up may still be settled.

        Args:
            half: the half that the producer knows: the first one, or the copy of a check-back.
        """
        return self._pending_offset_of(half) is None and _identity(half) not in self._given_up

    def settle(self, half: Record) -> None:
        """Note the end of a transaction that is not settled yet."""
        offset = self._pending_offset_of(half)
        if offset is not None:
            self._forget(offset, half)
            self._unrecorded.append(offset)
        else:
            self._late.append(self._given_up.pop(_identity(half)))
        self.is_op_due = True

    def _pending_offset_of(self, half: Record) -> int | None:
        if self._pending.get(half.queue_offset) == half.commit_log_offset:
            return half.queue_offset
        return self._copies.get(_identity(half)) if self._copies else None

    def _forget(self, offset: int, half: Record) -> None:
        del self._pending[offset]
        if self._copies:
            identity = _identity(half)
            if self._copies.get(identity) == offset:
                del self._copies[identity]

    def next_unrecorded(self, size_max: int) -> tuple[int, bytes] | None:
        """Return (queue, body) of the next op record; the caller must call `recorded` next.

        Args:
            size_max: limit of a body, in bytes; a single longer offset is allowed.
        """
        queue_id, offsets = (0, self._unrecorded) if self._unrecorded else (LATE_QUEUE, self._late)
        body = ""
        for offset in offsets:
            item = f"{offset}{OFFSET_SEPARATOR}"
            if body and len(body) + len(item) > size_max:
                break
            body += item
        return (queue_id, body.encode()) if body else None

    def recorded(self, queue_id: int, op_offset: int, body: bytes) -> None:
        """Note that an op record is stored."""
        offsets = _named(body)
        if queue_id == LATE_QUEUE:
            del self._late[: len(offsets)]
        else:
            del self._unrecorded[: len(offsets)]
            self._ops.append((op_offset, max(offsets)))
        self.is_op_due = bool(self._unrecorded or self._late)

    def save_when_stored(self, log_end: int) -> None:
        """Move the consumer offsets to the first pending half, once `log_end` is durable."""
        half_offset = next(iter(self._pending), self._end)
        while self._ops and self._ops[0][1] < half_offset:
            self._op_offset = self._ops.popleft()[0] + 1
        self.saving = (log_end, half_offset, self._op_offset)

    def stored(self, end: int, offsets: OffsetTable) -> None:
        """Note that everything before log offset `end` is durable."""
        if self.saving and self.saving[0] <= end:
            _, half_offset, op_offset = self.saving
            self.saving = None
            for topic, offset in ((HALF_TOPIC, half_offset), (OP_TOPIC, op_offset)):
                if offsets.get(TRANSACTION_GROUP, topic, 0) != offset:
                    offsets.commit(TRANSACTION_GROUP, topic, 0, offset)

    def recover(self, store: MessageStore, offsets: OffsetTable, vouched_end: int = 0) -> None:
        """Find the pending halves in the queues, which any broker may have written.

        A crash may occur after a committed message is stored, but before its op record. The message
        then shows that its half is settled, so that it is not committed again.

        Args:
            store: the open store.
            offsets: the saved offsets.
            vouched_end: log offset up to which all batches are known to be complete. Default 0.
        """
        settled = self._recover_ops(store, offsets.get(TRANSACTION_GROUP, OP_TOPIC, 0) or 0)
        begin = offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0
        queue = store.queue(HALF_TOPIC, 0)
        self._end = queue.end if queue else 0
        latest: _Latest = {}
        for half in _records(store, HALF_TOPIC, begin):
            self._recover_half(half, settled, latest)
        given_up = store.queue(GIVEN_UP_TOPIC, 0)
        if given_up:
            for half in _records(store, GIVEN_UP_TOPIC, given_up.end - _GIVEN_UP_MAX):
                offset, log_offset = latest.get(_identity(half), (-1, -1))
                if log_offset > half.commit_log_offset:  # it was resumed
                    continue
                self._note_given_up(half, half.queue_offset)
                if offset in self._pending:
                    self._forget(offset, half)
            over = set(_settled_late(store))
            self._given_up = {key: at for key, at in self._given_up.items() if at not in over}
        begins = list(self._pending.values())
        if self._given_up:
            begins.append(max(vouched_end, store.log.start))
        for half in _committed(store, min(begins, default=None)):
            if not self.is_settled(half):
                self.settle(half)
        self.invariants()

    def _recover_half(self, half: Record, settled: set[int], latest: _Latest) -> None:
        """Note a half of the queue; a copy replaces the half before it, settled or not.

        Consumer offsets are saved only from time to time. So after a crash the saved offset may be
        before both.
        """
        properties = half.property_map()
        identity = _identity(half)
        first = properties.get(TRANSACTION_FIRST_OFFSET, "")
        is_copy = bool(first) or TRANSACTION_CHECK_TIMES in properties
        if is_copy:
            self._pending.pop(latest.get(identity, (-1, -1))[0], None)
            self._copies.pop(identity, None)
        latest[identity] = half.queue_offset, half.commit_log_offset
        if half.queue_offset in settled or _offset(first) in settled:
            return
        self._pending[half.queue_offset] = half.commit_log_offset
        if is_copy:
            self._copies[identity] = half.queue_offset

    def _recover_ops(self, store: MessageStore, begin: int) -> set[int]:
        settled: set[int] = set()
        self._op_offset = begin
        for op in _records(store, OP_TOPIC, begin):
            if op.property_map().get(TAGS) != SETTLED_TAG:
                continue
            named = _named(op.body)
            settled.update(named)
            self._ops.append((op.queue_offset, max(named, default=-1)))
        return settled


def _identity(half: Record) -> _Identity:
    """Return the fields that a half shares with its copies, but with no other send."""
    message_id = half.property_map().get(UNIQ_KEY, "")
    return message_id, half.born_time_ms, half.born_host, half.body_crc


def _named(op: bytes) -> list[int]:
    """Return the queue offsets in the body of an op record."""
    words = op.decode("ascii", "replace").split(OFFSET_SEPARATOR)
    return [offset for offset in map(_offset, words) if offset >= 0]


def _offset(word: str) -> int:
    """Return the offset in a text; -1 if the text is not an offset. Clients may write anything."""
    return int(word) if word.isdecimal() and len(word) <= _DIGITS_MAX else -1


def _settled_late(store: MessageStore) -> Iterator[int]:
    """Yield where given-up halves are whose transactions were settled or resumed later."""
    ops = store.queue(OP_TOPIC, LATE_QUEUE)
    for op in _records(store, OP_TOPIC, ops.end - 2 * _GIVEN_UP_MAX, LATE_QUEUE) if ops else ():
        yield from _named(op.body)


def _records(store: MessageStore, topic: str, begin: int, queue_id: int = 0) -> Iterator[Record]:
    """Yield the readable records of a queue from message `begin` on."""
    queue = store.queue(topic, queue_id)
    if queue is None:
        return
    offset = max(begin, queue.first)
    while units := queue.units(offset, _READ_AT_ONCE):
        for number in range(offset, offset + len(units)):
            record = store.reader.message(queue, number)
            if record and record.topic == topic:
                yield record
        offset += len(units)


def _committed(store: MessageStore, begin: int | None) -> Iterable[Record]:
    """Yield the halves of messages that were committed after log offset `begin`."""
    if begin is None:
        return
    for found in sound_records(store.log, begin):
        if head_at(found.buffer, found.at).sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
            continue
        message = decode_record(found.buffer, found.at)
        half = store.read_record(message.prepared_transaction_offset)
        if half is None or half.topic != HALF_TOPIC:
            continue
        # A retry of a committed message keeps the flag, but its prepared offset is 0: no half.
        if half.property_map().get(UNIQ_KEY) == message.property_map().get(UNIQ_KEY):
            yield half
