"""The list of a message's attempts without an effect, one text in its row. Pure.

Each attempt is a line: its number, the time, how it ended, the reason. Tabs are between them, so
the list can be read in SQL. Receives attempts and returns lines; receives lists and returns
attempts. `idempotency.sql_log_inserts` adds a line to a row.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum

import msgspec

from reliable_mq.plain_text import printable

REASON_LENGTH_MAX = 300
"""The most characters of a reason in the list."""
LIST_LENGTH_MAX = 16_000
"""No line is added to a list of this many characters or more. MySQL counts bytes."""
UNCOUNTED_LENGTH_MAX = 12_000
"""The same for attempts that do not count: they have no limit, and must not hide the others."""
_LOST = "its lease ended before it did: its process died, or the handler took too long"


class AttemptEnd(Enum):
    """How an attempt without an effect ended. The values are in the rows."""

    FAILED = "failed"
    POSTPONED = "postponed"  # Retry(counts=False)
    REJECTED = "rejected"
    IN_DOUBT = "in doubt"  # its process died or was too slow; the next attempt has noticed it
    GIVEN_UP = "given up"  # the handler was not called: no attempt was left


class EndedAttempt(msgspec.Struct, frozen=True):
    """One line of the list.

    `end` None: another program has written the line, and `reason` is all of it. Then the number is
    0, and the time is unknown.
    """

    number: int
    time: datetime | None
    end: AttemptEnd | None
    reason: str


def line_of(number: int, at: float, end: AttemptEnd, reason: str) -> str:
    """Return the line of an attempt. `at`: seconds since the epoch, by the database's clock."""
    time = datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")
    return f"{number}\t{time}\t{end.value}\t{listed_reason(reason)}\n"


def line_of_lost(number: int, at: float) -> str | None:
    """Return the line of an attempt in doubt. `number` 0: there is none, and None is returned.

    `at`: when the next attempt noticed it.
    """
    return line_of(number, at, AttemptEnd.IN_DOUBT, _LOST) if number else None


def listed_reason(reason: str) -> str:
    """Return a reason as the list has it: without line breaks and tabs, and not too long."""
    shown = printable(reason[: REASON_LENGTH_MAX + 1])
    return shown if len(shown) <= REASON_LENGTH_MAX else f"{shown[: REASON_LENGTH_MAX - 3]}..."


def attempts_of(text: str | None) -> list[EndedAttempt]:
    """Return the attempts of a list, in the order in which they were written."""
    return list(_read(text or ""))


def is_full(text: str | None) -> bool:
    """Return whether later attempts may be missing in a list."""
    return len((text or "").encode(errors="replace")) >= UNCOUNTED_LENGTH_MAX


def _read(text: str) -> Iterator[EndedAttempt]:
    for line in filter(None, text.split("\n")):
        try:
            yield _read_line(*line.split("\t", 3))
        except (TypeError, ValueError, OverflowError):
            yield EndedAttempt(0, None, None, printable(line))


def _read_line(number: str, time: str, end: str, reason: str) -> EndedAttempt:
    moment = datetime.fromisoformat(time)
    if moment.tzinfo is None:
        raise ValueError("our times have a zone")
    return EndedAttempt(int(number), moment.astimezone(UTC), AttemptEnd(end), printable(reason))
