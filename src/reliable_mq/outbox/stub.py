"""The life of a stub, as a table. Pure: knows neither the database nor the broker.

    UNCONFIRMED --confirm--> CONFIRMED
    UNCONFIRMED --void-----> VOIDED      --retry--> UNCONFIRMED

Sends do not change the status. A send raises `count`; an acknowledged send records the position.
An acknowledgement may be recorded after the message was consumed: a consumer can be faster than the
row. Therefore every status records a position. A settled stub never becomes due.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import Enum

import msgspec

from reliable_mq.database.row_values import TEXT_LENGTH_MAX, StubStatus
from reliable_mq.decodable import decodable
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.message import (
    CONFIRM_TO,
    CONSUMED_BY,
    CONTENT_TYPE,
    RESENT,
    Message,
    named_message,
)
from reliable_mq.transitions import after

_KNOWN_LENGTH_MAX = 4_096  # longer lists of names are left out: a record's properties are bounded


class StubEvent(Enum):
    """What can happen to a stub after its transaction committed."""

    SENT = "sent"  # the broker acknowledged a send
    SEND_FAILED = "send failed"  # refused or unanswered: the message may or may not be stored
    CONFIRM = "confirm"  # every required group consumed it; without one, the broker stored it
    EXHAUSTED = "exhausted"  # a consumer group gave it up and made it a dead letter
    ESCALATE = "escalate"  # all sends are used up: an escalation informs a person
    RETRY = "retry"  # by a person: its sends start again
    VOID = "void"  # by a person: it must not be sent again


UNCONFIRMED, CONFIRMED, VOIDED = StubStatus
TRANSITIONS: Mapping[tuple[StubStatus, StubEvent], StubStatus] = {
    (UNCONFIRMED, StubEvent.SENT): UNCONFIRMED,
    (UNCONFIRMED, StubEvent.SEND_FAILED): UNCONFIRMED,
    (UNCONFIRMED, StubEvent.CONFIRM): CONFIRMED,
    (UNCONFIRMED, StubEvent.EXHAUSTED): UNCONFIRMED,
    (UNCONFIRMED, StubEvent.ESCALATE): UNCONFIRMED,
    (UNCONFIRMED, StubEvent.RETRY): UNCONFIRMED,
    (UNCONFIRMED, StubEvent.VOID): VOIDED,
    (CONFIRMED, StubEvent.SENT): CONFIRMED,
    (CONFIRMED, StubEvent.SEND_FAILED): CONFIRMED,
    (VOIDED, StubEvent.SENT): VOIDED,
    (VOIDED, StubEvent.SEND_FAILED): VOIDED,
    (VOIDED, StubEvent.RETRY): UNCONFIRMED,
}


def next_status(status: StubStatus, event: StubEvent) -> StubStatus:
    """Return the status after `event`.

    Raises:
        UsageError: the event is illegal in this status; nothing has changed.
    """
    return after(TRANSITIONS, status, event, f"a stub that is {status.name}")


def statuses_before(event: StubEvent) -> tuple[StubStatus, ...]:
    """Return the statuses in which `event` is legal. The statements build their WHERE from it."""
    return tuple(status for status, known in TRANSITIONS if known is event)


class Position(msgspec.Struct, frozen=True):
    """Where the broker stored the last acknowledged send of a stub."""

    broker_name: str
    queue_id: int
    offset: int


@decodable
class Stub(msgspec.Struct, frozen=True, kw_only=True):
    """A committed row of the message stub table, with the columns that a send needs.

    Times are seconds since the epoch. `count` is the number of sends so far, including failed ones.
    `seq` and `create_time` are 0 until the row is written. `flaw` says why the row cannot be read:
    another program changed it. Such a stub is never sent; its tries count, and in the end a person
    is informed. `given_up_by` names the required groups that gave it up as a dead letter.
    """

    seq: int
    message_id: str
    topic: str
    content: bytes
    tag: str = ""
    message_key: str = ""
    ordering_key: str = ""
    content_type: str = ""
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    count: int = 0
    required_groups: tuple[str, ...] = ()
    create_time: float = 0.0
    deliver_time: float | None = None
    position: Position | None = None
    given_up_by: tuple[str, ...] = ()
    flaw: str = ""


def message_of(
    stub: Stub,
    delay: timedelta | None = None,
    *,
    is_missed: bool = False,
    confirm_to: str = "",
    consumed_by: Sequence[str] = (),
) -> Message:
    """Return the message of a stub. Its id is always the same, so that consumers know a resend.

    Args:
        stub: the stub.
        delay: how much later than now the message arrives; None: at once.
        is_missed: the stub was not confirmed in time. Consumers are asked to look in their
            database: what they remember elsewhere may come from a commit that was lost.
        confirm_to: the topic for notices of consumer groups with other databases.
        consumed_by: the groups that have reported consumption, perhaps long ago.
    """
    properties = dict(stub.properties)
    if confirm_to and stub.required_groups:
        properties[CONFIRM_TO] = f"{confirm_to}:{groups_text(stub.required_groups)}"
    if consumed_by and len(known := groups_text(tuple(consumed_by))) <= _KNOWN_LENGTH_MAX:
        properties[CONSUMED_BY] = f"{int(stub.create_time)}:{known}"
    if is_missed:
        properties[RESENT] = "true"
    if stub.content_type:
        properties[CONTENT_TYPE] = stub.content_type
    return named_message(
        topic=stub.topic,
        body=stub.content,
        tag=stub.tag,
        keys=(stub.message_key,) if stub.message_key else (),
        message_id=stub.message_id,
        ordering_key=stub.ordering_key,
        delay=delay,
        properties=properties,
    )


def check_texts(tag: str, message_key: str, ordering_key: str) -> None:
    """Check the short texts of a message for filters, searches and the columns of the stub.

    Raises:
        MessageRefused: a text is too long or not printable, or no consumer can filter by the tag.
        UsageError: a value is not a text.
    """
    for name, text in (("tag", tag), ("key", message_key), ("ordering_key", ordering_key)):
        check_short_text(name, text)
    if "||" in tag or tag == "*" or tag != tag.strip():
        raise MessageRefused(
            f"tag {tag!r}: no consumer can subscribe to it: || joins tags, and * means all"
        )


def check_short_text(name: str, text: str) -> None:
    """Check one text for searches and columns; see `check_texts`.

    Raises:
        MessageRefused: it is too long or not printable.
        UsageError: it is not a text.
    """
    if not isinstance(text, str):
        raise UsageError(f"{name}={text!r:.100}: it must be text")
    if len(text) > TEXT_LENGTH_MAX:
        raise MessageRefused(
            f"the {name} has {len(text)} characters, {TEXT_LENGTH_MAX} are allowed"
        )
    if not text.isprintable():
        raise MessageRefused(f"the {name} {text!r} holds a character that cannot be printed")


def groups_text(groups: tuple[str, ...]) -> str:
    """Return consumer groups as the column `required_groups` stores them: "a,b", sorted."""
    return ",".join(sorted(set(groups)))


def groups_of(text: str) -> tuple[str, ...]:
    """Return the consumer groups of the column `required_groups`."""
    return tuple(text.split(",")) if text else ()


class DueState(Enum):
    """What the resend scheduler does with a stub at its resend time."""

    SEND = "send"
    WAIT = "wait"  # a group with a backlog has not reached it, or an attempt is running
    CONFIRM = "confirm"  # every required group has consumed it; only the status is behind
    GIVE_UP = "give up"  # each group has consumed it or made it a dead letter: all is done


class GroupView(msgspec.Struct, frozen=True):
    """What is known about one required group and one stub.

    `consumed`: its consume log says CONSUMED. `attempt_alive`: its log is RECEIVED, and the lease
    has not expired. `passed`: the group's progress has passed the stub's position; None when the
    broker did not answer. `given_up`: the group has made it a dead letter.
    """

    consumed: bool
    attempt_alive: bool
    passed: bool | None
    given_up: bool = False


def over_state(groups: tuple[GroupView, ...]) -> DueState | None:
    """Return how a stub ends when no required group is left to wait for; None: one is left."""
    if any(not (group.consumed or group.given_up) for group in groups):
        return None
    return DueState.CONFIRM if all(group.consumed for group in groups) else DueState.GIVE_UP


def due_state(stub: Stub, groups: tuple[GroupView, ...]) -> DueState:
    """Decide about a stub that is UNCONFIRMED, below the maximum and past its resend time.

    A stub without a position is sent. Otherwise it is sent under two conditions (design, section
    2). At least one required group has not consumed it. Every such group has passed it, and has no
    live attempt. A group that gave it up is not waited for, but receives a resend for the others.

    Args:
        stub: the stub.
        groups: one view for each required group; not used while there is no position.
    """
    if stub.position is None or not stub.required_groups:
        return DueState.SEND
    over = over_state(groups)
    if over is not None:
        return over
    waited_for = [group for group in groups if not (group.consumed or group.given_up)]
    if all(group.passed and not group.attempt_alive for group in waited_for):
        return DueState.SEND
    return DueState.WAIT
