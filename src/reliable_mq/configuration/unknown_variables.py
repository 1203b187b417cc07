"""What a variable of the environment that sets nothing was meant to be. Pure.

Receives names of variables and of settings; returns what each misspelt variable was meant to be. A
variable that is like none of ours belongs to somebody else, and is left alone.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from reliable_mq.misspelt import WORDS_OF_OTHERS

PREFIX = "RELIABLE_MQ_"
"""Begins the names of our variables."""

TOLD_VARIABLE = "_RELIABLE_MQ_TOLD"
"""Names the variables of which a command has warned, for its children and for settings."""

OF_COMMANDS = frozenset(
    {"app", "console_oidc_secret", "console_secret", "health_file", "log_format", "log_level"}
    | {"metrics_host", "secrets_dir", "crash_at", "crash_log"}
)
"""Variables that commands read themselves, in small letters and without the prefix."""

_OPTIONS = {
    **{
        name: f"the option {name} of @mq.consumer"
        for name in ("concurrency", "max_attempts", "idempotent_by", "log_receipt")
    },
    "processes": "the option --processes of reliable-mq run",
    "metrics_port": "the option --metrics-port",
}
"""Options that people take for settings, and where each is given."""

_WORDS = {
    **WORDS_OF_OTHERS,
    **dict.fromkeys(("pool_size", "max_connections"), "database_connections"),
    **dict.fromkeys(("user", "username", "account"), "access_key"),
    **dict.fromkeys(("password", "secret"), "secret_key"),
    **dict.fromkeys(("debug", "verbose"), "log_level"),
    **dict.fromkeys(("prefix", "tables_prefix"), "table_prefix"),
    **dict.fromkeys(("workers", "worker_processes"), "processes"),
    **dict.fromkeys(("application", "module"), "app"),
}
"""What other tools call it -> our setting, variable or option."""

_OF_KUBERNETES = re.compile(r"service_(host|port(_\w+)?)|port(_\d+_(tcp|udp|sctp)(_\w+)?)?")
"""The end of a name that Kubernetes makes of a service: RELIABLE_MQ_BROKER_PORT_9876_TCP_ADDR."""

_OF_TESTS = frozenset({"bench", "ci", "e2e", "test", "tests"})
"""Parts of names that the tests of a project give to their own variables."""

_LIKE_A_SETTING, _LIKE_AN_OPTION = 0.65, 0.8
"""How much alike two names must be, from 0 to 1."""


def candidates(variables: Iterable[str]) -> list[str]:
    """Return the names, in small letters and without the prefix, that may be misspelt settings."""
    names = (each.upper() for each in variables)
    own = (each.removeprefix(PREFIX).lower() for each in names if each.startswith(PREFIX))
    return [name for name in own if name and name not in OF_COMMANDS and not _is_foreign(name)]


def meant_by(
    variables: Iterable[str], settings: Iterable[str], renamed: Mapping[str, str]
) -> dict[str, str]:
    """Return what each variable that sets nothing was meant to be, by the variable.

    Args:
        variables: all names of the environment.
        settings: the names of all settings.
        renamed: earlier name of a setting -> its name.
    """
    known = {*settings, *renamed}
    found = {
        f"{PREFIX}{name.upper()}": _meant(name, known, renamed)
        for name in candidates(variables)
        if name not in known
    }
    return {variable: meant for variable, meant in found.items() if meant}


def _is_foreign(name: str) -> bool:
    """Return whether Kubernetes or a test has made the variable, or may have."""
    parts = name.split("_")
    ends = ("_".join(parts[at:]) for at in range(len(parts)))
    return not _OF_TESTS.isdisjoint(parts) or (
        name not in _OPTIONS and any(_OF_KUBERNETES.fullmatch(each) for each in ends)
    )


def _meant(name: str, known: set[str], renamed: Mapping[str, str]) -> str:
    word = _WORDS.get(name, "")
    for option in [word] if word else get_close_matches(name, _OPTIONS, 1, _LIKE_AN_OPTION):
        if option in _OPTIONS:
            return _OPTIONS[option]
    close = [word] if word else get_close_matches(name, known | OF_COMMANDS, 1, _LIKE_A_SETTING)
    return f"{PREFIX}{renamed.get(close[0], close[0]).upper()}" if close else ""
