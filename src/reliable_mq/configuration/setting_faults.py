"""What is wrong with a setting, in words for whoever wrote it: in code, or as a variable.

Receives pydantic's errors. A value is never shown: it may be a secret.
"""

import re
from collections.abc import Collection, Mapping

from pydantic import ValidationError

from reliable_mq.names import TABLE_PREFIX_PATTERN
from reliable_mq.plain_text import a_kind

# pydantic's text, and that of `renamed_settings`
_FIELD_OF_ERROR = re.compile(r'field "(\w+)"(?: \(now "(\w+)"\))?')
_JSON_EXAMPLES = {"databases": '{"name": "URL"}', "client": '{"retries": 3}'}
_EXAMPLES = {
    "database": "a URL, such as 'postgresql+psycopg://user@host/name'",
    "redis": "a URL, such as 'redis://host:6379'",
    "broker": "one text, such as 'host:9876;host:9876'",
    "retry_waits_seconds": "a tuple of seconds, such as (1, 5, 30)",
    "resend_waits_seconds": "a tuple of seconds, such as (10, 60, 600)",
    "databases": "a dict of URLs by name",
    "sensitive": "a tuple of names, such as ('card_number', 'customer.email')",
}
_PATTERNS = {TABLE_PREFIX_PATTERN: "it must be a lower-case letter, then at most 31 of a-z 0-9 _"}
_BRACKETS = str.maketrans("()", "[]")
_WRONG_TYPES = ("_type", "_parsing")
"""How pydantic's names for values of a wrong type end."""


def fault_of(
    error: ValidationError, given: Collection[str], renamed: Mapping[str, str], prefix: str
) -> str:
    """Return a line about the first wrong setting.

    Args:
        error: pydantic's.
        given: the settings that code gave. The others were variables, or files of secrets.
        renamed: earlier names of settings, with the new ones.
        prefix: begins the names of variables.
    """
    first = error.errors()[0]
    reason = str(first["msg"]).removeprefix("Value error, ")
    reason = reason.replace("Input should be", "it must be")
    if not first["loc"]:  # a rule about several settings; its text begins with one of them
        said, values = re.split(r"\W", reason, maxsplit=1)[0], first["input"]
        is_given = said in given or not isinstance(values, Mapping) or said not in values
        return reason if is_given else f"{prefix}{said.upper()}: {reason}"
    if first["type"] == "string_pattern_mismatch":
        reason = _PATTERNS.get(str(first["ctx"]["pattern"]), reason)
    name, *inside = (str(part) for part in first["loc"])
    is_variable = not {name, renamed.get(name, name)} & set(given)
    if str(first["type"]).endswith(_WRONG_TYPES):
        wanted = _wanted(name, reason, bool(inside), is_variable=is_variable)
        # The text of a variable has no type.
        reason = wanted if is_variable else f"{wanted}, not {a_kind(first['input'])}"
    if is_variable:
        return ": ".join((f"{prefix}{name.upper()}", *inside, reason))
    return f"setting {'.'.join((name, *inside))}: {reason}"


def _wanted(name: str, reason: str, is_part: bool, *, is_variable: bool) -> str:
    """Return what a setting of a wrong type, or a part of it, must be."""
    wanted = reason.removeprefix("it must be ").partition(",")[0].replace("a valid ", "a ")
    wanted = wanted.replace("a string", "a text").replace("a integer", "a whole number")
    if name in _EXAMPLES:
        example = _EXAMPLES[name]
        if is_variable:
            example = example.replace("a tuple of", "a list of").translate(_BRACKETS)
        wanted = f"{wanted} in {example}" if is_part else example
    return f"it must be {wanted}"


def not_json(says: str, prefix: str) -> str:
    """Return pydantic's sentence about a variable that is not JSON in words for an operator."""
    found = _FIELD_OF_ERROR.search(says)
    if found is None:
        return says
    written, now = found[1], found[2] or found[1]
    renamed = f" (now {prefix}{now.upper()})" if now != written else ""
    example = _JSON_EXAMPLES.get(now, "[1, 5]")
    return f"{prefix}{written.upper()}{renamed} is not JSON: write it like {example}"
