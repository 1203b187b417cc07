"""A notice: the report of one consumer group to the database of the stubs. Pure.

It travels as a message in that database's topic of notices. Notices may come twice and in any
order. A group's CONSUMED is never taken back.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from reliable_mq.limits import GROUP_LENGTH_MAX

SECONDS_MAX = 30 * 86_400.0
IDS_MAX = 500
"""The most messages in one notice."""

_Id = Annotated[str, Meta(min_length=1, max_length=32)]


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The results of messages in one consumer group, by message id.

    Attributes:
        group: the consumer group.
        consumed: their effect is committed.
        failed: an attempt failed; the seconds until the next attempt.
        given_up: they are dead letters; the reason.
    """

    group: Annotated[str, Meta(min_length=1, max_length=GROUP_LENGTH_MAX)]
    consumed: tuple[_Id, ...] = ()
    failed: dict[_Id, Annotated[float, Meta(ge=0, le=SECONDS_MAX)]] = {}
    given_up: dict[_Id, str] = {}

    def message_ids(self) -> list[str]:
        """Return all message ids of the notice, in the order in which rows are locked."""
        return sorted({*self.consumed, *self.failed, *self.given_up})
