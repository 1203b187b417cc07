"""Statements of the path that every message takes: compiled once for a driver, and never again.

SQLAlchemy's `execute` finds the compiled text anew each time, by a key made of every part of the
statement, and is ready for every kind of parameter and result. That costs more processor time than
the driver needs for the statement itself. Here the text and the treatment of each parameter are
kept; what the driver returns comes back as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, CursorResult, Dialect, Executable

Treatment = Callable[[Any], Any]


class Prepared:
    """One statement. Its parameters are plain ones: no lists that become many.

    Args:
        statement: what is executed; its results are not converted, so it returns numbers or text.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._by_driver: dict[str, _Compiled] = {}

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> CursorResult[Any]:
        """Execute it; `values` has every parameter by its name."""
        driver = connection.dialect.driver
        compiled = self._by_driver.get(driver)
        if compiled is None:
            compiled = self._by_driver[driver] = _compiled(self._statement, connection.dialect)
        given = {**compiled.constants, **values}
        for name, treat in compiled.treatments:
            given[name] = treat(given[name])
        if compiled.order is None:
            return connection.exec_driver_sql(compiled.text, given)
        in_order = tuple(given[name] for name in compiled.order)
        return connection.exec_driver_sql(compiled.text, in_order)


class _Compiled(NamedTuple):
    """A statement for one driver. `order`: of its parameters; None where it takes names."""

    text: str
    order: tuple[str, ...] | None
    constants: Mapping[str, Any]
    treatments: tuple[tuple[str, Treatment], ...]


def _compiled(statement: Executable, dialect: Dialect) -> _Compiled:
    compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    constants: dict[str, Any] = {}
    treatments: list[tuple[str, Treatment]] = []
    for bound, name in compiled.bind_names.items():
        treat = bound.type.dialect_impl(dialect).bind_processor(dialect)
        if not bound.required:
            constants[name] = bound.value if treat is None else treat(bound.value)
        elif treat is not None:
            treatments.append((name, treat))
    order = tuple(compiled.positiontup) if compiled.positional else None
    return _Compiled(str(compiled), order, constants, tuple(treatments))
