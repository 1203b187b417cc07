"""Answers brokers that check back on a half message, from the table of stubs.

Receives a broker's question; returns the answer. A broker may ask any process that uses the
database, even after the sender of the half has died. Never guesses: if the answer is not known now,
the broker asks again.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from reliable_mq.database.sql_faults import known_fault
from reliable_mq.message import CheckBack, Decision, Half, SendResult
from reliable_mq.outbox.half import ANSWERS, HalfView, StubLookup, finding_of
from reliable_mq.outbox.half_sender import CommitMany
from reliable_mq.outbox.relay import NextTime, SendOutcome
from reliable_mq.outbox.stub import Position
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)


class HalfBook(Protocol):
    """What check-backs need from the table of stubs; see `sql_half`."""

    def read_half(self, message_id: str) -> HalfView | None: ...

    def entomb(self, message_id: str, topic: str, now: float) -> bool: ...

    def claim(self, message_id: str, owner: str, now: float, lease: float) -> bool: ...


class HalfSendBook(Protocol):
    """Records the results of sends; see `sql_stubs`."""

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None: ...


class CheckBacks:
    """Answers for the halves of one application in one database.

    Invariant H2: it says ROLLBACK only in two cases. No transaction can commit the half's stub any
    more. Or the message is stored, and its loss would be noticed (it would be missed).

    Args:
        halves: the table of stubs.
        stubs: records the sends.
        commit_many: commits halves; the results are in their order.
        next_time: returns when the next send is due.
        owner: a name under which nothing else claims stubs.
        lease: seconds that a claim lasts.
        clock: returns the time for the rows, in seconds since the epoch.
    """

    def __init__(
        self,
        halves: HalfBook,
        stubs: HalfSendBook,
        commit_many: CommitMany,
        next_time: NextTime,
        *,
        owner: str,
        lease: float,
        clock: Callable[[], float],
    ) -> None:
        self._halves = halves
        self._stubs = stubs
        self._commit_many = commit_many
        self._next_time = next_time
        self._owner = owner
        self._lease = lease
        self._clock = clock

    def answer(self, check: CheckBack) -> Decision | None:
        """Return the answer; None: the half was committed, and that is recorded."""
        half = check.half
        try:
            finding, count = self._find(check, self._clock())
        except Exception as error:  # only the database knows the answer
            line = known_fault(error)
            if line is None:
                raise
            application_events.CHECK_BACK_POSTPONED.log(
                log, message_id=half.message_id, topic=half.queue.topic, error=line
            )
            return Decision.UNKNOWN
        application_events.CHECK_BACK_ANSWERED.log(
            log, message_id=half.message_id, topic=half.queue.topic, answer=finding.value
        )
        if finding is StubLookup.UNSENT:
            self._commit(half, count)
            return None
        return ANSWERS[finding]

    def _find(self, check: CheckBack, now: float) -> tuple[StubLookup, int]:
        """Return what the table says, and how often the stub was sent."""
        message_id = check.half.message_id
        view = self._halves.read_half(message_id)
        if view is None:
            if self._halves.entomb(message_id, check.half.queue.topic, now):
                return StubLookup.ENTOMBED, 0
            view = self._halves.read_half(message_id)  # its transaction committed meanwhile
        if view is None:
            return StubLookup.UNDECIDED, 0  # and the row was removed meanwhile
        finding = finding_of(view)
        if finding is StubLookup.UNSENT and not self._halves.claim(
            message_id, self._owner, now, self._lease
        ):
            finding = StubLookup.IN_HAND
        return finding, view.count

    def _commit(self, half: Half, count: int) -> None:
        """Commit a half whose stub is claimed, and record the result."""
        result = self._commit_many([half])[0]
        now, sends = self._clock(), count + 1
        due = self._next_time(sends, now, None)
        if isinstance(result, SendResult):
            queue = result.queue
            position = Position(queue.broker_name, queue.queue_id, result.queue_offset)
            outcome = SendOutcome(half.message_id, sends, due, position=position)
        else:
            why = f"{type(result).__name__}: {result}"
            outcome = SendOutcome(half.message_id, sends, due, error=why)
        self._stubs.record([outcome], self._owner, now)
