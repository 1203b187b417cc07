"""Notify people: gather escalations into digests, and let each notifier send its own digest.

Receives the time. Passes digests to notifiers, and writes the outcome to the database. The module
`escalation` decides what is sent and when. Any number of processes may run this; each notifier is
leased to one process at a time.
"""

import logging
import shlex
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from reliable_mq.command_words import typed
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ConfigurationError, error_text
from reliable_mq.escalate.escalation import (
    Digest,
    Escalation,
    EscalationKind,
    NotifierQuery,
    NotifierState,
    check_notifier,
)
from reliable_mq.telemetry import application_events
from reliable_mq.telemetry.message_facts import NO_KEY

log = logging.getLogger(__name__)

_WHAT_NOTIFIERS_RAISE = (Exception, SystemExit)
"""An uncaught SystemExit would end the thread silently, and with it the other notifiers."""
CLOSED_LOOK_SECONDS = 60.0
"""Seconds between two searches for stuck stubs and for escalations that have settled."""


class Notifier(Protocol):
    """Sends digests to people. The database identifies a notifier by its `name`."""

    @property
    def name(self) -> str:
        """1 to 64 printable characters, unique within one application."""
        ...

    @property
    def cooldown(self) -> float:
        """Seconds from one digest to the next. New escalations wait for the next digest."""
        ...

    def tell(self, digest: Digest) -> None:
        """Send a digest. A return without an exception means that the digest was accepted.

        Raise any exception when it was refused, or when the outcome is unknown. The same digest
        is then sent again later, under the same `digest_id`.
        """
        ...


class LogNotifier:
    """Writes one error line to the log for each escalation, without a cooldown.

    Args:
        where: returns the options with which the commands in the lines find the database, such as
            "--app examples.shop:mq".
    """

    name = "log"
    cooldown = 0.0

    def __init__(self, where: Callable[[], str] = lambda: "--app MODULE:OBJECT") -> None:
        self._where = where

    def tell(self, digest: Digest) -> None:
        """Write one line for each escalation that the digest lists, and one for all others."""
        for each in digest.items:
            group = each.consumer_group or NO_KEY
            if each.kind == EscalationKind.BACKLOG:
                look = self._typed("stub list --status unconfirmed --topic", each.topic)
                application_events.ESCALATION_BACKLOG.log(
                    log,
                    kind=each.kind,
                    topic=each.topic,
                    group=group,
                    reason=each.reason,
                    command=look,
                )
                continue
            if each.kind == EscalationKind.RECONCILIATION:
                application_events.ESCALATION_RECONCILIATION.log(
                    log, kind=each.kind, run_id=each.message_id, reason=each.reason
                )
                continue
            application_events.ESCALATION.log(
                log,
                kind=each.kind,
                message_id=each.message_id,
                topic=each.topic,
                key=each.message_key or NO_KEY,
                group=group,
                reason=each.reason,
                command=self._typed("stub show", each.message_id),
                remedy=self._retry_command(each),
            )
        if not digest.total:
            application_events.ESCALATION_TEST.log(log, headline=digest.headline)
        elif digest.total > len(digest.items):
            command = self._typed("stub list --escalated")
            application_events.ESCALATIONS_MORE.log(log, headline=digest.headline, command=command)

    def _retry_command(self, each: Escalation) -> str:
        """Return the command that sends the message again; a dead letter goes to its group only."""
        if each.kind == EscalationKind.DEAD_LETTER:
            group = ("--group", each.consumer_group) if each.consumer_group else ()
            return self._typed("dlq retry", each.message_id, *group)
        return self._typed("stub retry", each.message_id)

    def _typed(self, verbs: str, *words: str) -> str:
        """Return a command to paste. Each word is quoted, so a shell does not interpret it."""
        return typed(" ".join(filter(None, (verbs, shlex.join(words)))), self._where())


def check_notifiers(notifiers: Sequence[Notifier]) -> tuple[Notifier, ...]:
    """Check the notifiers of an application, and return them.

    Raises:
        ConfigurationError: when an object is no notifier, two notifiers share a name, or a name or
            a cooldown is invalid.
    """
    if isinstance(notifiers, str) or not isinstance(notifiers, Sequence):
        raise ConfigurationError(f"notifiers is {notifiers!r:.200}: give a list of them")
    for each in notifiers:
        if isinstance(each, type) or not callable(getattr(each, "tell", None)):
            raise ConfigurationError(
                f"notifier {each!r:.200} is not an object with `name`, `cooldown` and "
                "`tell(digest)`"
            )
        check_notifier(getattr(each, "name", None), getattr(each, "cooldown", None))
    names = [each.name for each in notifiers]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"two notifiers share a name: {', '.join(sorted(names))}")
    return tuple(notifiers)


