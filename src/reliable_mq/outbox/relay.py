"""The relay: sends newly committed stubs to the broker, without waiting for a scheduler.

Receives the stubs of committed transactions. Hands their messages to any sender with `send_many`,
and records the results in the table of stubs. Reads every stub back from the table before sending.
It does not send a stub that a savepoint rolled back, or that has another lease owner by now.

The resend scheduler sends its due stubs through the same functions.
"""

import itertools
import logging
import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

from reliable_mq.errors import InvariantBroken, MessageRefused, NotSent
from reliable_mq.message import Message, SendResult, SendStatus
from reliable_mq.outbox.delay import Levelled, asked_again_at, rest_of, send_timed
from reliable_mq.outbox.stub import Position, Stub, message_of
from reliable_mq.refusals import is_illegal

NextTime = Callable[[int, float, float | None], float]
"""(count of sends, now, deliver time) -> when the next send is due, in seconds since the epoch."""


class StubSender(Protocol):
    """What the relay needs of a client."""

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send all messages. Return in their order where each was stored, or its error."""
        ...


class SendOutcome(msgspec.Struct, frozen=True):
    """The result of one send of a stub.

    Attributes:
        message_id: the message id of the stub.
        count: how often the stub was sent, including this send.
        next_time: when the next send is due, in seconds since the epoch.
        position: where the broker stored the message.
        error: why the send failed. None: the broker acknowledged the message.
        is_refused: the message itself is wrong, so that every send of it fails. Or its time is
            too far ahead for the broker; then `count` does not include this send.
        arrives: when the message arrives, if this differs from the stub's time.
        note: the reason for that difference.
    """

    message_id: str
    count: int
    next_time: float
    position: Position | None = None
    error: str | None = None
    is_refused: bool = False
    arrives: float | None = None
    note: str = ""


def send_stubs(
    sender: StubSender,
    stubs: Sequence[Stub],
    next_time: NextTime,
    now: float,
    *,
    are_missed: bool = False,
    confirm_to: str = "",
    consumed_by: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[SendOutcome]:
    """Send each stub once and return the result of each stub that was tried.

    If an earlier message of a queue fails, the client does not try the later ones. These have no
    result and count as not sent. `are_missed`, `confirm_to`, `consumed_by` (by message id): see
    `message_of`.
    """
    sound = _sound(stubs)
    messages: list[Message] = []
    are_timed = False
    for stub in sound:
        delay = None if stub.deliver_time is None else rest_of(stub.deliver_time, now)
        are_timed = are_timed or delay is not None
        known = consumed_by.get(stub.message_id, ())
        messages.append(
            message_of(stub, delay, is_missed=are_missed, confirm_to=confirm_to, consumed_by=known)
        )
    results: list[SendResult | Exception] = []
    levelled: dict[int, Levelled] = {}
    try:
        if are_timed:
            results, levelled = send_timed(sender.send_many, messages)
        elif messages:
            results = sender.send_many(messages)
    except Exception as error:  # noqa: BLE001 - whatever the error is, these sends failed
        results = [error] * len(messages)
    if len(results) != len(messages):
        raise InvariantBroken(f"{len(messages)} messages were sent, {len(results)} results came")
    result_of = {stub.message_id: result for stub, result in zip(sound, results, strict=True)}
    level_of = {sound[place].message_id: level for place, level in levelled.items()}
    outcomes: list[SendOutcome] = []
    shaky: set[tuple[str, str]] = set()
    for stub in stubs:
        result = MessageRefused(stub.flaw) if stub.flaw else result_of.get(stub.message_id)
        if result is None or isinstance(result, NotSent):
            continue
        lane = (stub.topic, stub.ordering_key)
        # A crash may lose an earlier message and keep a later one: that would break their order.
        unsafe = NotSent("an earlier message of its key may not survive a crash")
        judged = unsafe if lane in shaky else result
        level = level_of.get(stub.message_id)
        outcomes.append(_outcome(stub, judged, next_time, now, level))
        if stub.ordering_key and outcomes[-1].error is not None:
            shaky.add(lane)
    return outcomes


def _sound(stubs: Sequence[Stub]) -> list[Stub]:
    """Return the readable stubs, without those behind an unreadable stub of the same key."""
    sound: list[Stub] = []
    held_up: set[tuple[str, str]] = set()
    for stub in stubs:
        lane = (stub.topic, stub.ordering_key)
        if stub.flaw and stub.ordering_key:
            held_up.add(lane)
        elif not stub.flaw and lane not in held_up:
            sound.append(stub)
    return sound


def _outcome(
    stub: Stub,
    result: SendResult | Exception,
    next_time: NextTime,
    now: float,
    level: Levelled | None,
) -> SendOutcome:
    count = stub.count + 1
    # Unconfirmed until its groups have it, a stub outlives a master without slaves (decision 082).
    if isinstance(result, SendResult) and (
        result.status is SendStatus.SEND_OK or (stub.required_groups and result.status.lacks_slaves)
    ):
        queue = result.queue
        position = Position(queue.broker_name, queue.queue_id, result.queue_offset)
        arrives, note = (None, "") if level is None else (now + level.seconds, level.why)
        due = next_time(count, now, stub.deliver_time if arrives is None else arrives)
        return SendOutcome(
            stub.message_id, count, due, position=position, arrives=arrives, note=note
        )
    if isinstance(result, SendResult):  # if nothing is lost, the next send is a duplicate
        why = f"{result.status.name}: {result.status.doubt}"
    else:
        why = f"{type(result).__name__}: {result}"
    if (again := asked_again_at(result, stub.deliver_time, now)) is not None:
        return SendOutcome(stub.message_id, stub.count, again, error=why, is_refused=True)
    due = next_time(count, now, None)  # what is not stored is missed at once, even a delayed one
    is_refused = isinstance(result, MessageRefused) or is_illegal(result)
    return SendOutcome(stub.message_id, count, due, error=why, is_refused=is_refused)


log = logging.getLogger(__name__)

LANE_MAX = 32
"""The most stubs of one key in one batch. A hot key must not keep the other keys waiting."""


class StubBook(Protocol):
    """What the relay needs from the table of stubs."""

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        """Return the committed, unsent stubs of `owner`; True: an earlier stub must go first."""
        ...

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        """Write down the results of the sends, for stubs that `owner` still owns."""
        ...

    def record_late(
        self, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> Collection[str]:
        """Do the same for successful sends, without waiting; return the ids of locked rows.

        A result that the table refuses is told in the log, and is not among them.
        """
        ...

    def renew(self, message_ids: Collection[str], owner: str, until: float) -> None:
        """Extend the lease to `until` for unsent stubs that `owner` still owns."""
        ...


class RelayCounts(msgspec.Struct, frozen=True):
    """What one run did. `waiting` counts the stubs that the relay still has to send."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0
    waiting: int = 0


