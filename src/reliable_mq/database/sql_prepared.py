"""Statements that every message executes: compiled once for each driver.

SQLAlchemy's `execute` searches the compiled text each time, by a key of every part of the
statement, and supports every kind of parameter and result. That costs more processor time than the
driver needs for the statement itself. This module keeps the text and the conversion of each
parameter. Results of the driver are returned unchanged.

Where `run_on_driver` allows it, a statement for one row runs on a cursor of the driver: its context
and result in SQLAlchemy cost as much as the statement. This is not done where somebody else wants
to see the statement: a listener, a log, the guard of a handler's transaction. An error goes through
SQLAlchemy in any case, so that it is translated, and a lost connection is noticed.

Once psycopg has prepared such a statement on its connection, libpq executes it by its name: a
cursor takes longer than libpq. psycopg forgets all names after a rollback, so its own table of
names is asked each time.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakSet

from sqlalchemy import Connection, CursorResult, Dialect, Engine, Executable
from sqlalchemy.exc import DBAPIError

from reliable_mq.database.ended_transactions import RolledBackBelow
from reliable_mq.database.sql_handler_session import running_session
from reliable_mq.database.sql_libpq import (
    COMMIT,
    DONE,
    execute_and_commit,
    execute_held_of,
    execute_prepared,
    free_libpq,
    insert_held,
    may_take_commit,
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


def _named(compiled: Any, dialect: Dialect) -> Named | None:
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


_on_driver: WeakSet[Dialect] = WeakSet()
_raised: ContextVar[BaseException | None] = ContextVar("reliable_mq_raised", default=None)
_NUMBERS = (20, 21, 23)  # PostgreSQL's BIGINT, SMALLINT, INTEGER


class WithCommit(NamedTuple):
    """One execution of a statement that psycopg has prepared, for a COMMIT to take along."""

    driver: Any
    named: Named
    name: bytes
    texts: Sequence[bytes | None]

    def check(self) -> None:
        """Raise RolledBackBelow if psycopg has lost the name, as it does at a rollback."""
        if _name_of(self.driver, self.named) != self.name:
            raise RolledBackBelow

    def change(self) -> int:
        """Execute the statement; return the rows that it changed. Raises psycopg's errors."""
        done = execute_prepared(self.driver, self.name, self.texts, self.named.formats)
        return done.command_tuples or 0

    def commit(self, end: bytes = COMMIT) -> int:
        """Execute it and `end`, a COMMIT, in one round trip; return the rows that it changed.

        Raises psycopg's errors, and what `check` raises.
        """
        self.check()
        formats = self.named.formats
        return execute_and_commit(self.driver, self.name, self.texts, formats, end=end)


