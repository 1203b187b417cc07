"""Times and durations as a person types them. Pure."""

import re
from datetime import UTC, datetime, timedelta

from reliable_mq.errors import ConfigurationError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SECONDS_MAX = 100 * 366 * 86400.0  # Python's times end, and nobody means so much


def parse_duration(text: str, option: str) -> timedelta:
    """Return the duration that `text` says: `90s`, `10m`, `2h`, `1d`, `500ms`; alone, seconds.

    Raises:
        ConfigurationError: when it says none, or one of over a hundred years; the text names
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
    """Return the moment that `text` says: ISO 8601, UTC if no zone is named, or `-2h` before `now`.

    Raises:
        ConfigurationError: when it says none; the text names `option`.
    """
    text = text.strip()
    if text.startswith("-"):
        return now - parse_duration(text[1:], option)
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter: it is no year of ours in UTC
        raise ConfigurationError(
            f"{option} takes a time like 2026-11-20T08:00 (UTC) or -2h, not {text!r}"
        ) from None


def of_milliseconds(milliseconds: int) -> datetime:
    """Return the moment that is so many milliseconds behind the epoch."""
    return _EPOCH + milliseconds * _MILLISECOND


def first_id(moment: datetime) -> str:
    """Return the smallest message id whose time is `moment` or later; an id has milliseconds.

    So an id is below it exactly when its time is, and tables and log are cut at the same message.
    """
    milliseconds = -((_EPOCH - moment) // _MILLISECOND)  # rounded up
    return f"{max(milliseconds, 0):012X}" + "0" * 20
