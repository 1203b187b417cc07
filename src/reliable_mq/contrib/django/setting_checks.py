"""Finds every wrong part of RELIABLE_MQ, and settings of Django that nobody reads.

Receives Django's settings; returns lines for people. The application names only its first fault.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from django.conf import settings

from reliable_mq.app.application import ReliableMQ
from reliable_mq.command_words import BY_DJANGO, with_place
from reliable_mq.contrib.django.configuration import SETTING, arguments, check_keys
from reliable_mq.errors import ReliableMQError

_FLAT = f"{SETTING}_"
_LIKENESS = 0.75


def faults(first: ReliableMQError) -> list[str]:
    """Return a line for each wrong key of RELIABLE_MQ.

    Args:
        first: the error that the application raised. It is one of the lines.
    """
    given = getattr(settings, SETTING, {})
    found = [_line(first)]
    if not isinstance(given, Mapping):
        return found
    rest = {str(key): value for key, value in given.items()}
    error: ReliableMQError | None = first
    while error is not None and (guilty := _guilty(rest, error)) is not None:
        del rest[guilty]
        error = _error_of(rest)
        if error is not None and _line(error) not in found:
            found.append(_line(error))
    return found


def _guilty(given: Mapping[str, Any], error: ReliableMQError) -> str | None:
    """Return the key without which another error comes, or none; None: there is no such key."""
    for key in given:
        other = _error_of({name: value for name, value in given.items() if name != key})
        if other is None or str(other) != str(error):
            return key
    return None


def _error_of(given: Mapping[str, Any]) -> ReliableMQError | None:
    try:
        check_keys(given)
        ReliableMQ(**arguments(given))
    except ReliableMQError as error:
        return error
    return None


def _line(error: ReliableMQError) -> str:
    return with_place(str(error), BY_DJANGO)


def unread_settings() -> Iterator[str]:
    """Yield a line about each setting that looks like one of ours, though nobody reads it."""
    given, names = getattr(settings, SETTING, None), dir(settings)
    for name in names:
        key = name.removeprefix(_FLAT)
        if name.startswith(_FLAT) and key not in (given or {}):
            yield f'{name} is read by nobody: write {SETTING} = {{"{key}": …}}'
    if given is None:
        others = [each for each in names if not each.startswith(_FLAT)]
        for name in get_close_matches(SETTING, others, cutoff=_LIKENESS):
            yield f"{name} is read by nobody: the setting is {SETTING}"
