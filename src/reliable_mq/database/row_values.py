"""What columns of our tables hold, as tables and stations share it. Pure."""

from enum import IntEnum

TEXT_LENGTH_MAX = 255
"""Characters of a tag, a message key and an ordering key, each."""
SHOWN_LENGTH_MAX = 255
"""Characters of a business key that a person sees."""
NOTIFIER_LENGTH_MAX = 64
"""Characters of a notifier's name."""


class StubStatus(IntEnum):
    """What the column `status` of the table of stubs holds."""

    UNCONFIRMED = 0
    CONFIRMED = 1
    VOIDED = 2


class LogState(IntEnum):
    """What the column `state` of the consume log holds."""

    RECEIVED = 0
    CONSUMED = 1
