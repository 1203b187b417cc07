"""Statements that every message executes: compiled once for each driver.

SQLAlchemy's `execute` searches the compiled text each time, by a key of every part of the
statement, and supports every kind of parameter and result. That costs more processor time than the
driver needs for the statement itself. This module keeps the text and the conversion of each
parameter. Results of the driver are returned unchanged.

Where `run_on_driver` allows it, a statement for one row runs on a cursor of the driver: its context
and result in SQLAlchemy cost as much as the statement. This is not done where somebody else wants
to see the statement: a listener, a log, the guard of a handler's transaction. An error goes through
SQLAlchemy in any case, so that it is translated, and a lost connection is noticed.

Once psycopg has prepared a statement on a connection, it can also go with a COMMIT (`CommitTrip`).
psycopg's own pipeline costs more than the round trips that it saves. So the trip uses libpq's.
"""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple
from weakref import WeakSet

from sqlalchemy import Connection, CursorResult, Dialect, Engine, Executable, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError

from reliable_mq.database.sql_handler_session import note_ahead, running_session
from reliable_mq.database.sql_types import UtcDateTime

_on_driver: WeakSet[Dialect] = WeakSet()
_raised: ContextVar[BaseException | None] = ContextVar("reliable_mq_raised", default=None)

Treatment = Callable[[Any], Any]
_IN_TRANSACTION, _COMMAND_OK = 2, 1  # libpq's PQTRANS_INTRANS, PGRES_COMMAND_OK
_NEEDED = 2  # results of a trip: of the statement before the COMMIT, and of the COMMIT


