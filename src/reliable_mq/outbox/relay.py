"""The relay: stubs that were just committed go to the broker, without waiting for a scheduler.

Receives stubs whose transaction ended in a commit. Hands on messages to anything that can
`send_many`, and what came of it to the table of stubs. Refuses to send what it cannot read back
from the table: a stub that a savepoint took back, or that somebody else owns by now, is not sent.

The same steps serve the resend scheduler, which hands it the stubs that are due.
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

log = logging.getLogger(__name__)

LANE_MAX = 32
"""Most stubs of one key in one batch: a hot key must not keep the others waiting."""

NextTime = Callable[[int, float, float | None], float]
"""(count of sends, now, deliver time) -> when the next send is due, seconds since the epoch."""


class StubSender(Protocol):
    """What the relay needs of a client."""

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send all; return for each, in order, where it was stored or why it was not."""
        ...


class SendOutcome(msgspec.Struct, frozen=True):
    """What one send of a stub came to.

    Attributes:
        message_id: the stub's.
        count: its sends, this one included.
        next_time: when the next one is due, seconds since the epoch.
        position: where the broker stored it.
        error: why it did not; None: it acknowledged it.
        is_refused: it failed for what the message itself is, and would anywhere and at any time;
            or its time is too far ahead for the broker: then this send is not counted.
        arrives: when it is to arrive, where that is another time than the stub says.
        note: why it is.
    """

    message_id: str
    count: int
    next_time: float
    position: Position | None = None
    error: str | None = None
    is_refused: bool = False
    arrives: float | None = None
    note: str = ""


class StubBook(Protocol):
    """What the relay needs of the table of stubs."""

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        """Return which are committed, unsent and ours; True: an earlier one must go first."""
        ...

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        """Write down what the sends came to, where the stub is still ours."""
        ...

    def renew(self, message_ids: Collection[str], owner: str, until: float) -> None:
        """Let the lease of stubs end later that are unsent and still ours."""
        ...


