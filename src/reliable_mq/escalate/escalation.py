"""What a person must know, how it is gathered, and when it is told. Pure.

An *escalation* is something that did not settle by itself: a stub that was sent as often as
allowed, a dead letter, a stub that is stuck, what a reconciliation has found. Each *notifier*
(mail, webhook, log) tells of all that are open and that it has no *alert* of, at once, in a
*digest*; then it has one of each:

    GATHERED --tell--> TOLD

A digest is committed before it is told and stays as it is until it is told: when nobody knows
whether it arrived, it goes out once more under the same id. What was closed before a notifier came
to it (a retry, or the message itself, was faster) is not told.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import Enum, IntEnum, StrEnum

import msgspec

from reliable_mq.database.row_values import NOTIFIER_LENGTH_MAX
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.transitions import after

FIRST_RETRY_SECONDS = 5.0
RETRY_SECONDS_MAX = 600.0
DIGEST_ITEMS_MAX = 50
"""Escalations that a digest names one by one; all of them are in its sums."""


class EscalationKind(StrEnum):
    """Why a person is told; the words of the column `kind`."""

    USED_UP = "sends used up"
    DEAD_LETTER = "dead letter"
    STUCK = "stuck"
    BACKLOG = "backlog"  # the stubs of a topic and group that are stuck, beyond those told already
    RECONCILIATION = "reconciliation"  # a run has found what nobody was told of


class AlertState(IntEnum):
    """What the column `state` of an alert holds."""

    GATHERED = 0
    TOLD = 1


class AlertEvent(Enum):
    """What can happen to an alert."""

    TELL = "tell"  # the digest was accepted


TRANSITIONS: Mapping[tuple[AlertState, AlertEvent], AlertState] = {
    (AlertState.GATHERED, AlertEvent.TELL): AlertState.TOLD,
}


def next_state(state: AlertState, event: AlertEvent) -> AlertState:
    """Return the state after `event`.

    Raises:
        UsageError: when the event is illegal in this state; nothing has changed then.
    """
    return after(TRANSITIONS, state, event, f"an alert that is {state.name}")


class Escalation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a person must know. `consumer_group` is empty unless it is one group's.

    `kind` is an `EscalationKind`, unless somebody wrote another word into the table. A backlog is
    of no one message: its `message_id` is empty. That of a reconciliation is the id of the run.
    """

    kind: str
    message_id: str
    topic: str
    reason: str
    consumer_group: str = ""
    message_key: str = ""
    create_date: datetime | None = None

    @property
    def open_key(self) -> str:
        """What may be open once at a time: a stub is stuck once, whichever groups it waits for."""
        if self.kind == EscalationKind.BACKLOG:
            return open_key(self.kind, self.topic, self.consumer_group)
        group = "" if self.kind == EscalationKind.STUCK else self.consumer_group
        return open_key(self.kind, self.message_id, group)


def open_key(kind: str, name: str, group: str = "") -> str:
    """Return the value of the column `open_key` while an escalation is open.

    `name` is what it is open of: a message's id, or the topic of a backlog.
    """
    return f"{kind}/{group}/{name}"


class EscalationCount(msgspec.Struct, frozen=True):
    """How many escalations of one kind, topic and consumer group a digest tells of."""

    kind: str
    topic: str
    consumer_group: str
    count: int
    oldest: datetime


class NotifierQuery(msgspec.Struct, frozen=True):
    """What a notifier may have to do.

    Attributes:
        newest: the last escalation there was, whatever became of it.
        waits: there is something that it has yet to tell.
        is_held: but not now: its next digest may not go out yet, or another process tells it.
    """

    newest: int
    waits: bool
    is_held: bool


class NotifierState(msgspec.Struct, frozen=True, kw_only=True):
    """How a notifier stands.

    Attributes:
        name: the notifier's.
        waiting: escalations that it has yet to tell.
        failures: how often in a row its digest was not told.
        next_time: when it may tell again; None: it never told.
        told_date: when it last told.
        note: why it failed last.
    """

    name: str
    waiting: int = 0
    failures: int = 0
    next_time: datetime | None = None
    told_date: datetime | None = None
    note: str | None = None


class Digest(msgspec.Struct, frozen=True):
    """What a notifier tells at once.

    Attributes:
        digest_id: 32 hexadecimal digits; the same when the same digest is told once more.
        application: the name of the application.
        time: when it was gathered, UTC.
        total: how many escalations it tells of; 0: it is a test.
        shares: the sums, the largest first.
        items: the first escalations one by one, the oldest first; at most `DIGEST_ITEMS_MAX`.
    """

    digest_id: str
    application: str
    time: datetime
    total: int
    shares: tuple[EscalationCount, ...]
    items: tuple[Escalation, ...]

    @property
    def headline(self) -> str:
        """One line without line breaks: how many, and of what."""
        if not self.total:
            return f"[{self.application}] this is a test: it tells of nothing"
        counts: dict[str, int] = dict.fromkeys(EscalationKind, 0)
        for share in self.shares:
            counts[share.kind] = counts.get(share.kind, 0) + share.count
        parts = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        of_many = {
            kind: counts[kind] for kind in (EscalationKind.BACKLOG, EscalationKind.RECONCILIATION)
        }
        sums = [(self.total - sum(of_many.values()), "message")]
        sums += [(count, str(kind)) for kind, count in of_many.items()]
        what = " and ".join(f"{count} {word}{'s'[: count > 1]}" for count, word in sums if count)
        verb = "waits" if self.total == 1 else "wait"
        return f"[{self.application}] {what} {verb} for a person: {parts}"


def retry_wait(failures: int) -> float:
    """Return the seconds until a notifier that failed so often in a row is tried again."""
    if failures < 1:
        raise UsageError("the wait follows a failure: there is at least 1")
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30), RETRY_SECONDS_MAX)


def next_digest_time(now: float, digest_time: float, cooldown: float) -> float:
    """Return when the next digest may go out, after one that was gathered at `digest_time`.

    The cooldown counts from there and not from `now`: what came while a mail server was down for
    longer than the cooldown goes out at once when it is back.
    """
    return max(now, digest_time + cooldown)


def check_notifier(name: object, cooldown: object) -> None:
    """Check what a notifier says of itself.

    Raises:
        ConfigurationError: when its name is empty, too long or not printable, or its cooldown is
            negative.
    """
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= NOTIFIER_LENGTH_MAX
        or not name.isprintable()
    ):
        raise ConfigurationError(
            f"notifier {name!r}: a name has 1..{NOTIFIER_LENGTH_MAX} printable characters"
        )
    if not (isinstance(cooldown, int | float) and cooldown >= 0):
        raise ConfigurationError(
            f"notifier {name}: cooldown={cooldown!r} must be 0 or more seconds"
        )
