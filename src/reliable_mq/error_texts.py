"""The texts of errors as a process may write them: without the values that libraries quote.

Receives an error of any library. Returns its text for log lines, tracebacks, reasons and alerts.
Knows libraries by the names of their modules, and imports none of them.

    whole     what the error says
    masked    the same; where a library is known to quote what it was given, the value is "…"
    types     nothing, unless the error is one of ours: its type must do

A text that a handler wrote itself cannot be told from any other. Only "types" hides it.
"""

import linecache
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

ErrorTexts = Literal["masked", "whole", "types"]

MASK = "…"
_OURS = "reliable_mq"

_chosen: ErrorTexts = "masked"

# What stands in front of a quoted value, and behind it; "": it ends the text. Python's own texts,
# then what pydantic says and others repeat.
_FRAMES = (
    *((f"invalid literal for int() with base {base}: ", "") for base in (10, 0, 2, 8, 16)),
    ("could not convert string to float: ", ""),
    ("could not convert string to complex: ", ""),
    ("Invalid literal for Fraction: ", ""),
    ("Invalid isoformat string: ", ""),
    ("unconverted data remains: ", ""),
    ("time data ", " does not match format "),
    ("Input tag ", " found using "),
    ("input_value=", ", input_type="),
    ("with value `", "`"),
    ("invalid input for query argument ", " ("),  # of asyncpg
)
# What stands behind a value that begins the text: of enums, lists, addresses, SQLAlchemy's enums.
_BEHIND_FIRST = (
    " is not a valid ",
    " is not in list",
    " is not in deque",
    " does not appear to be an IPv",
    " is not among the defined enum values",
)
_BEGINS_VALUE = tuple("'\"([{<-0123456789")
_OF_MSGSPEC = (("Invalid enum value ", " - at `"), ("Invalid value ", " - at `"))
# A server of MySQL or MariaDB: duplicate keys, values that do not fit, SQL with values in it.
_BY_MYSQL = (
    ("Duplicate entry '", "' for key "),
    (" value: '", "' for ", "' at ", "'"),
    (" value is out of range in '", "'"),
    ('Invalid JSON text: "', '" at position '),
    (" near '", "' at line "),
)
_MORE_OF_POSTGRESQL = re.compile(r"\n(?:DETAIL|HINT|CONTEXT|LINE \d+):")
_ASYNCPG_IN_SQLALCHEMY = "sqlalchemy.dialects.postgresql.asyncpg"
_DATA_EXCEPTION = "22"  # SQLSTATE: "invalid input syntax for type integer: "…""


def choose_error_texts(chosen: ErrorTexts) -> None:
    """Set how this process writes the texts of errors. Default: masked.

    Where a process has several applications, the one that was made last decides.
    """
    global _chosen  # noqa: PLW0603 - one log, one rule
    _chosen = chosen


def text_of(error: BaseException) -> str:
    """Return what an error says, as this process may write it; see the head of this module.

    Raises:
        Exception: whatever the error's own `__str__` raises.
    """
    if _chosen == "whole":
        return str(error)
    if hides_words_of(error):
        return ""
    if _chosen == "types":
        return str(error)
    for kind in type(error).__mro__:
        rule = _RULES.get(kind.__module__.partition(".")[0])
        if rule is not None:
            return rule(error)
    return _masked_key(error) if type(error) is KeyError else masked(str(error))


def hides_words_of(error: BaseException) -> bool:
    """Whether no word of an error may be written: "types" is chosen, and it is not one of ours."""
    return _chosen == "types" and type(error).__module__.partition(".")[0] != _OURS


def words_of(error: BaseException) -> str:
    """Return `text_of` an error; its type, if that is no text."""
    return text_of(error) or type(error).__name__


def named_as(error: BaseException, text: str) -> BaseException:
    """Return an error with another text, whose type has the name and module of this one's."""
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: BaseException = type(kind.__name__, (Exception,), names)(text)
    return made


