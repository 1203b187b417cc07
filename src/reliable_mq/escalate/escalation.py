"""Escalations, alerts and digests: their values, and the rules for when to send them. Pure.

An *escalation* is a problem that did not settle by itself: a stub that used up its sends, a dead
letter, a stuck stub, or the findings of a reconciliation run. A *notifier* (mail, webhook, log)
collects all open escalations for which it has no *alert*. It sends them together, as one *digest*.
Each escalation in a digest then has one alert for this notifier:

    GATHERED --tell--> TOLD

A digest is committed before it is sent, and does not change until it was sent. If the outcome of a
send is unknown, the same digest is sent again under the same id. An escalation that was closed
before the notifier gathered it (by a retry, or because the message was consumed) is not sent.
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
"""Most escalations that a digest lists one by one. Its sums count all of them."""


class EscalationKind(StrEnum):
    """Why a person is notified. These are the values of the column `kind`."""

    USED_UP = "sends used up"
    DEAD_LETTER = "dead letter"
    STUCK = "stuck"
    BACKLOG = "backlog"  # stuck stubs of a topic and group, beyond those escalated one by one
    RECONCILIATION = "reconciliation"  # a run has findings that no open escalation reports


class AlertState(IntEnum):
    """The state of an alert, as stored in the column `state`."""

    GATHERED = 0
    TOLD = 1


class AlertEvent(Enum):
    """An event that changes the state of an alert."""

    TELL = "tell"  # the digest was accepted


TRANSITIONS: Mapping[tuple[AlertState, AlertEvent], AlertState] = {
    (AlertState.GATHERED, AlertEvent.TELL): AlertState.TOLD,
}


def next_state(state: AlertState, event: AlertEvent) -> AlertState:
    """Return the state after `event`.

    Raises:
        UsageError: when the event is illegal in this state. Nothing has changed then.
    """
    return after(TRANSITIONS, state, event, f"an alert that is {state.name}")


class Escalation(msgspec.Struct, frozen=True, kw_only=True):
    """One problem that a person must know. `consumer_group` is set if it concerns one group only.

    `kind` is an `EscalationKind`, unless another program wrote another word into the table.
    `message_id` is empty for a backlog, which has many messages. For a reconciliation it is the id
    of the run.
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
        """The key of which only one escalation may be open at a time.

        The key of a stuck stub has no group: the stub is stuck once, for all groups together.
        """
        if self.kind == EscalationKind.BACKLOG:
            return open_key(self.kind, self.topic, self.consumer_group)
        group = "" if self.kind == EscalationKind.STUCK else self.consumer_group
        return open_key(self.kind, self.message_id, group)


def open_key(kind: str, name: str, group: str = "") -> str:
    """Return the value of the column `open_key` while an escalation is open.

    `name` is the message id, or the topic of a backlog.
    """
    return f"{kind}/{group}/{name}"


class EscalationCount(msgspec.Struct, frozen=True):
    """How many escalations of one kind, topic and consumer group a digest contains."""

    kind: str
    topic: str
    consumer_group: str
    count: int
    oldest: datetime


class NotifierQuery(msgspec.Struct, frozen=True):
    """Whether a notifier has work to do.

    Attributes:
        newest: the number (`seq`) of the newest escalation, open or closed.
        waits: the notifier has something to send.
        is_held: it may not send now: its next digest is not due yet, or another process has it.
    """

    newest: int
    waits: bool
    is_held: bool


class NotifierState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a notifier.

    Attributes:
        name: the notifier's name.
        waiting: number of escalations that it has not sent yet.
        failures: number of failed sends in a row.
        next_time: when it may send again. None: it has never tried to send.
        told_date: when it last sent a digest. None: never.
        note: the reason of its last failure.
    """

    name: str
    waiting: int = 0
    failures: int = 0
    next_time: datetime | None = None
    told_date: datetime | None = None
    note: str | None = None


class Digest(msgspec.Struct, frozen=True):
    """The escalations that a notifier sends together.

    Attributes:
        digest_id: 32 hexadecimal digits. A digest that is sent again keeps its id.
        application: the name of the application.
        time: when it was gathered, UTC.
        total: number of escalations. 0: the digest is a test.
        shares: the sums by kind, topic and group, the largest first.
        items: the first escalations, the oldest first, `DIGEST_ITEMS_MAX` at most.
    """

    digest_id: str
    application: str
    time: datetime
    total: int
    shares: tuple[EscalationCount, ...]
    items: tuple[Escalation, ...]

    @property
    def headline(self) -> str:
        """A summary in one line without line breaks: the number of escalations of each kind."""
        if not self.total:
            return f"[{self.application}] this is a test: it has no escalations"
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
    """Return the seconds until the next try of a notifier after `failures` failures in a row."""
    if failures < 1:
        raise UsageError("a wait follows a failure: give at least 1 failure")
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30), RETRY_SECONDS_MAX)


def next_digest_time(now: float, digest_time: float, cooldown: float) -> float:
    """Return when the next digest may go out, after one that was gathered at `digest_time`.

    The cooldown (seconds) counts from `digest_time`, not from `now`. After an outage of the mail
    server that is longer than the cooldown, the next digest therefore goes out at once.
    """
    return max(now, digest_time + cooldown)


def check_notifier(name: object, cooldown: object) -> None:
    """Check the name and the cooldown (seconds) of a notifier.

    Raises:
        ConfigurationError: when the name is empty, too long or not printable, or the cooldown is
            negative or no number.
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
