"""Statements that every message executes: compiled once for each driver.

SQLAlchemy's `execute` searches the compiled text each time, by a key of every part of the
statement, and supports every kind of parameter and result. That costs more processor time than the
driver needs for the statement itself. This module keeps the text and the conversion of each
parameter. Results of the driver are returned unchanged.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, CursorResult, Dialect, Executable

from reliable_mq.database.sql_types import UtcDateTime

Treatment = Callable[[Any], Any]


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
        driver = connection.dialect.driver
        if driver not in self._by_driver:
            self._by_driver[driver] = _compiled(self._statement, connection.dialect)
        compiled = self._by_driver[driver]
        if compiled is None:
            return connection.execute(self._statement, values)
        given = {**compiled.constants, **values}
        for name, of_utc, treat in compiled.moments:
            moment = given[name]
            if type(moment) is not datetime or moment.tzinfo is not UTC:
                given[name] = None if moment is None else treat(moment)
            elif of_utc is not None:
                given[name] = of_utc(moment)
        for name, treat in compiled.treatments:
            given[name] = treat(given[name])
        if compiled.order is None:
            return connection.exec_driver_sql(compiled.text, given)
        in_order = tuple(map(given.__getitem__, compiled.order))
        return connection.exec_driver_sql(compiled.text, in_order)


class _Compiled(NamedTuple):
    """A statement for one driver. `order`: of its parameters; None: parameters have names.

    `moments`: the treatment of a moment that is in UTC, as ours are, and of any other.
    """

    text: str
    order: tuple[str, ...] | None
    constants: Mapping[str, Any]
    treatments: tuple[tuple[str, Treatment], ...]
    moments: tuple[tuple[str, Treatment | None, Treatment], ...]


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
