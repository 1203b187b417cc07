"""Parser of times and durations that a person types. Pure."""

import re
from datetime import UTC, datetime, timedelta

from reliable_mq.errors import ConfigurationError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SECONDS_MAX = 100 * 366 * 86400.0  # within Python's range of times


def parse_duration(text: str, option: str) -> timedelta:
    """Parse a duration: `90s`, `10m`, `2h`, `1d`, `500ms`. A number without a unit is in seconds.

    Raises:
        ConfigurationError: when it is no duration, or longer than 100 years. The text names
            `option`.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{option} takes a duration like 90s, 10m or 2h, not {text!r}")
    seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    if seconds > _SECONDS_MAX:
        raise ConfigurationError(f"{option} takes a duration of at most 100 years, not {text!r}")
    return timedelta(seconds=seconds)


def parse_moment(text: str, option: str, now: datetime) -> datetime:
    """Parse a moment: ISO 8601 (UTC if it has no zone), or `-2h` for two hours before `now`.

    Raises:
        ConfigurationError: when it is no moment. The text names `option`.
    """
    text = text.strip()
    if text.startswith("-"):
        return now - parse_duration(text[1:], option)
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # OverflowError: in UTC, its year is outside 1…9999
        raise ConfigurationError(
            f"{option} takes a time like 2026-11-20T08:00 (UTC) or -2h, not {text!r}"
        ) from None


def of_milliseconds(milliseconds: int) -> datetime:
    """Return the moment of so many milliseconds since the epoch."""
    return _EPOCH + milliseconds * _MILLISECOND


def first_id(moment: datetime) -> str:
    """Return the smallest message id whose time, in milliseconds, is `moment` or later.

    An id is smaller than it exactly if its time is before `moment`. So tables and logs are cut at
    the same message.
    """
    milliseconds = -((_EPOCH - moment) // _MILLISECOND)  # rounded up
    return f"{max(milliseconds, 0):012X}" + "0" * 20
