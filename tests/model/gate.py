"""One topic in memory, and what the resend scheduler does with it: its own decisions, no database.

`Scheduler`, `Intake` and `topic_gate` are the code's own. Written anew is what `sql_due`,
`sql_topics` and `sql_opening` do; `tests/resend/after_faults.py` runs the same on databases.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from reliable_mq.confirm.progress import Progress
from reliable_mq.errors import ConnectionLost
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.resend_policy import ResendPolicy, ladder
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.book import Book
from reliable_mq.resend.due import ClaimedStubs, ClaimRequest, DueKind, DueTopic, HeldStub
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.topic_gate import PROBE_LEASE, TopicRow, after_failures

TOPIC = "orders"
LEASE, BACKLOG_WAIT = 20.0, 5.0
_QUEUE = MessageQueue(topic=TOPIC, broker_name="b", queue_id=0)


class Killed(BaseException):
    """The scheduler dies in the middle of a send."""


@dataclass
class Row:
    """A stub. `resend_time`: when it is due; None: it was sent."""

    seq: int
    key: str
    born: float
    resend_time: float | None
    owner: str = ""
    lease_until: float = 0.0
    count: int = 0

    @property
    def kind(self) -> DueKind:
        return DueKind.SUSPECT if self.owner else DueKind.UNSENT

    def stub(self) -> Stub:
        name = f"{self.seq:032}"
        return Stub(
            seq=self.seq,
            message_id=name,
            topic=TOPIC,
            content=b"",
            ordering_key=self.key,
            count=self.count,
            create_time=self.born,
        )


class MemoryDue:
    """What waits; see `sql_due` and `sql_opening`."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, key: str, now: float) -> None:
        """Commit a stub whose relay died at once."""
        self.rows.append(Row(len(self.rows), key, now, now))

    def waiting(self) -> list[Row]:
        return [row for row in self.rows if row.resend_time is not None]

    def agenda(self) -> list[DueTopic]:
        first: dict[DueKind, float] = {}
        for row in self.waiting():
            assert row.resend_time is not None
            first[row.kind] = min(first.get(row.kind, row.resend_time), row.resend_time)
        return [DueTopic(kind, TOPIC, time) for kind, time in first.items()]

    def claim(self, asked: ClaimRequest) -> ClaimedStubs:
        found = self._found(asked)
        batch = {row.seq for row in found}
        going, held = [], []
        for row in found:
            head = self._head(row, batch)
            if head is None:
                going.append(row)
            else:
                taken = head.lease_until > asked.now
                until = asked.now if taken else head.resend_time
                held.append(HeldStub(row.stub(), until, head.seq))
        if asked.is_probe and not asked.newest:
            heads = [self.rows[seq] for seq in sorted({each.behind for each in held})]
            going += [row for row in heads if self._is_free(row, DueKind.UNSENT, asked)]
        stubs = [row.stub() for row in going]
        kept = [self.rows[each.stub.seq] for each in ([] if asked.newest else held)]
        for row in [*going, *kept]:
            row.owner, row.lease_until = asked.owner, asked.now + asked.lease
            row.resend_time = row.lease_until
        for row in going:
            row.count += 1
        return ClaimedStubs(stubs, [] if asked.newest else held, [], len(found))

    def _found(self, asked: ClaimRequest) -> list[Row]:
        rows = [row for row in self.waiting() if self._is_free(row, asked.kind, asked)]
        rows.sort(key=lambda row: (row.resend_time, row.seq), reverse=asked.newest)
        return rows[: asked.limit]

    @staticmethod
    def _is_free(row: Row, kind: DueKind, asked: ClaimRequest) -> bool:
        if row.resend_time is None or row.lease_until > asked.now or row.kind is not kind:
            return False
        return asked.is_early or row.resend_time <= asked.now

    def _head(self, row: Row, batch: Collection[int]) -> Row | None:
        """Return the first unsent stub of its key, where that is before it and not in the batch."""
        for other in self.waiting():
            if row.key and other.key == row.key and other.seq not in batch:
                return other if other.seq < row.seq else None
        return None

    def postpone(
        self, message_ids: Sequence[str], owner: str, next_time: float, *, untried: bool = False
    ) -> None:
        for row in self._ours(message_ids, owner):
            row.owner, row.lease_until, row.resend_time = "", 0.0, next_time
            row.count -= untried

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        for each in outcomes:
            for row in self._ours([each.message_id], owner):
                row.owner, row.lease_until, row.count = "", 0.0, each.count
                row.resend_time = None if each.error is None else each.next_time

    def _ours(self, message_ids: Sequence[str], owner: str) -> Iterator[Row]:
        for row in (self.rows[int(message_id)] for message_id in message_ids):
            if row.owner == owner and row.resend_time is not None:
                yield row

    def make_due(self, topic: str, now: float) -> bool:
        """Make due at once what waits and is in nobody's hand."""
        waiting = [row for row in self.waiting() if row.kind is DueKind.UNSENT]
        first = min([now, *(row.resend_time or now for row in waiting)])
        for row in waiting:
            if row.lease_until <= now:
                row.resend_time = first
        return False

    def begin_again(
        self, message_ids: Sequence[str], owner: str, until: float
    ) -> tuple[set[str], set[str]]:
        raise AssertionError("nothing here was acknowledged and lost")

    def consumed_elsewhere(self, message_ids: Collection[str]) -> dict[str, list[str]]:
        return {}

    def views(
        self, message_ids: Collection[str], now: float
    ) -> dict[tuple[str, str], tuple[bool, bool]]:
        return {}

    def confirm(self, message_ids: Sequence[str], now: float) -> None:
        """Do nothing: no group is waited for."""

    def give_up(self, message_ids: Sequence[str], owner: str, now: float) -> None:
        """Do nothing: no group is waited for."""

    def used_up(self, stubs: Sequence[Stub], owner: str, now: float) -> int:
        raise AssertionError("an outage used up a stub")


