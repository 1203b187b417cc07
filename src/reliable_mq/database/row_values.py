"""The values of columns in our tables, for tables and stations alike. Pure."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

TEXT_LENGTH_MAX = 255
"""The most characters of a tag, a message key or an ordering key."""
SHOWN_LENGTH_MAX = 255
"""The most characters of a business key that a person sees."""
NOTIFIER_LENGTH_MAX = 64
"""The most characters of a notifier's name."""


class StubStatus(IntEnum):
    """The values of the column `status` in the table of stubs."""

    UNCONFIRMED = 0
    CONFIRMED = 1
    VOIDED = 2


class LogState(IntEnum):
    """The values of the column `state` in the consume log."""

    RECEIVED = 0
    CONSUMED = 1


def is_skipped(log: Mapping[str, Any]) -> bool:
    """Return whether a person let a consumer group skip the message of a row of the consume log.

    Such a message is settled without an effect: the row names no other message that had it.
    """
    is_settled = bool(log["state"] == LogState.CONSUMED)
    return is_settled and bool(log.get("duplicate_of") == log["message_id"])
