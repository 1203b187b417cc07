"""The resend scheduler: what the relay could not settle (P2).

Receives the time; hands on sends, confirmations that were left behind, and escalations. Decides
nothing by itself: whether a stub is due is `outbox.stub.due_state`'s to say, when it is next is
the policy's. Any number of schedulers may run; a stub is claimed by one of them at a time.
"""

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from reliable_mq.errors import NoRoute
from reliable_mq.message import MessageQueue
from reliable_mq.outbox.relay import Sender, SendOutcome, send_stubs
from reliable_mq.outbox.stub import DueState, GroupView, Stub, due_state
from reliable_mq.resend.policy import ResendPolicy

log = logging.getLogger(__name__)

Progress = dict[MessageQueue, tuple[int, int]]
"""(committed, maximum) offset of a consumer group by queue."""


class Broker(Sender, Protocol):
    """What the scheduler needs of a client."""

    def consumer_progress(self, group: str, topic: str) -> Progress:
        """Return how far a consumer group has come in a topic."""
        ...


class DueBook(Protocol):
    """What the scheduler needs of the database; see `sql_due`."""

    def claim(self, now: float, owner: str, lease: float, limit: int) -> list[Stub]: ...

    def claim_used_up(self, now: float, owner: str, lease: float, limit: int) -> list[Stub]: ...

    def views(
        self, message_ids: Collection[str], now: float
    ) -> dict[tuple[str, str], tuple[bool, bool]]: ...

    def confirm(self, message_ids: Sequence[str], now: float) -> None: ...

    def rest(self, message_ids: Sequence[str], owner: str, next_time: float) -> None: ...

    def told(self, message_ids: Sequence[str], owner: str, now: float) -> None: ...


class SendBook(Protocol):
    """What the scheduler needs of the table of stubs; see `outbox.sql_stubs`."""

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None: ...


class Notifier(Protocol):
    """Tells a person."""

    def escalated(self, stubs: Sequence[Stub]) -> None:
        """Tell of stubs that were sent often enough and are not confirmed.

        Raises whatever it likes when nobody could be told; it is called again when the claim's
        lease has passed.
        """
        ...


class LogNotifier:
    """Tells by a line of the log for each stub."""

    def escalated(self, stubs: Sequence[Stub]) -> None:
        """Write one error line for each stub."""
        for stub in stubs:
            log.error(
                "stub %s of topic %s (key %r) is not confirmed after %d sends; see "
                "`reliable-mq stub show %s`, then retry or void it",
                *(stub.message_id, stub.topic, stub.message_key, stub.count, stub.message_id),
            )


class ResendCounts(msgspec.Struct, frozen=True):
    """What one run did with the stubs it claimed."""

    claimed: int = 0
    sent: int = 0
    failed: int = 0
    rested: int = 0
    confirmed: int = 0
    escalated: int = 0