class MemoryTopics:
    """What is known of the topic; see `sql_topics`."""

    def __init__(self) -> None:
        self.row = TopicRow(topic=TOPIC)

    def rows(self) -> dict[str, TopicRow]:
        return {TOPIC: self.row} if self.row != TopicRow(topic=TOPIC) else {}

    def add_failures(self, topic: str, failures: int, now: float, error: str) -> TopicRow:
        self.row = after_failures(self.row, failures, now)
        return self.row

    def sent(self, topic: str, now: float) -> None:
        probes = 1 if self.row.is_closed else self.row.probes
        self._change(failures=0, probes=probes, probe_time=None)

    def opened(self, topic: str, now: float) -> None:
        if self.row.is_opening:
            self._change(probes=0)

    def take_probe(self, topic: str, now: float) -> bool:
        if self.row.probe_time is None or self.row.probe_time > now:
            return False
        self._change(probe_time=now + PROBE_LEASE)
        return True

    def release_probe(self, topic: str, now: float) -> None:
        if self.row.is_closed:
            self._change(probe_time=now)

    def _change(self, **values: object) -> None:
        self.row = msgspec.structs.replace(self.row, **values)


class MemoryBroker:
    """Takes messages, or is away. `deadly`: the send, counted from 1, in which its sender dies."""

    def __init__(self, deadly: int) -> None:
        self.is_away = False
        self.sends = 0
        self._deadly = deadly
        self.keys: dict[str, list[str]] = {}

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        self.sends += 1
        if self.sends == self._deadly:
            raise Killed
        if self.is_away:
            return [ConnectionLost("gone") for _ in messages]
        for message in messages:
            self.keys.setdefault(message.ordering_key, []).append(message.message_id)
        return [
            SendResult(
                status=SendStatus.SEND_OK,
                message_id=message.message_id,
                offset_message_id="",
                queue=_QUEUE,
                queue_offset=0,
            )
            for message in messages
        ]

    def consumer_progress(self, group: str, topic: str) -> Progress:
        return {}


class GateWorld:
    """A scheduler, a topic and a broker; time is told in turns of a second.

    Args:
        due: what waits; a flaw is another one.
        topics: what is known of the topic; a flaw is another one.
        deadly: the send in which the scheduler dies, 0: none.
    """

    def __init__(self, due: MemoryDue, topics: MemoryTopics, *, deadly: int) -> None:
        self.due, self.topics, self.broker = due, topics, MemoryBroker(deadly)
        self.now = 1_000.0
        self._names = itertools.count(1)
        self._scheduler = self._born()

    def _born(self) -> Scheduler:
        book = Book(
            due=self.due, sends=self.due, topics=self.topics, opening=self.due, escalations=self.due
        )
        policy = ResendPolicy(wait=ladder(10.0, 600.0), count_max=50, backlog_wait=BACKLOG_WAIT)
        return Scheduler(
            book,
            self.broker,
            policy,
            owner=f"life-{next(self._names)}",
            lease=LEASE,
            batch=20,
        )

    def turn(self) -> None:
        """Let a second pass, with one turn of the scheduler."""
        try:
            self._scheduler.run_once(self.now)
        except Killed:
            self._scheduler = self._born()
        self.now += 1.0
