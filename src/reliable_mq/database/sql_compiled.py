"""A statement compiled for one driver: its text, and what makes its parameters.

For psycopg there is a second text, with numbers, under which it prepares the statement: libpq then
executes it by its name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Dialect, Executable

from reliable_mq.database.sql_libpq import (
    free_libpq,
)
from reliable_mq.database.sql_types import UtcDateTime

Treatment = Callable[[Any], Any]
_UNKNOWN, _BYTEA = 0, 17  # the types that psycopg gives to texts and NULL, and to bytes
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")


def _text(value: str) -> bytes:
    """Return a text as libpq wants it.

    Raises:
        ValueError: it cannot be sent as UTF-8, or has a NUL, where libpq's texts end.
    """
    text = value.encode()
    if b"\0" in text:
        raise ValueError
    return text


_TEXT_OF: Mapping[type, Callable[[Any], bytes | None]] = {
    str: _text,
    int: b"%d".__mod__,
    bool: lambda value: b"t" if value else b"f",
    datetime: lambda value: _text(value.isoformat()),
    type(None): lambda value: value,
}
"""What makes a text for libpq, by the type of a value."""


class Named(NamedTuple):
    """A statement as psycopg prepares it, with parameters that are texts, bytes or NULL.

    So its parameters have the same types each time, and it has one name. `key`: under which
    psycopg notes the name. `kinds`: what makes a parameter for libpq, by the type of a value.
    """

    text: str
    order: tuple[str, ...]
    formats: tuple[int, ...]  # 1: the parameter is bytes
    key: tuple[bytes, tuple[int, ...]]
    kinds: Mapping[type, Callable[[Any], bytes | None]]
    cursor: Callable[[Any], Any]
    usual: tuple[Any, Any]

    def is_usual(self, driver: Any) -> bool:
        """Whether cursors of a connection are psycopg's own, and no other has to see statements.

        Tracers and `ClientCursor`, which prepares nothing, come as a `cursor_factory`, or wrap the
        connection.
        """
        return (getattr(type(driver), "cursor", None), driver.cursor_factory) == self.usual

    def texts_for(self, driver: Any, given: Mapping[str, Any]) -> list[bytes | None] | None:
        """Return libpq's parameters; None: a cursor has to execute the statement."""
        libpq = free_libpq(driver)
        if libpq is None or not self.is_usual(driver):
            return None
        if libpq.parameter_status(b"client_encoding") != b"UTF8":
            return None
        try:
            values = [given[name] for name in self.order]
            return [self.kinds[type(value)](value) for value in values]
        except (KeyError, ValueError):
            return None

    def told(self, texts: Sequence[bytes | None]) -> list[Any]:
        """Return the same parameters for a cursor."""
        return [
            text if is_bytes or text is None else text.decode()
            for text, is_bytes in zip(texts, self.formats, strict=True)
        ]


def _named(compiled: Any, dialect: Dialect) -> "Named | None":
    """Return a statement as psycopg prepares it; None: another driver executes it."""
    psycopg: Any = dialect.dbapi
    if dialect.driver != "psycopg" or psycopg is None:
        return None
    bytes_of = {
        name
        for bound, name in compiled.bind_names.items()
        if bound.type.dialect_impl(dialect).get_dbapi_type(psycopg) == psycopg.BINARY
    }
    order: list[str] = []

    def number(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        if name not in order:
            order.append(name)
        return f"${order.index(name) + 1}"

    numbered = _PARAMETER.sub(number, str(compiled))
    formats = tuple(int(name in bytes_of) for name in order)
    types = tuple(_BYTEA if is_bytes else _UNKNOWN for is_bytes in formats)
    kinds: dict[type, Treatment] = {**_TEXT_OF, psycopg.Binary: attrgetter("obj")}
    key = numbered.encode(), types
    usual = psycopg.Connection.cursor, psycopg.Cursor
    return Named(numbered, tuple(order), formats, key, kinds, psycopg.RawCursor, usual)


class Compiled(NamedTuple):
    """A statement for one driver. `order`: of its parameters; None: parameters have names.

    `moments`: the treatment of a moment that is in UTC, as ours are, and of any other.
    """

    text: str
    order: tuple[str, ...] | None
    constants: Mapping[str, Any]
    treatments: tuple[tuple[str, Treatment], ...]
    moments: tuple[tuple[str, Treatment | None, Treatment], ...]
    named: Named | None

    def given(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters as the driver wants them."""
        given = {**self.constants, **values}
        for name, of_utc, treat in self.moments:
            moment = given[name]
            if type(moment) is not datetime or moment.tzinfo is not UTC:
                given[name] = None if moment is None else treat(moment)
            elif of_utc is not None:
                given[name] = of_utc(moment)
        for name, treat in self.treatments:
            given[name] = treat(given[name])
        return given if self.order is None else tuple(map(given.__getitem__, self.order))


def compiled_for(statement: Executable, dialect: Dialect) -> Compiled | None:
    """Return a statement in a driver's form; None: its text depends on the values."""
    compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    if any(bound.expanding for bound in compiled.bind_names):
        return None
    constants: dict[str, Any] = {}
    treatments: list[tuple[str, Treatment]] = []
    moments: list[tuple[str, Treatment | None, Treatment]] = []
    for bound, name in compiled.bind_names.items():
        kind = bound.type.dialect_impl(dialect)
        treat = kind.bind_processor(dialect)
        if not bound.required:
            constants[name] = bound.value if treat is None else treat(bound.value)
        elif isinstance(kind, UtcDateTime):
            moments.append((name, kind.treatment_of_utc(dialect), treat))
        elif treat is not None:
            treatments.append((name, treat))
    order = tuple(compiled.positiontup) if compiled.positional else None
    treated = tuple(treatments), tuple(moments)
    return Compiled(str(compiled), order, constants, *treated, _named(compiled, dialect))