class Scheduler:
    """Looks after stubs that are due.

    Invariant: it writes only to stubs that it claimed, under its own name.

    Args:
        due: claims.
        stubs: records what sends came to.
        broker: sends, and knows how far consumer groups have come.
        policy: when the next send is due, and how many there are.
        notifier: tells a person.
        owner: this scheduler's name; no two may share it.
        lease: seconds for which a claim holds; longer than a send with all its retries.
        batch: most stubs claimed at once.
    """

    def __init__(
        self,
        due: DueBook,
        stubs: SendBook,
        broker: Broker,
        policy: ResendPolicy,
        notifier: Notifier,
        *,
        owner: str,
        lease: float,
        batch: int,
    ) -> None:
        self._due = due
        self._stubs = stubs
        self._broker = broker
        self._policy = policy
        self._notifier = notifier
        self._owner = owner
        self._lease = lease
        self._batch = batch

    def run_once(self, now: float) -> ResendCounts:
        """Claim one batch of due stubs and one of used-up ones, and deal with each.

        Raises whatever the database raises; what was claimed is due again when the lease ends.
        """
        stubs = self._due.claim(now, self._owner, self._lease, self._batch)
        states = self._states(stubs, now)
        sent, failed = self._send([s for s in stubs if states[s.seq] is DueState.SEND], now)
        resting = [s.message_id for s in stubs if states[s.seq] is DueState.WAIT]
        if resting:
            self._due.rest(resting, self._owner, now + self._policy.backlog_wait)
        behind = [s.message_id for s in stubs if states[s.seq] is DueState.CONFIRM]
        used_up = self._due.claim_used_up(now, self._owner, self._lease, self._batch)
        told, behind_too = self._escalate(used_up, now)
        if behind or behind_too:
            self._due.confirm(behind + behind_too, now)
        return ResendCounts(
            claimed=len(stubs) + len(used_up),
            sent=sent,
            failed=failed,
            rested=len(resting),
            confirmed=len(behind) + len(behind_too),
            escalated=told,
        )

    def _send(self, stubs: Sequence[Stub], now: float) -> tuple[int, int]:
        if not stubs:
            return 0, 0
        outcomes = send_stubs(self._broker, stubs, self._policy.next_time, now)
        self._stubs.record(outcomes, self._owner, now)
        tried = {outcome.message_id for outcome in outcomes}
        untried = [stub.message_id for stub in stubs if stub.message_id not in tried]
        if untried:
            self._due.rest(untried, self._owner, now)
        failed = sum(outcome.error is not None for outcome in outcomes)
        return len(outcomes) - failed, failed

    def _escalate(self, stubs: Sequence[Stub], now: float) -> tuple[int, list[str]]:
        """Tell a person of used-up stubs; return how many, and which need no telling."""
        if not stubs:
            return 0, []
        views = self._due.views([stub.message_id for stub in stubs], now)
        consumed: list[Stub] = []
        telling: list[Stub] = []
        for stub in stubs:
            logs = [views.get((stub.message_id, group)) for group in stub.required_groups]
            done = bool(logs) and all(view is not None and view[0] for view in logs)
            (consumed if done else telling).append(stub)
        settled = [stub.message_id for stub in consumed]
        if not telling:
            return 0, settled
        try:
            self._notifier.escalated(telling)
        except Exception:
            log.exception("nobody could be told of %d stubs; tried again later", len(telling))
            return 0, settled
        self._due.told([stub.message_id for stub in telling], self._owner, now)
        return len(telling), settled

    def _states(self, stubs: Sequence[Stub], now: float) -> dict[int, DueState]:
        """Return what to do with each claimed stub, by its row."""
        asked = [stub for stub in stubs if stub.position is not None and stub.required_groups]
        views = self._due.views([stub.message_id for stub in asked], now) if asked else {}
        progress: dict[tuple[str, str], Progress | None] = {}
        states = {}
        for stub in stubs:
            groups = []
            for group in stub.required_groups if stub.position is not None else ():
                consumed, alive = views.get((stub.message_id, group), (False, False))
                key = (group, stub.topic)
                if not consumed and key not in progress:
                    progress[key] = self._progress(*key)
                passed = True if consumed else has_passed(stub, progress[key])
                groups.append(GroupView(consumed, alive, passed))
            states[stub.seq] = due_state(stub, tuple(groups))
        return states

    def _progress(self, group: str, topic: str) -> Progress | None:
        try:
            return self._broker.consumer_progress(group, topic)
        except NoRoute:
            return {}  # the topic is nowhere: neither is the message
        except Exception as error:  # noqa: BLE001 - a broker that cannot be asked decides nothing
            log.warning("progress of group %s in topic %s: %s", group, topic, error)
            return None


def has_passed(stub: Stub, progress: Progress | None) -> bool | None:
    """Say whether a group has gone past the place where the broker stored a stub's message.

    None when the broker could not be asked. A place that does not exist any more (its queue is
    gone, or ends before it) is passed: nobody will find the message there. A delayed message is
    stored in another topic first, so for it the group must have caught up with everything.
    """
    position = stub.position
    if progress is None or position is None:
        return None
    if stub.deliver_time is not None:
        return all(committed >= maximum for committed, maximum in progress.values())
    queue = MessageQueue(stub.topic, position.broker_name, position.queue_id)
    if queue not in progress:
        return True
    committed, maximum = progress[queue]
    return maximum <= position.offset or committed > position.offset