class _Held(NamedTuple):
    """A stub in a lane, leased until `until`. A lease is renewed once, after a late commit."""

    until: float
    stub: Stub
    is_renewed: bool = False


class _Late(NamedTuple):
    """A result that the table does not have yet. After `until` the scheduler sends the stub."""

    until: float
    outcome: SendOutcome


class Relay:
    """Sends accepted stubs. Stubs of one (topic, ordering key) go strictly one after another.

    Invariant: a stub is in exactly one lane, and each lane is in the order of its rows. Threads
    may hand over their committed stubs in another order. No lease needs a look before
    `_lease_due`. A result is recorded once: it is in `unrecorded` or in the table. A result that
    cannot be written during a lease is dropped.

    Args:
        owner: the relay's name as a lease owner in the table.
        lease: seconds after which an unsent stub is left to the resend scheduler. If the
            transaction took half of this time or longer, the lease is renewed once after the
            commit.
        batch_max: the most stubs in one `send_many`. Default 256.
        half_sender: sends instead of `sender` while there are `open_halves`.
        open_halves: the halves that wait at brokers for an end by this process.
        confirm_to: returns the topic from which this database reads notices of consumer groups
            with other databases; may raise the database's errors.
        arrives_again: is called with a topic when a send succeeds after sends to it failed.
        may_defer: keep the results of plain sends in `unrecorded` until `record` is called. If
            a stub has one required group, its consumer may have recorded the send by then, and the
            row need not be written a third time. Default: record every batch at once.
    """

    def __init__(
        self,
        book: StubBook,
        sender: StubSender,
        next_time: NextTime,
        *,
        owner: str,
        lease: float,
        batch_max: int = 256,
        half_sender: StubSender | None = None,
        open_halves: Collection[str] = (),
        confirm_to: Callable[[], str] = str,
        arrives_again: Callable[[str], None] = lambda _topic: None,
        may_defer: bool = False,
    ) -> None:
        self._book = book
        self._sender = sender
        self._half_sender = half_sender or sender
        self._open_halves = open_halves
        self._next_time = next_time
        self._owner = owner
        self.lease = lease
        self._batch_max = batch_max
        self._confirm_to = confirm_to
        self._notice_topic = ""  # once known, it stays the same for the life of the process
        self._arrives_again = arrives_again
        self._may_defer = may_defer
        #: Results of sends that the table does not have yet.
        self.unrecorded: list[_Late] = []
        #: One of them should be recorded now: no confirmation records it.
        self.is_record_due = False
        self._failing: set[str] = set()
        self._lanes: dict[tuple[str, str], deque[_Held]] = {}
        self._lease_due = math.inf
        #: Why stubs of the last run were not sent: the first error.
        self.last_failed: SendOutcome | None = None

    def accept(self, stubs: Iterable[Stub], written: float) -> None:
        """Add stubs that were written under this relay's lease at `written` (seconds)."""
        until = written + self.lease
        for stub in stubs:
            # A stub without a key has its own lane: nothing must go before it.
            lane = (stub.topic, stub.ordering_key) if stub.ordering_key else ("", stub.message_id)
            insort(self._lanes.setdefault(lane, deque()), _Held(until, stub), key=_row)
        self._lease_due = min(self._lease_due, until - self.lease / 2)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lanes.values()))

    def run_once(self, now: float) -> RelayCounts:
        """Send one batch, made of the first stubs of the lanes, and record the results.

        Raises what the table of stubs raises. Then the stubs stay in their lanes.
        """
        dropped = self._look_at_leases(now)
        offered = self._offered()
        if not offered:
            return RelayCounts(dropped=dropped)
        ids = [stub.message_id for stubs in offered.values() for stub in stubs]
        sendable = self._book.sendable(ids, self._owner)
        batch: list[Stub] = []
        for stubs in offered.values():
            for stub in stubs:
                if sendable.get(stub.message_id, False):
                    break  # an earlier stub of another lease owner must go first
                if stub.message_id in sendable:
                    batch.append(stub)
        outcomes = {each.message_id: each for each in self._send(batch, now)}
        for name, stubs in offered.items():
            dropped += self._move(name, stubs, sendable.keys(), outcomes)
        errors = [each for each in outcomes.values() if each.error is not None]
        self.last_failed, failed = (errors[0] if errors else None), len(errors)
        if errors or self._failing:
            self._look_at_topics(batch, outcomes)
        return RelayCounts(len(outcomes) - failed, failed, dropped, self.waiting)

    def _look_at_topics(self, stubs: Sequence[Stub], outcomes: Mapping[str, SendOutcome]) -> None:
        """Remember topics to which sends fail. Report a topic when a send succeeds again.

        Other stubs of such a topic wait in the table with a growing backoff. After the report
        they need not wait any more.
        """
        arrived: set[str] = set()
        for stub in stubs:
            outcome = outcomes.get(stub.message_id)
            if outcome is not None and outcome.error is None:
                arrived.add(stub.topic)
            elif outcome is not None and not outcome.is_refused:
                self._failing.add(stub.topic)
        for topic in sorted(arrived & self._failing):
            self._arrives_again(topic)
            self._failing.discard(topic)

    def _move(
        self,
        name: tuple[str, str],
        stubs: Sequence[Stub],
        there: Collection[str],
        outcomes: Mapping[str, SendOutcome],
    ) -> int:
        """Remove finished stubs from a lane; return how many were dropped unsent."""
        dropped = 0
        lane = self._lanes.pop(name)
        for stub in stubs:
            outcome = outcomes.get(stub.message_id)
            if outcome is not None and outcome.error is not None:
                # Later unsent stubs of the key wait in the table, behind this one.
                return dropped + sum(each.stub.message_id not in outcomes for each in lane)
            if outcome is None and stub.message_id in there:
                break  # not tried
            lane.popleft()
            dropped += outcome is None
        if lane:
            self._lanes[name] = lane  # behind the other lanes, so that those are first next time
        return dropped

    def _offered(self) -> dict[tuple[str, str], list[Stub]]:
        """Return the first stubs of the lanes, one batch in total."""
        offered: dict[tuple[str, str], list[Stub]] = {}
        room = self._batch_max
        for name, lane in self._lanes.items():
            if room <= 0:
                break
            offered[name] = [each.stub for each in itertools.islice(lane, min(room, LANE_MAX))]
            room -= len(offered[name])
        return offered

    def _send(self, stubs: Sequence[Stub], now: float) -> list[SendOutcome]:
        if not stubs:
            return []
        self._notice_topic = self._notice_topic or self._confirm_to()
        outcomes = send_stubs(
            self._half_sender if self._open_halves else self._sender,
            *(stubs, self._next_time, now),
            confirm_to=self._notice_topic,
        )
        late = self._late_ones(stubs, outcomes) if self._may_defer else {}
        if at_once := [each for each in outcomes if each.message_id not in late]:
            self._book.record(at_once, self._owner, now)
        until = now + self.lease
        self.unrecorded += [_Late(until, each) for each in outcomes if each.message_id in late]
        self.is_record_due = self.is_record_due or not all(late.values())
        return outcomes

    def _late_ones(self, stubs: Sequence[Stub], outcomes: Sequence[SendOutcome]) -> dict[str, bool]:
        """Return the ids whose results nobody waits for; True: a confirmation may record it first.

        Later stubs of a key wait for a result, and so do ends of halves.
        """
        if self._open_halves:
            return {}
        plain = {
            each.message_id for each in outcomes if each.error is None and each.arrives is None
        }
        return {
            stub.message_id: len(stub.required_groups) == 1 and stub.deliver_time is None
            for stub in stubs
            if stub.message_id in plain and not stub.ordering_key
        }

    def record(self, now: float) -> None:
        """Record what is in `unrecorded`; rows that somebody locks stay there for the next call.

        Raises what the table raises. Then nothing is lost whose lease has not ended.
        """
        if not self.unrecorded:
            return
        given = [each.outcome for each in self.unrecorded]
        self.unrecorded = [each for each in self.unrecorded if each.until > now]
        left = self._book.record_late(given, self._owner, now)
        self.unrecorded = [each for each in self.unrecorded if each.outcome.message_id in left]
        self.is_record_due = False

    def _look_at_leases(self, now: float) -> int:
        """Renew the leases of late commits; drop stubs whose lease has expired otherwise.

        The scheduler may be sending the dropped stubs by now. It may also have taken stubs of
        late commits: the relay finds out when it reads them back.
        """
        if now < self._lease_due:
            return 0
        half = self.lease / 2
        held = [each for lane in self._lanes.values() for each in lane if not each.is_renewed]
        renewed = {each.stub.message_id for each in held if each.until - half <= now}
        until = now + self.lease
        if renewed:
            self._book.renew(renewed, self._owner, until)
        expired = 0
        for name, lane in list(self._lanes.items()):
            alive = deque(
                _Held(until, each.stub, True) if each.stub.message_id in renewed else each
                for each in lane
                if each.until > now or each.stub.message_id in renewed
            )
            expired += len(lane) - len(alive)
            if alive:
                self._lanes[name] = alive
            else:
                del self._lanes[name]
        left = (each for lane in self._lanes.values() for each in lane)
        # A renewed lease is not renewed again: it is due at its end.
        dues = (each.until if each.is_renewed else each.until - half for each in left)
        self._lease_due = min(dues, default=math.inf)
        return expired

    def invariants(self) -> None:
        """Check the invariant of the class."""
        held = [each for lane in self._lanes.values() for each in lane]
        ids = [each.stub.message_id for each in held]
        if len(ids) != len(set(ids)) or not all(self._lanes.values()):
            raise InvariantBroken("a stub is in exactly one lane, and no lane is empty")
        if any(list(lane) != sorted(lane, key=_row) for lane in self._lanes.values()):
            raise InvariantBroken("a lane is in the order of its rows")
        if any(each.until < self._lease_due for each in held):
            raise InvariantBroken("a lease in a lane ends before `_lease_due`")


def _row(entry: _Held) -> int:
    return entry.stub.seq
