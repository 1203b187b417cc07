"""A dead letter of a consumer group, and what has become of it. Pure.

Receives what the broker stored and what the databases know; hands on what a person sees of it.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from reliable_mq.client.consuming.settling import DEAD_LETTER_REASON
from reliable_mq.escalate.sql_dead_letters import DeadLetterState
from reliable_mq.message import ReceivedMessage
from reliable_mq.wire.properties import RETRY_TOPIC

CONSUMED_SINCE = "consumed since"
"""Where a letter stands that nobody needs to retry."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter: the newest of a message and group. `state` None: no database was asked."""

    group: str
    message: ReceivedMessage
    state: DeadLetterState | None = None

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        return self.message.properties.get(RETRY_TOPIC, self.message.topic)

    @property
    def reason(self) -> str:
        """Why it was given up; empty when whoever did said nothing."""
        return self.message.properties.get(DEAD_LETTER_REASON, "")

    @property
    def time(self) -> datetime:
        """When it was given up."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self.message.store_time_ms)

    @property
    def standing(self) -> str:
        """What has become of it, in a word or two."""
        state = self.state
        if state is None:
            return "unknown"
        if state.consumed is not None:
            return CONSUMED_SINCE
        if state.is_voided:
            return "voided"
        if state.retried is not None and state.retried > self.time:
            return "retried since"
        return "waiting"


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that fit all that is given; what is empty or None says nothing."""

    group: str = ""
    topic: str = ""
    key: str = ""
    since: datetime | None = None
    until: datetime | None = None
    reason: str = ""

    def fits(self, letter: DeadLetter) -> bool:
        """Say whether a letter is one of those that are meant."""
        return (
            (not self.topic or letter.topic == self.topic)
            and (not self.key or self.key in letter.message.keys)
            and (self.since is None or letter.time >= self.since)
            and (self.until is None or letter.time < self.until)
            and self.reason in letter.reason
        )


def newest(letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Return the newest letter of each message and group."""
    found: dict[tuple[str, str], DeadLetter] = {}
    for letter in letters:
        key = (letter.group, letter.message.message_id)
        if key not in found or found[key].time <= letter.time:
            found[key] = letter
    return list(found.values())
