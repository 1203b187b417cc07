"""The resend scheduler: handles the stubs that the relay could not settle (P2).

Receives the time. Sends stubs again, makes up missed confirmations, and escalates. The decisions
are in other modules. `outbox.stub.due_state` says what to do with a stub, and the policy says when
it is due next. `intake` says how many stubs of each topic a turn claims. Any number of schedulers
may run; one of them at a time owns a stub.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from reliable_mq.confirm.progress import FirstLooks, Progress, has_passed
from reliable_mq.errors import NoRoute
from reliable_mq.outbox.relay import StubSender, send_stubs
from reliable_mq.outbox.resend_policy import ResendPolicy
from reliable_mq.outbox.stub import DueState, GroupView, Stub, due_state, over_state
from reliable_mq.resend.book import Book
from reliable_mq.resend.due import ClaimedStubs, DueKind
from reliable_mq.resend.intake import Intake
from reliable_mq.telemetry import application_events
from reliable_mq.telemetry.outages import level_of

log = logging.getLogger(__name__)


class ResendClient(StubSender, Protocol):
    """The operations that the scheduler needs of a client."""

    def consumer_progress(self, group: str, topic: str) -> Progress:
        """Return the progress of a consumer group in a topic, by queue."""
        ...


class ResendCounts(msgspec.Struct, frozen=True):
    """The number of stubs that one run handled. `is_full`: more may be due at this moment."""

    claimed: int = 0
    sent: int = 0
    failed: int = 0
    rested: int = 0
    confirmed: int = 0
    escalated: int = 0
    is_full: bool = False


class Scheduler:
    """Sends, confirms or escalates due stubs.

    Invariant: it writes only to stubs that it has claimed under its own name.

    Args:
        book: the database.
        broker: sends messages, and returns the progress of consumer groups.
        policy: when the next send is due, and how many sends are allowed.
        owner: this scheduler's name, different for each scheduler.
        lease: seconds that a claim lasts; longer than a send with all its retries.
        batch: most stubs of each kind that one turn claims. If sends are slow it claims fewer, so
            that they end within a part of the lease.
    """

    def __init__(
        self,
        book: Book,
        broker: ResendClient,
        policy: ResendPolicy,
        *,
        owner: str,
        lease: float,
        batch: int,
    ) -> None:
        self._book = book
        self._due = book.due
        self._broker = broker
        self._policy = policy
        self._owner = owner
        self._lease = lease
        self._ahead = 0.0  # seconds by which this turn's time is ahead of the clock
        self._intake = Intake(
            book, owner=owner, lease=lease, batch=batch, count_max=policy.count_max
        )
        self._first_looks = FirstLooks()
        self._notice_looks = FirstLooks()

    @property
    def next_time(self) -> float | None:
        """When the next stub or probe becomes due, as of the last run."""
        return self._intake.next_time

    def run_once(self, now: float) -> ResendCounts:
        """Handle one batch of unsent stubs, one batch of sent stubs, and one suspect.

        `now` is the time at the start of the turn. Then it runs with the book's clock, because
        sends may be slow: a claim after slow sends gets a whole lease.

        Raises what the database raises. Claimed stubs are then due again when the lease expires.
        """
        self._ahead = now - self._book.clock()
        self._intake.begin(now)
        # First: unsent stubs do not wait until the broker has answered about sent ones.
        unsent = self._unsent(DueKind.UNSENT)
        sent = self._sent()
        # Last and alone: a suspect may kill this process. Other suspects wait for later turns,
        # after the stubs that have become due meanwhile.
        return _sum(unsent, sent, self._unsent(DueKind.SUSPECT))

    def _now(self) -> float:
        return self._ahead + self._book.clock()

    def _unsent(self, kind: DueKind) -> ResendCounts:
        claims = self._intake.claims(kind, self._now())
        return _sum(self._sending(claims), self._ended(claims))

    def _sent(self) -> ResendCounts:
        """Check stubs that a broker acknowledged; send lost ones again."""
        now = self._now()
        claims = self._intake.claims(DueKind.SENT, now)
        stubs = claims.stubs
        states = self._states(stubs, now)
        lost = [s.message_id for s in stubs if states[s.seq] is DueState.SEND]
        again, held = self._send_again(stubs, lost) if lost else (ResendCounts(), set())
        waiting = [s for s in stubs if states[s.seq] is DueState.WAIT or s.message_id in held]
        self._postpone(waiting)
        looked = ResendCounts(rested=len(waiting), confirmed=self._end(stubs, states))
        return _sum(again, looked, self._ended(claims))

    def _end(self, stubs: Sequence[Stub], states: Mapping[int, DueState | None]) -> int:
        """End stubs that wait for no group any more; return how many of them are confirmed."""
        behind = [s.message_id for s in stubs if states[s.seq] is DueState.CONFIRM]
        if behind:
            self._due.confirm(behind, self._now())
        over = [s.message_id for s in stubs if states[s.seq] is DueState.GIVE_UP]
        if over:
            self._due.give_up(over, self._owner, self._now())
        return len(behind)

    def _send_again(
        self, stubs: Sequence[Stub], lost: Sequence[str]
    ) -> tuple[ResendCounts, set[str]]:
        """Send lost stubs again; return the counts, and the message ids that may not be sent yet.

        The stubs get a new lease, because the questions to brokers may have used most of the old
        one.
        """
        going, held = self._due.begin_again(lost, self._owner, self._now() + self._lease)
        return self._send([stub for stub in stubs if stub.message_id in going]), held

    def _sending(self, claims: ClaimedStubs) -> ResendCounts:
        """Send the claimed stubs. A held stub waits until the stub before it is due."""
        now = self._now()
        resting = defaultdict(list)
        for each in claims.held:
            until = each.until
            if until is None:
                until = now + self._policy.rest_of(_age(each.stub, now))
            resting[max(until, now + self._policy.backlog_wait)].append(each.stub.message_id)
        for time, message_ids in resting.items():
            self._due.postpone(message_ids, self._owner, time)
        return _sum(self._send(claims.stubs), ResendCounts(rested=len(claims.held)))

    def _ended(self, claims: ClaimedStubs) -> ResendCounts:
        """Escalate the used-up stubs, and count the claimed ones."""
        escalated, confirmed = self._escalate(claims.used_up, self._now())
        return ResendCounts(
            claimed=claims.claimed, confirmed=confirmed, escalated=escalated, is_full=claims.is_full
        )

    def _send(self, stubs: Sequence[Stub]) -> ResendCounts:
        """Send stubs in the order of their rows. The claim has counted these sends already."""
        if not stubs:
            return ResendCounts()
        going = sorted(stubs, key=lambda stub: stub.seq)
        began = self._now()
        outcomes = send_stubs(
            self._broker,
            going,
            self._policy.next_time,
            began,
            are_missed=True,
            confirm_to=self._book.notice_topic(),
            consumed_by=self._due.consumed_elsewhere([stub.message_id for stub in going]),
        )
        now = self._now()
        self._intake.fit(len(going), now - began)
        judged = self._intake.judge(going, outcomes, now)
        self._book.sends.record(judged, self._owner, now)
        tried = {outcome.message_id for outcome in outcomes}
        untried = [stub.message_id for stub in going if stub.message_id not in tried]
        if untried:
            self._due.postpone(untried, self._owner, now, untried=True)
        failed = sum(outcome.error is not None for outcome in outcomes)
        return ResendCounts(sent=len(outcomes) - failed, failed=failed, rested=len(untried))

    def _postpone(self, stubs: Sequence[Stub]) -> None:
        """Release stubs that wait for a consumer group. The wait grows with the age of a stub."""
        now = self._now()
        resting = defaultdict(list)
        for stub in stubs:
            resting[self._policy.rest_of(_age(stub, now))].append(stub.message_id)
        for seconds, message_ids in resting.items():
            self._due.postpone(message_ids, self._owner, now + seconds)

    def _escalate(self, stubs: Sequence[Stub], now: float) -> tuple[int, int]:
        """Escalate used-up stubs; return how many, and how many were confirmed instead.

        A stub is not escalated if each missing group has given it up: these have an escalation.
        """
        if not stubs:
            return 0, 0
        views = self._due.views([stub.message_id for stub in stubs], now)
        states: dict[int, DueState | None] = {}
        for stub in stubs:
            groups = tuple(
                GroupView(consumed, alive, passed=None, given_up=group in stub.given_up_by)
                for group in stub.required_groups
                for consumed, alive in [views.get((stub.message_id, group), (False, False))]
            )
            states[stub.seq] = over_state(groups) if groups else None
        telling = [stub for stub in stubs if states[stub.seq] is None]
        escalated = self._book.escalations.used_up(telling, self._owner, now) if telling else 0
        return escalated, self._end(stubs, states)

    def _states(self, stubs: Sequence[Stub], now: float) -> dict[int, DueState]:
        """Return, by row number, what to do with each claimed stub that was sent."""
        views = self._due.views([stub.message_id for stub in stubs], now) if stubs else {}
        progress: dict[tuple[str, str], Progress | None] = {}
        states = {}
        for stub in stubs:
            groups = []
            for group in stub.required_groups:
                consumed, alive = views.get((stub.message_id, group), (False, False))
                key = (group, stub.topic)
                if not consumed and key not in progress:
                    progress[key] = self._progress(*key)
                passed = True if consumed else self._has_passed(stub, progress[key])
                has_given_up = group in stub.given_up_by
                groups.append(GroupView(consumed, alive, passed, has_given_up))
            states[stub.seq] = due_state(stub, tuple(groups))
            if states[stub.seq] is DueState.SEND and _age(stub, now) < self._policy.told_after:
                topic = self._book.notice_topic()
                if (topic, topic) not in progress:
                    progress[topic, topic] = self._progress(topic, topic) if topic else {}
                if self._awaits_notices(stub, progress[topic, topic]):
                    states[stub.seq] = DueState.WAIT
            if states[stub.seq] is not DueState.WAIT:
                self._first_looks.forget(stub)
        return states

    def _awaits_notices(self, stub: Stub, notices: Progress | None) -> bool:
        """Say whether an unread notice may report that a seemingly lost message was consumed.

        Only notices that existed at the first check count, because new ones arrive all the time.
        """
        if notices is None:
            return True
        first = self._notice_looks.of(stub, notices)
        done = {queue: max(0, committed) for queue, (committed, _) in notices.items()}
        if any(done[queue] < end for queue, (_, end) in first.items() if queue in done):
            return True
        self._notice_looks.forget(stub)
        return False

    def _has_passed(self, stub: Stub, progress: Progress | None) -> bool | None:
        if stub.deliver_time is None or progress is None:
            return has_passed(stub, progress)
        return has_passed(stub, progress, self._first_looks.of(stub, progress))

    def _progress(self, group: str, topic: str) -> Progress | None:
        try:
            return self._broker.consumer_progress(group, topic)
        except NoRoute:
            return {}  # no broker has the topic, so no broker has the message
        except Exception as error:  # noqa: BLE001 - unknown progress decides nothing
            application_events.PROGRESS_UNREADABLE.log(
                log, level=level_of(error), group=group, topic=topic, error=error
            )
            return None


def _age(stub: Stub, now: float) -> float:
    """Return the seconds since a stub could first have been consumed."""
    return now - max(stub.create_time, stub.deliver_time or 0.0)


def _sum(*runs: ResendCounts) -> ResendCounts:
    """Return the sums of several parts of a run."""
    return ResendCounts(
        claimed=sum(each.claimed for each in runs),
        sent=sum(each.sent for each in runs),
        failed=sum(each.failed for each in runs),
        rested=sum(each.rested for each in runs),
        confirmed=sum(each.confirmed for each in runs),
        escalated=sum(each.escalated for each in runs),
        is_full=any(each.is_full for each in runs),
    )