class PreparedStatement:
    """One statement.

    A parameter may be a list if the database accepts it as one array. If the list must become many
    parameters, the statement is executed by SQLAlchemy.

    Args:
        statement: the statement. Its results are not converted, so it must return numbers or text.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._by_driver: dict[str, Compiled | None] = {}

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> CursorResult[Any]:
        """Execute the statement; `values` has every parameter by its name."""
        compiled = self._compiled_for(connection.dialect)
        if compiled is None:
            return connection.execute(self._statement, values)
        return connection.exec_driver_sql(compiled.text, compiled.given(values))

    def change(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Execute the statement; return the number of rows that it changed."""
        answer = self._executed_below(connection, values)
        return self.execute(connection, values).rowcount if answer is None else answer.rows

    def value(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """Execute the statement; return the only value of the only row: a whole number or text."""
        answer = self._executed_below(connection, values)
        return self.execute(connection, values).scalar_one() if answer is None else answer.value

    def with_commit(self, connection: Connection, values: Mapping[str, Any]) -> WithCommit | None:
        """Return the statement in a form that a COMMIT takes along.

        None: a cursor has to run it, such as while psycopg has not prepared it.
        """
        if not _may_run_below(connection):
            return None
        compiled = self._compiled_for(connection.dialect)
        if compiled is None or compiled.named is None:
            return None
        driver: Any = connection.connection.driver_connection
        named = compiled.named
        texts = named.texts_for(driver, compiled.given(values))
        if texts is None or not may_take_commit(driver):
            return None
        name = _name_of(driver, named)
        return None if name is None else WithCommit(driver, named, name, texts)

    def _compiled_for(self, dialect: Dialect) -> Compiled | None:
        if dialect.driver not in self._by_driver:
            self._by_driver[dialect.driver] = compiled_for(self._statement, dialect)
        return self._by_driver[dialect.driver]

    def _executed_below(
        self, connection: Connection, values: Mapping[str, Any]
    ) -> "_Answer | None":
        """Execute the statement by the driver alone; None: it must not be."""
        if not _may_run_below(connection):
            return None
        compiled = self._compiled_for(connection.dialect)
        if compiled is None:
            return None
        insert_held(connection)
        given = compiled.given(values)
        try:
            return _answered(compiled, connection, given)
        except BaseException as error:
            again = _raised.set(error)
            try:
                connection.exec_driver_sql(compiled.text, given)  # raises it, see `run_on_driver`
            except DBAPIError as told:
                if told.orig is error:
                    raise
                raise _with_cause(told, error, connection.dialect) from error
            finally:
                _raised.reset(again)
            raise


def _answered(compiled: Compiled, connection: Connection, given: Any) -> "_Answer":
    """Execute a statement by the driver; return its answer. Raises what the driver raises."""
    driver: Any = connection.connection.driver_connection
    named = compiled.named
    texts = None if named is None else named.texts_for(driver, given)
    if named is None or texts is None:
        return _answer_of(connection.connection.cursor(), compiled.text, given)
    name = _name_of(driver, named)
    if name is None:
        return _answer_of(named.cursor(driver), named.text, named.told(texts))
    result = execute_prepared(driver, name, texts, named.formats)
    if result.status == DONE:
        return _Answer(result.command_tuples or 0)
    value = result.get_value(0, 0) if result.ntuples else None
    if value is not None:
        value = int(value) if result.ftype(0) in _NUMBERS else value.decode()
    return _Answer(result.ntuples, value)


def _name_of(driver: Any, named: Named) -> bytes | None:
    """Return the name under which psycopg has prepared a statement on a connection, or None.

    There is no public question for its table of names, and no name is a usual answer.
    """
    names: Any = getattr(getattr(driver, "_prepared", None), "_names", {})
    name: bytes | None = names.get(named.key)
    if name is not None and isinstance(names, OrderedDict):
        names.move_to_end(named.key)  # psycopg drops what was not used for the longest time
    return name


def _answer_of(cursor: Any, text: str, given: Any) -> "_Answer":
    try:
        cursor.execute(text, given)
        row = None if cursor.description is None else cursor.fetchone()
        return _Answer(cursor.rowcount, None if row is None else row[0])
    finally:
        cursor.close()


def _with_cause(told: DBAPIError, error: BaseException, dialect: Dialect) -> BaseException:
    """Return SQLAlchemy's form of `error`, after which the driver only `told` that it is closed."""
    kind = dialect.loaded_dbapi.Error
    if not isinstance(error, kind):
        return error
    return DBAPIError.instance(
        *(told.statement, told.params, error, kind),
        hide_parameters=told.hide_parameters,
        connection_invalidated=told.connection_invalidated,
        dialect=dialect,
    )


def run_on_driver(engine: Engine) -> None:
    """Allow that statements of an engine run on cursors of its driver.

    An error of such a statement is raised again where SQLAlchemy calls the driver.
    """
    dialect = engine.dialect
    execute = dialect.do_execute

    def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        error = _raised.get()
        if error is not None:
            raise error
        execute(cursor, statement, parameters, context)

    # This is a documented part of a dialect. The dialect belongs to this engine alone.
    dialect.do_execute = do_execute  # type: ignore[method-assign]
    execute_held_of(engine)
    _on_driver.add(dialect)


def _may_run_below(connection: Connection) -> bool:
    """Return whether nobody but the driver has to see a statement on this connection."""
    if connection.dialect not in _on_driver or not connection.in_transaction():
        return False
    engine = connection.engine
    if running_session() is not None or engine.logger.isEnabledFor(logging.INFO):
        return False
    if connection.dialect.dispatch.do_execute:
        return False
    # SQLAlchemy asks these two before it looks for listeners. There is no public question for them.
    if not (getattr(connection, "_has_events", True) or getattr(engine, "_has_events", True)):
        return True
    listeners = connection.dispatch
    return not (listeners.before_cursor_execute or listeners.after_cursor_execute)


class _Answer(NamedTuple):
    """How many rows a statement changed or returned, and the first value of the first one."""

    rows: int
    value: Any = None