class RelayCounts(msgspec.Struct, frozen=True):
    """What one run did. `waiting` are stubs that are still in the relay's hands."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0
    waiting: int = 0


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
    """Send each stub once and return what came of those that were tried.

    The client does not try a message whose forerunner in the same queue failed; it is no send.
    `are_missed`, `confirm_to`, `consumed_by` (by message id): see `message_of`.
    """
    sound = _sound(stubs)
    messages = [
        message_of(
            stub,
            rest_of(stub.deliver_time, now),
            is_missed=are_missed,
            confirm_to=confirm_to,
            consumed_by=consumed_by.get(stub.message_id, ()),
        )
        for stub in sound
    ]
    levelled: dict[int, Levelled] = {}
    try:
        results, levelled = send_timed(sender.send_many, messages) if messages else ([], {})
    except Exception as error:  # noqa: BLE001 - whatever it was, these sends did not succeed
        results = [error] * len(messages)
    if len(results) != len(messages):
        raise InvariantBroken(f"{len(messages)} messages were sent, {len(results)} results came")
    result_of = dict(zip((stub.message_id for stub in sound), results, strict=True))
    level_of = {sound[place].message_id: level for place, level in levelled.items()}
    outcomes: list[SendOutcome] = []
    shaky: set[tuple[str, str]] = set()
    for stub in stubs:
        result = MessageRefused(stub.flaw) if stub.flaw else result_of.get(stub.message_id)
        if result is None or isinstance(result, NotSent):
            continue
        lane = (stub.topic, stub.ordering_key)
        # If a crash takes an earlier one, a later one that stays would have overtaken it.
        unsafe = NotSent("an earlier message of its key may not survive a crash")
        judged = unsafe if lane in shaky else result
        level = level_of.get(stub.message_id)
        outcomes.append(_outcome(stub, judged, next_time, now, level))
        if stub.ordering_key and outcomes[-1].error is not None:
            shaky.add(lane)
    return outcomes


def _sound(stubs: Sequence[Stub]) -> list[Stub]:
    """Return the stubs that read, without those behind one of their key that does not."""
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
    if isinstance(result, SendResult) and result.status is SendStatus.SEND_OK:
        queue = result.queue
        position = Position(queue.broker_name, queue.queue_id, result.queue_offset)
        arrives, note = (None, "") if level is None else (now + level.seconds, level.why)
        due = next_time(count, now, stub.deliver_time if arrives is None else arrives)
        return SendOutcome(
            stub.message_id, count, due, position=position, arrives=arrives, note=note
        )
    if isinstance(result, SendResult):
        # Stored in memory or in one place only: a crash can take it away. If none does, the next
        # send is a duplicate, which consumers suppress.
        why = f"{result.status.name}: what the broker stored may not survive a crash"
    else:
        why = f"{type(result).__name__}: {result}"
    if (again := asked_again_at(result, stub.deliver_time, now)) is not None:
        return SendOutcome(stub.message_id, stub.count, again, error=why, is_refused=True)
    # What is not stored is missed at once, also when the message itself is a delayed one.
    due = next_time(count, now, None)
    is_refused = isinstance(result, MessageRefused) or is_illegal(result)
    return SendOutcome(stub.message_id, count, due, error=why, is_refused=is_refused)


class _Held(NamedTuple):
    """A stub in a lane, ours until then. A lease is renewed once, when its commit came late."""

    until: float
    stub: Stub
    is_renewed: bool = False


class Relay:
    """Sends the stubs it is handed; stubs of one (topic, ordering key) strictly one after another.

    Invariant: a stub is in exactly one lane, and a lane is in the order of its rows, whatever the
    order in which the threads that committed them came to hand them over. About their leases
    nothing is to be done before `_lease_due`.

    Args:
        owner: how the table names this relay.
        lease: seconds after which a stub that is not sent is left to the resend scheduler. One
            whose transaction took half of that or longer gets it once more from the commit on.
        batch_max: most stubs in one `send_many`.
        confirm_to: tells where this database reads notices of other databases' consumer groups;
            may raise what the database raises.
        arrives_again: is told of a topic to which sends failed, and to which one arrived now.
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
        confirm_to: Callable[[], str] = str,
        arrives_again: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        self._book = book
        self._sender = sender
        self._next_time = next_time
        self._owner = owner
        self._lease = lease
        self._batch_max = batch_max
        self._confirm_to = confirm_to
        self._notice_topic = ""  # the same as long as this process lives, once it is known
        self._arrives_again = arrives_again
        self._failing: set[str] = set()
        self._lanes: dict[tuple[str, str], deque[_Held]] = {}
        self._lease_due = math.inf
        #: Why a stub of the last run was not sent; of several, the first one's reason.
        self.last_error = ""

    def accept(self, stubs: Iterable[Stub], written: float) -> None:
        """Take stubs that were written, under a lease of ours, at `written` (seconds)."""
        until = written + self._lease
        for stub in stubs:
            # A stub without a key has a lane of its own: nothing must go before it.
            lane = (stub.topic, stub.ordering_key) if stub.ordering_key else ("", stub.message_id)
            insort(self._lanes.setdefault(lane, deque()), _Held(until, stub), key=_row)
        self._lease_due = min(self._lease_due, until - self._lease / 2)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lanes.values()))

    def run_once(self, now: float) -> RelayCounts:
        """Send one batch, the first stubs of every lane, and write down what came of it.

        Raises whatever the table of stubs raises; the stubs stay in their lanes then.
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
                    break  # an earlier one of somebody else's must go first
                if stub.message_id in sendable:
                    batch.append(stub)
        outcomes = {each.message_id: each for each in self._send(batch, now)}
        for name, stubs in offered.items():
            dropped += self._move(name, stubs, sendable.keys(), outcomes)
        errors = [each.error for each in outcomes.values() if each.error is not None]
        self.last_error, failed = (errors[0] if errors else ""), len(errors)
        if errors or self._failing:
            self._look_at_topics(batch, outcomes)
        return RelayCounts(len(outcomes) - failed, failed, dropped, self.waiting)

    def _look_at_topics(self, stubs: Sequence[Stub], outcomes: Mapping[str, SendOutcome]) -> None:
        """Remember topics to which sends fail; tell when one arrives there again.

        Others of such a topic wait in the table for a time that grows. They need not any more.
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
        """Take out of a lane what is dealt with; return how many stubs were dropped unsent."""
        dropped = 0
        lane = self._lanes.pop(name)
        for stub in stubs:
            outcome = outcomes.get(stub.message_id)
            if outcome is not None and outcome.error is not None:
                # Later ones of the key that were not sent wait in the table, behind this one.
                return dropped + sum(each.stub.message_id not in outcomes for each in lane)
            if outcome is None and stub.message_id in there:
                break  # not tried
            lane.popleft()
            dropped += outcome is None
        if lane:
            self._lanes[name] = lane  # behind the other lanes, which are first the next time
        return dropped

    def _offered(self) -> dict[tuple[str, str], list[Stub]]:
        """Return the first stubs of the lanes, one batch in all."""
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
            self._sender, stubs, self._next_time, now, confirm_to=self._notice_topic
        )
        self._book.record(outcomes, self._owner, now)
        return outcomes

    def _look_at_leases(self, now: float) -> int:
        """Renew leases of commits that were late, forget stubs whose lease has passed otherwise.

        The scheduler may be sending those by now. It may have taken the late ones, too: which are
        ours is seen when they are read back.
        """
        if now < self._lease_due:
            return 0
        half = self._lease / 2
        held = [each for lane in self._lanes.values() for each in lane if not each.is_renewed]
        renewed = {each.stub.message_id for each in held if each.until - half <= now}
        until = now + self._lease
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
        held = [each for lane in self._lanes.values() for each in lane]
        dues = (each.until if each.is_renewed else each.until - half for each in held)
        self._lease_due = min(dues, default=math.inf)
        return expired

    def invariants(self) -> None:
        """Check what the class promises of itself."""
        held = [each for lane in self._lanes.values() for each in lane]
        ids = [each.stub.message_id for each in held]
        if len(ids) != len(set(ids)) or not all(self._lanes.values()):
            raise InvariantBroken("a stub is in exactly one lane, and no lane is empty")
        if any(list(lane) != sorted(lane, key=_row) for lane in self._lanes.values()):
            raise InvariantBroken("a lane is in the order of its rows")
        if any(each.until < self._lease_due for each in held):
            raise InvariantBroken("a lease in a lane ends before somebody looks at it")


def _row(entry: _Held) -> int:
    return entry.stub.seq