class PreparedStatement:
    """One statement.

    A parameter may be a list if the database accepts it as one array. If the list must become many
    parameters, the statement is executed by SQLAlchemy.

    Args:
        statement: the statement. Its results are not converted, so it must return numbers or text.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._by_driver: dict[str, _Compiled | None] = {}

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> CursorResult[Any]:
        """Execute the statement; `values` has every parameter by its name."""
        compiled = self._compiled_for(connection.dialect)
        if compiled is None:
            return connection.execute(self._statement, values)
        return connection.exec_driver_sql(compiled.text, compiled.given(values))

    def change(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Execute the statement; return the number of rows that it changed."""
        cursor = self._executed_below(connection, values)
        if cursor is None:
            return self.execute(connection, values).rowcount
        count: int = cursor.rowcount
        cursor.close()
        return count

    def value(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """Execute the statement; return the only value of the only row that it returns."""
        cursor = self._executed_below(connection, values)
        if cursor is None:
            return self.execute(connection, values).scalar_one()
        (value,) = cursor.fetchone()
        cursor.close()
        return value

    def for_trip(self, connection: Connection, values: Mapping[str, Any]) -> "Prepared | None":
        """Return the statement in the form for a `CommitTrip`; None: it must be executed before.

        The driver has prepared it on this connection, in an open transaction, for values of these
        types. psycopg keeps no public list of that. Where the list is missing, nothing is lost.
        """
        if not _may_run_below(connection):
            return None
        compiled = self._compiled_for(connection.dialect)
        driver: Any = connection.connection.driver_connection
        names = getattr(getattr(driver, "_prepared", None), "_names", None)
        if compiled is None or not names or driver.pgconn.transaction_status != _IN_TRANSACTION:
            return None
        from psycopg._queries import PostgresQuery  # noqa: PLC0415 - an extra
        from psycopg.adapt import Transformer  # noqa: PLC0415

        query = PostgresQuery(Transformer(driver))
        query.convert(compiled.text, compiled.given(values))
        name = names.get((query.query, query.types))
        return None if name is None else Prepared(name, query.params, query.formats)

    def _compiled_for(self, dialect: Dialect) -> "_Compiled | None":
        if dialect.driver not in self._by_driver:
            self._by_driver[dialect.driver] = _compiled(self._statement, dialect)
        return self._by_driver[dialect.driver]

    def _executed_below(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """Return a cursor of the driver that has executed the statement; None: it must not."""
        if not _may_run_below(connection):
            return None
        compiled = self._compiled_for(connection.dialect)
        if compiled is None:
            return None
        given = compiled.given(values)
        cursor: Any = None
        try:
            cursor = connection.connection.cursor()
            cursor.execute(compiled.text, given)
        except BaseException as error:
            if cursor is not None:
                cursor.close()
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
        return cursor


class Prepared(NamedTuple):
    """A statement under the name that psycopg has given it on one connection, and its values."""

    name: bytes
    values: Sequence[Any] | None
    formats: Sequence[int] | None


class CommitTrip:
    """One round trip: a statement, the COMMIT, and perhaps a statement of the next transaction.

    Invariant: if the first statement fails, nothing is committed.

    Args:
        before: is in the transaction that commits.
        behind: is in the next transaction, if the COMMIT begins one.
    """

    def __init__(self, before: Prepared, behind: Prepared | None = None) -> None:
        self._before = before
        self._behind = behind
        #: the first statement failed, so that the COMMIT was not executed
        self.is_refused = False
        #: how many rows `behind` has changed; None: it was not sent, or has failed
        self.changed_behind: int | None = None

    def commit(self, connection: PoolProxiedConnection, word: str, *, begins_next: bool) -> None:
        """Execute everything; `word` commits.

        Raises:
            psycopg.Error: one of the first two failed, or the connection is lost.
        """
        from psycopg import OperationalError  # noqa: PLC0415 - an extra
        from psycopg.errors import error_from_result  # noqa: PLC0415

        driver: Any = connection.driver_connection
        behind = self._behind if begins_next else None
        try:
            with driver.lock:
                trip = _round_trip(driver.pgconn, self._before, word.encode(), behind)
                results = driver.wait(trip)
        except BaseException:  # nobody knows what the server has done, and what it will answer
            driver.close()
            raise
        for place, result in enumerate(results[:_NEEDED]):
            if result.status != _COMMAND_OK:
                self.is_refused = place == 0 and not driver.closed
                raise error_from_result(result, encoding=driver.info.encoding)
        if len(results) < _NEEDED:
            raise OperationalError("the connection was lost during a COMMIT")
        if behind is None:
            return
        if len(results) > _NEEDED and results[-1].status == _COMMAND_OK:
            self.changed_behind = results[-1].command_tuples
            if self.changed_behind:
                note_ahead(driver)
        else:  # the insert is tried again in a transaction of its own, and raises its error there
            with suppress(OperationalError):
                driver.rollback()


def _round_trip(
    libpq: Any, before: Prepared, word: bytes, behind: Prepared | None
) -> Generator[Any, Any, list[Any]]:
    """Send statements in libpq's pipeline; return their results. psycopg's `wait` runs it."""
    from psycopg.generators import fetch_many, send  # noqa: PLC0415 - an extra

    libpq.enter_pipeline_mode()
    libpq.send_query_prepared(before.name, before.values, param_formats=before.formats)
    libpq.send_query_params(word, None)
    if behind is not None:
        libpq.send_query_prepared(behind.name, behind.values, param_formats=behind.formats)
    libpq.pipeline_sync()
    yield from send(libpq)
    results: list[Any] = []
    for _ in range(_NEEDED if behind is None else _NEEDED + 1):
        results += yield from fetch_many(libpq)
        if libpq.status:  # the connection is lost
            return results
    yield from fetch_many(libpq)  # the end of the pipeline
    libpq.exit_pipeline_mode()
    return results


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
    _on_driver.add(dialect)


def _may_run_below(connection: Connection) -> bool:
    """Return whether nobody but the driver has to see a statement on this connection."""
    if connection.dialect not in _on_driver or not connection.in_transaction():
        return False
    listeners = connection.dispatch
    return not (
        running_session() is not None
        or listeners.before_cursor_execute
        or listeners.after_cursor_execute
        or connection.engine.logger.isEnabledFor(logging.INFO)
    )


class _Compiled(NamedTuple):
    """A statement for one driver. `order`: of its parameters; None: parameters have names.

    `moments`: the treatment of a moment that is in UTC, as ours are, and of any other.
    """

    text: str
    order: tuple[str, ...] | None
    constants: Mapping[str, Any]
    treatments: tuple[tuple[str, Treatment], ...]
    moments: tuple[tuple[str, Treatment | None, Treatment], ...]

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


def _compiled(statement: Executable, dialect: Dialect) -> _Compiled | None:
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
    return _Compiled(str(compiled), order, constants, tuple(treatments), tuple(moments))
