"""A dead letter of a consumer group, and its present state. Pure.

Receives the broker's record and the state in the databases. Returns values that a person sees.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from reliable_mq.client.consuming.settling import DEAD_LETTER_REASON
from reliable_mq.escalate.sql_dead_letters import DeadLetterState
from reliable_mq.message import ReceivedMessage
from reliable_mq.wire.properties import RETRY_TOPIC

RETRIED_SINCE = "retried since"
"""The standing of a dead letter that was sent to its group again, and has not come back."""

CONSUMED_SINCE = "consumed since"
"""The standing of a dead letter that needs no retry: its group has consumed the message."""


class DeadLetter(msgspec.Struct, frozen=True):
    """The newest dead letter of a message and group. `state` None: no database was asked."""

    group: str
    message: ReceivedMessage
    state: DeadLetterState | None = None

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        return self.message.properties.get(RETRY_TOPIC, self.message.topic)

    @property
    def reason(self) -> str:
        """Why the group gave the message up. Empty when the record names no reason."""
        return self.message.properties.get(DEAD_LETTER_REASON, "")

    @property
    def time(self) -> datetime:
        """When the group gave the message up, UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self.message.store_time_ms)

    @property
    def status(self) -> str:
        """The present state of the dead letter, in a word or two."""
        state = self.state
        if state is None:
            return "unknown"
        if state.consumed is not None:
            return CONSUMED_SINCE
        if state.is_voided:
            return "voided"
        if state.retried is not None and state.retried > self.time:
            return RETRIED_SINCE
        return "waiting"


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for dead letters: all conditions must hold. An empty or None field is none."""

    group: str = ""
    topic: str = ""
    key: str = ""
    since: datetime | None = None
    until: datetime | None = None
    reason: str = ""

    def matches(self, dead_letter: DeadLetter) -> bool:
        """Say whether a dead letter matches the filter."""
        return (
            (not self.topic or dead_letter.topic == self.topic)
            and (not self.key or self.key in dead_letter.message.keys)
            and (self.since is None or dead_letter.time >= self.since)
            and (self.until is None or dead_letter.time < self.until)
            and self.reason in dead_letter.reason
        )


def newest(dead_letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Return the newest dead letter of each message and group."""
    found: dict[tuple[str, str], DeadLetter] = {}
    for dead_letter in dead_letters:
        key = (dead_letter.group, dead_letter.message.message_id)
        if key not in found or found[key].time <= dead_letter.time:
            found[key] = dead_letter
    return list(found.values())
