"""The earlier names of settings and places of classes, and how they are read.

Receives values by name. Returns them under the current names, and warns once for each old name. It
does not know the sources of the names.

Never remove a row: a documented name keeps working.
"""

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from reliable_mq.errors import ConfigurationError

SETTINGS: Mapping[str, str] = {
    "timer_range": "timer_range_seconds",
    "relay_lease": "relay_lease_seconds",
    "resend_lease": "resend_lease_seconds",
    "resend_waits": "resend_waits_seconds",
    "resend_backlog_wait": "resend_backlog_wait_seconds",
    "resend_told_after": "resend_notify_after_seconds",
    "resend_interval": "resend_interval_seconds",
    "resend_batch": "resend_batch_count",
    "stub_retention": "stub_retention_seconds",
    "log_retention": "log_retention_seconds",
    "replay_window": "replay_window_seconds",
    "escalation_cooldown": "escalation_cooldown_seconds",
    "escalation_timeout": "escalation_timeout_seconds",
    "claim_lease": "claim_lease_seconds",
    "duplicate_window": "duplicate_window_seconds",
    "redis_timeout": "redis_timeout_seconds",
    "retry_waits": "retry_waits_seconds",
    "shutdown_timeout": "shutdown_timeout_seconds",
}
"""Old name -> new name, of `reliable_mq.settings.Settings`."""

CLIENT_SETTINGS: Mapping[str, str] = {
    "request_timeout": "request_timeout_seconds",
    "connect_timeout": "connect_timeout_seconds",
    "try_timeout": "try_timeout_seconds",
    "body_size_max": "body_bytes_max",
    "compress_from": "compress_from_bytes",
    "in_flight_size_max": "in_flight_bytes_max",
    "batch_size_max": "batch_bytes_max",
    "pull_size": "pull_bytes",
    "pull_timeout": "pull_timeout_seconds",
    "held_size_max": "held_bytes_max",
    "held_span_max": "held_offset_span_max",
    "held_total_size_max": "held_total_bytes_max",
    "close_timeout": "close_timeout_seconds",
}
"""Old name -> new name, of `reliable_mq.client.settings.ClientSettings`."""

PLACES: Mapping[str, Mapping[str, str]] = {
    "reliable_mq.app.sql_database": {"Database": "reliable_mq.database.sql_database.Database"},
    "reliable_mq.idempotency.claim": {"Lease": "reliable_mq.idempotency.claim.LeaseAnswer"},
    "reliable_mq.idempotency.lease_store": {"Fate": "reliable_mq.idempotency.lease_store.LeaseEnd"},
    "reliable_mq.resend.alerts": {"Notifier": "reliable_mq.escalate.alerts.Notifier"},
    "reliable_mq.resend.escalation": {"Digest": "reliable_mq.escalate.escalation.Digest"},
    "reliable_mq.sql_types": {
        "register_like_postgresql": "reliable_mq.database.sql_types.register_like_postgresql"
    },
}
"""Earlier module -> name -> where it is now, of names that pages showed or tools import."""

Warn = Callable[[str], None]
"""Warns about an old name, with a sentence that has both names."""

_BETWEEN = frozenset({"reliable_mq", "pydantic", "pydantic_settings"})
"""Packages whose frames are skipped when the caller of an old name is looked for."""


def now_called(old: str, new: str) -> str:
    """Return the sentence of every warning and every error about an old name."""
    return f"{old} is called {new} now"


def refuse_both(old: str, new: str) -> ConfigurationError:
    """Return the error for a setting that is given by both of its names."""
    return ConfigurationError(f"{old} and {new} are one setting, and both are given: keep {new}")


def warn_caller(sentence: str) -> None:
    """Warn at the line of code that used an old name (`DeprecationWarning`).

    An import from a package asks for a name twice, first from importlib: only the second one warns.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_back is not None and _lies_between(frame.f_globals):
        level, frame = level + 1, frame.f_back
    if frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        return
    warnings.warn(sentence, DeprecationWarning, stacklevel=level)


def _lies_between(module: Mapping[str, Any]) -> bool:
    return str(module.get("__name__", "")).partition(".")[0] in _BETWEEN


def warn_operator(sentence: str) -> None:
    """Warn about an old name in the environment or in a file (`FutureWarning`).

    All these warnings come from this line, so Python shows each sentence once in a process.
    """
    warnings.warn(sentence, FutureWarning, stacklevel=1)


def moved(module: str, name: str) -> Any:
    """Return what had this name in a module, and warn the caller.

    It is the `__getattr__` of each module in `PLACES`, for the module's name.

    Raises:
        AttributeError: the module never had the name.
    """
    home = PLACES[module].get(name)
    if home is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warn_caller(now_called(f"{module}.{name}", home))
    place, _, now = home.rpartition(".")
    return getattr(import_module(place), now)


def warn_nobody(_: str) -> None:
    """Give no warning: for old names in a pickle."""


def read(
    given: Mapping[str, Any], names: Mapping[str, str], warn: Warn, place: str = ""
) -> dict[str, Any]:
    """Return the given values under the current names.

    Args:
        given: the values of one source, by name; other names are unchanged.
        names: old name -> new name.
        warn: called once for each old name.
        place: a prefix for the names in messages, for example "client: ".

    Raises:
        ConfigurationError: when a setting has both of its names here.
    """
    found = dict(given)
    for old, new in names.items():
        if old not in given:
            continue
        if new in given:
            raise refuse_both(f"{place}{old}", new)
        warn(f"{place}{now_called(old, new)}")
        found[new] = found.pop(old)
    return found


def written_in(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """Return new name -> old name, of the values that are given by an old name."""
    return {new: old for old, new in names.items() if old in given}


def as_written(text: str, written: Mapping[str, str]) -> str:
    """Return an error's text with the names that the user wrote, and with hints of the new names.

    Args:
        text: the text, with the current names.
        written: new name -> old name, of the values that were given by an old name.
    """
    hints = []
    for new, old in written.items():
        renamed = re.sub(rf"\b{new}\b", old, text)
        if renamed != text:
            text = renamed
            hints.append(now_called(old, new))
    return "; ".join((text, *hints))
