"""A notice: what one consumer group tells the database of the stubs. Pure.

It travels as a message of its own, in a topic of that database. Notices may come twice and in any
order; a group that has consumed a message is never taken back.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from reliable_mq.limits import GROUP_LENGTH_MAX

SECONDS_MAX = 30 * 86_400.0
IDS_MAX = 500
"""Most messages in one notice."""

_Id = Annotated[str, Meta(min_length=1, max_length=32)]


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of messages in one consumer group, by message id.

    Attributes:
        group: the consumer group.
        consumed: they had their effect, which is committed.
        failed: an attempt failed; seconds until the next one.
        given_up: they are dead letters; why.
    """

    group: Annotated[str, Meta(min_length=1, max_length=GROUP_LENGTH_MAX)]
    consumed: tuple[_Id, ...] = ()
    failed: dict[_Id, Annotated[float, Meta(ge=0, le=SECONDS_MAX)]] = {}
    given_up: dict[_Id, str] = {}

    def message_ids(self) -> list[str]:
        """Return all that it tells of, in the order in which rows are locked."""
        return sorted({*self.consumed, *self.failed, *self.given_up})