def masked(text: str) -> str:
    """Return a text without the values that Python and some libraries quote."""
    if text.startswith(_BEGINS_VALUE):
        for behind in _BEHIND_FIRST:
            at = text.rfind(behind)
            if at > 0:
                return MASK + text[at:]
    return _without(text, _FRAMES)


def _without(text: str, frames: Iterable[tuple[str, ...]]) -> str:
    """Return a text without what is between these: from the first to the last of them.

    A frame has what stands before a value, and what may stand behind it: the first that is found.
    """
    for before, *behind in frames:
        begin = text.find(before) + len(before)
        if begin < len(before):
            continue
        ends = (text.rfind(each, begin) if each else len(text) for each in behind)
        end = next((each for each in ends if each >= begin), None)
        if end is not None:
            text = text[:begin] + MASK + text[end:]
    return text


def shows_rules_only() -> bool:
    """Whether a text that an application's own code wrote about a value must not be written."""
    return _chosen == "types"


def _masked_key(error: BaseException) -> str:
    """Return a missing key, if the program names it; otherwise it may come out of a payload."""
    text, at = str(error), error.__traceback__
    while at is not None:
        line = linecache.getline(at.tb_frame.f_code.co_filename, at.tb_lineno)
        if text in line or (text[:1] == "'" and f'"{text[1:-1]}"' in line):
            return text
        at = at.tb_next
    return MASK


def _of_pydantic(error: Any) -> str:
    try:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
    except AttributeError:  # it is not about validation
        return masked(str(error))
    told = [f"{len(faults)} validation error{'' if len(faults) == 1 else 's'} for {error.title}"]
    for fault in faults:
        place = ".".join(map(str, fault["loc"]))
        rule = masked(fault["msg"].removeprefix("Value error, "))
        said = f"  {rule} [type={fault['type']}]"
        told += [place, said] if place else [said]
    return "\n".join(told)


def _of_sqlalchemy(error: Any) -> str:
    cause = getattr(error, "orig", None)
    if not isinstance(cause, BaseException):
        is_drivers = type(error).__module__.startswith(_ASYNCPG_IN_SQLALCHEMY)
        return _of_postgresql(error) if is_drivers else masked(str(error))
    kind = type(cause)
    said = f"({kind.__module__}.{kind.__qualname__}) {text_of(cause)}"
    return f"{said}\n[SQL: {error.statement}]" if getattr(error, "statement", None) else said


def _of_postgresql(error: Any) -> str:
    """Return the first line of the server. The others quote keys and whole rows."""
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    match error.args:
        case (dict(fields),):  # of pg8000
            said, state = str(fields.get("M", "")), str(fields.get("C", ""))
    if said is None:
        said = masked(_MORE_OF_POSTGRESQL.split(str(error), maxsplit=1)[0])
    if state.startswith(_DATA_EXCEPTION):
        said = _without(said, (('"', '"'),))
    return str(said)


def _of_mysql(error: BaseException) -> str:
    match error.args:
        case (int(code), str(said)):
            return repr((code, _without(said, _BY_MYSQL)))
    return _without(str(error), _BY_MYSQL)


def _of_msgspec(error: BaseException) -> str:
    text = str(error)
    for before, behind in _OF_MSGSPEC:
        if text.startswith(before):
            _, mark, place = text.rpartition(behind)
            return f"{before}{MASK}{mark}{place if mark else ''}"
    return text


def _of_django(error: BaseException) -> str:
    """Return the text of the driver's error, where Django repeats it."""
    cause = error.__cause__
    repeats = cause is not None and error.args == cause.args
    return text_of(cause) if cause is not None and repeats else masked(str(error))


_RULES: dict[str, Callable[[Any], str]] = {
    "pydantic_core": _of_pydantic,
    "sqlalchemy": _of_sqlalchemy,
    **dict.fromkeys(("psycopg", "psycopg2", "asyncpg", "pg8000"), _of_postgresql),
    **dict.fromkeys(("pymysql", "MySQLdb", "asyncmy", "aiomysql", "mysql", "mariadb"), _of_mysql),
    "django": _of_django,
    "msgspec": _of_msgspec,
}