class AlertBook(Protocol):
    """The database operations on alerts; see `sql_alerts`."""

    def notifier_states(self, notifiers: Collection[str]) -> dict[str, NotifierState]: ...

    def find_work(self, notifier: str, now: float, after: int) -> NotifierQuery: ...

    def claim(
        self, notifier: str, now: float, owner: str, lease: float, digest_id: str, after: int
    ) -> Digest | None: ...

    def record_sent(
        self, notifier: str, digest: Digest, owner: str, now: float, cooldown: float
    ) -> bool: ...

    def record_failure(self, notifier: str, owner: str, why: str, now: float) -> float: ...


class StuckBook(Protocol):
    """The database operations on stuck stubs; see `sql_stuck`."""

    def take_turn(self, now: float, next_time: float) -> bool: ...

    def escalate_stuck(self, now: float, age: float) -> int: ...

    def close_settled(self, now: float) -> int: ...


class AlertCounts(msgspec.Struct, frozen=True):
    """The result of one run. `stuck` counts stubs; `sent` and `failed` count digests."""

    stuck: int = 0
    sent: int = 0
    failed: int = 0


class Alerts:
    """Searches for stuck stubs, and lets each notifier send its digest.

    Invariant A2: it sends only digests that it has claimed under its own name, and each digest is
    committed before it is sent.

    Args:
        book: the alerts in the database.
        stuck: searches for stuck stubs and settled escalations.
        notifiers: the notifiers that send.
        owner: the name of this process, different for each process.
        lease: seconds after which another process may send a digest that this process claimed.
            Longer than a notifier takes to send.
        stuck_after: age at which a stub is stuck, seconds.
        new_id: makes the ids of digests.

    Raises:
        ConfigurationError: when two notifiers share a name, or a name or cooldown is invalid.
    """

    def __init__(
        self,
        book: AlertBook,
        stuck: StuckBook,
        notifiers: Sequence[Notifier],
        *,
        owner: str,
        lease: float,
        stuck_after: float,
        new_id: Callable[[], str],
    ) -> None:
        self._book = book
        self._stuck = stuck
        self._notifiers = {each.name: each for each in check_notifiers(notifiers)}
        self._owner = owner
        self._lease = lease
        self._stuck_after = stuck_after
        self._new_id = new_id
        self._look_at = 0.0
        #: For each notifier, the escalation up to which it has sent all. Cleared regularly: a row
        #: with a lower number may be committed later.
        self._seen: dict[str, int] = {}

    def run_once(self, now: float) -> AlertCounts:
        """Search for stuck stubs when a search is due, and send the digests that are due.

        Raises what the database raises. A claimed digest is then sent after its lease has expired.
        """
        stuck = self._escalate_stuck(now)
        sent, failed = self.send_due_digests(now)
        return AlertCounts(stuck, sent, failed)

    def send_due_digests(self, now: float, but: Collection[str] = ()) -> tuple[int, int]:
        """Send the digests that are due, except those of the notifiers in `but`.

        Returns how many were sent, and how many failed.
        """
        sent = failed = 0
        for name, notifier in sorted(self._notifiers.items()):
            digest = None if name in but else self._claimed(name, now)
            if digest is not None:
                done = self._send_digest(notifier, digest, now)
                sent, failed = sent + done, failed + (not done)
        return sent, failed

    def _claimed(self, name: str, now: float) -> Digest | None:
        """Claim and return the digest that a notifier may send now; None: there is none."""
        after = self._seen.get(name, 0)
        look = self._book.find_work(name, now, after)
        if not look.waits:
            self._seen[name] = look.newest
        if not look.waits or look.is_held:
            return None
        return self._book.claim(name, now, self._owner, self._lease, self._new_id(), after)

    def test(self, application: str, now: float) -> dict[str, str]:
        """Let every notifier send a test; return the error of each, by name. "": no error."""
        outcome = {}
        for name, notifier in self._notifiers.items():
            test = Digest(self._new_id(), application, utc_datetime(now), 0, (), ())
            try:
                notifier.tell(test)
            except _WHAT_NOTIFIERS_RAISE as error:
                outcome[name] = error_text(error)
            else:
                outcome[name] = ""
        return outcome

    def notifier_states(self) -> dict[str, NotifierState]:
        """Return the state of each notifier by name: ours, and those that the database knows."""
        return self._book.notifier_states(self._notifiers)

    def _escalate_stuck(self, now: float) -> int:
        if now < self._look_at:
            return 0
        self._look_at = now + min(CLOSED_LOOK_SECONDS, self._stuck_after / 10)
        self._seen.clear()
        if not self._stuck.take_turn(now, self._look_at):
            return 0
        self._stuck.close_settled(now)
        return self._stuck.escalate_stuck(now, self._stuck_after)

    def _send_digest(self, notifier: Notifier, digest: Digest, now: float) -> bool:
        try:
            notifier.tell(digest)
        except _WHAT_NOTIFIERS_RAISE as error:
            why = error_text(error)
            wait = self._book.record_failure(notifier.name, self._owner, why, now)
            application_events.DIGEST_NOT_SENT.log(
                log,
                notifier=notifier.name,
                digest_id=digest.digest_id,
                headline=digest.headline,
                seconds=wait,
                error=why,
            )
            return False
        self._book.record_sent(notifier.name, digest, self._owner, now, notifier.cooldown)
        return True
