"""Inserts rows into the consume log, where a rival may have been first; by dialect.

Receives rows as dictionaries; returns which of them are ours. The primary key decides: an insert
waits for an open transaction that has inserted the same key. PostgreSQL and SQLite skip existing
rows by ON CONFLICT. MySQL and MariaDB have no such clause. (INSERT IGNORE also cuts text that is
too long, and two messages become one.) There, a failed statement leaves the transaction intact, so
the failure is the answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    false,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.attempt_list import LIST_LENGTH_MAX
from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_arrays import rows_of_arrays
from reliable_mq.database.sql_prepared import PreparedStatement
from reliable_mq.database.sql_types import LongText, dialect_family, insert_of, is_among, mysql_code
from reliable_mq.errors import ConfigurationError

Rows = Sequence[dict[str, Any]]
_DUPLICATE_ENTRY = 1062  # of MySQL and MariaDB
_SAME = ("consumer_group", "state", "lease_until", "create_date", "consume_date")
"""Columns that are the same for all rows of one call."""
_FIRST: Mapping[str, tuple[Any, ColumnElement[Any]]] = {
    "state": (LogState.CONSUMED.value, literal_column(str(LogState.CONSUMED.value))),
    "attempt": (1, literal_column("1")),
    "lease_until": (None, null()),
    "in_doubt": (False, false()),
}
"""What most rows have in these columns, and its literal: each parameter takes time."""
_OF_FIRST = {name: value for name, (value, _) in _FIRST.items()}.items()
LINES = "failures"
"""The column with the list of attempts."""
LINE: Any = bindparam("line", type_=LongText)
"""The parameter with one more line of it."""


class LogInserts(Protocol):
    """Inserts into the consume log of one database, in the caller's transaction."""

    def one(self, connection: Connection, row: dict[str, Any]) -> bool:
        """Insert a row; False: a row exists and was not changed."""
        ...

    def all(self, connection: Connection, rows: Rows) -> bool:
        """Insert rows; False: some existed, so the transaction must be rolled back."""
        ...

    def some(self, connection: Connection, rows: Rows) -> set[str]:
        """Insert the missing rows of one group; return their identities."""
        ...

    def insert_failed(self, connection: Connection, row: dict[str, Any], token: str) -> bool:
        """Insert a failed attempt, or turn an existing row into one; False: neither was allowed.

        An existing row must be RECEIVED, and without an owner or owned by `token`. The line in
        `failures` is added to its list.
        """
        ...


class ConflictInserts:
    """For PostgreSQL and SQLite."""

    def __init__(self, table: Table, identity: str, dialect: str, told: Sequence[str]) -> None:
        log = table.c
        new = insert_of(dialect)(table)
        either = new.on_conflict_do_nothing()
        self._table = table
        self._identity = identity
        self._either = either
        self._many = either.returning(log[identity])
        self._as_arrays = dialect == "postgresql"
        # By the written columns, which depend on the known facts about the messages, and by
        # whether it is an ordinary first attempt.
        self._one: dict[tuple[tuple[str, ...], bool], PreparedStatement] = {}
        self._arrays: dict[tuple[str, ...], PreparedStatement] = {}
        self._failed: Any = new
        if told:
            self._failed = new.on_conflict_do_update(
                index_elements=[log.consumer_group, log[identity]],
                set_={
                    "attempt": _later(new.excluded.attempt, log.attempt),
                    "owner": null(),
                    "in_doubt": or_(new.excluded.in_doubt, log.in_doubt),
                    LINES: appended(log.failures, new.excluded.failures),
                    **{name: new.excluded[name] for name in told},
                },
                where=_may_fail(table),
            ).execution_options(preserve_rowcount=True)

    def one(self, connection: Connection, row: dict[str, Any]) -> bool:
        """See `LogInserts`."""
        is_first = row.items() >= _OF_FIRST and row["consume_date"] is row["create_date"]
        kind = tuple(row), is_first
        if kind not in self._one:
            self._one[kind] = PreparedStatement(self._either.values(self._values_of(*kind)))
        return self._one[kind].change(connection, row) == 1

    def _values_of(self, columns: Sequence[str], is_first: bool) -> dict[str, Any]:
        values: dict[str, Any] = {
            name: bindparam(name, type_=self._table.c[name].type) for name in columns
        }
        if is_first:
            values |= {name: literal for name, (_, literal) in _FIRST.items()}
            values["consume_date"] = values["create_date"]
        return values

    def all(self, connection: Connection, rows: Rows) -> bool:
        """See `LogInserts`."""
        return len(self.some(connection, rows)) == len(rows)

    def some(self, connection: Connection, rows: Rows) -> set[str]:
        """See `LogInserts`."""
        if len(rows) == 1:
            return {rows[0][self._identity]} if self.one(connection, rows[0]) else set()
        if not self._as_arrays:
            return set(connection.execute(self._many, list(rows)).scalars())
        columns = tuple(rows[0])
        if columns not in self._arrays:
            self._arrays[columns] = PreparedStatement(self._of_arrays(columns))
        values = {name: rows[0][name] for name in columns if name in _SAME}
        values |= {name: [row[name] for row in rows] for name in columns if name not in _SAME}
        return set(self._arrays[columns].execute(connection, values).scalars())

    def _of_arrays(self, columns: tuple[str, ...]) -> Any:
        """Return the insert of many rows, with an array for each column; see `sql_arrays`."""
        types = {name: self._table.c[name].type for name in columns}
        row = rows_of_arrays({name: type_ for name, type_ in types.items() if name not in _SAME})
        values = [
            bindparam(name, type_=types[name]) if name in _SAME else row.c[name] for name in columns
        ]
        filled = insert_of("postgresql")(self._table).from_select(
            list(columns), select(*values).order_by(row.c.place)
        )
        return filled.on_conflict_do_nothing().returning(self._table.c[self._identity])

    def insert_failed(self, connection: Connection, row: dict[str, Any], token: str) -> bool:
        """See `LogInserts`."""
        changed: int = connection.execute(self._failed, row | {"token": token}).rowcount
        return changed == 1


class DuplicateInserts:
    """For MySQL and MariaDB."""

    def __init__(self, table: Table, identity: str, told: Sequence[str]) -> None:
        log = table.c
        self._identity = identity
        self._told = told
        self._insert = insert(table)
        # Locks existing rows without changing them; the owners are read afterwards.
        self._either = insert_of("mysql")(table).on_duplicate_key_update(state=log.state)
        self._owners = select(log[identity], log.owner, log.state).where(
            log.consumer_group == bindparam("group"), is_among(log[identity], "ids", "mysql")
        )
        new_attempt: ColumnElement[int] = bindparam("new_attempt", type_=log.attempt.type)
        new_doubt: ColumnElement[bool] = bindparam("new_doubt", type_=Boolean)
        self._failed: Any = None
        if not told:
            return
        self._failed = (
            update(table)
            .where(
                log.consumer_group == bindparam("group"),
                log[identity] == bindparam("this"),
                _may_fail(table),
            )
            .values(
                attempt=_later(new_attempt, log.attempt),
                owner=null(),
                in_doubt=case((new_doubt, true()), else_=log.in_doubt),
                failures=appended(log.failures),
                **{name: bindparam(f"new_{name}") for name in told},
            )
        )

    def one(self, connection: Connection, row: dict[str, Any]) -> bool:
        """See `LogInserts`."""
        return self._inserted(connection, row)

    def all(self, connection: Connection, rows: Rows) -> bool:
        """See `LogInserts`."""
        return self._inserted(connection, list(rows))

    def _inserted(self, connection: Connection, rows: Any) -> bool:
        try:
            connection.execute(self._insert, rows)
        except IntegrityError as error:
            if mysql_code(error) == _DUPLICATE_ENTRY:
                return False
            raise
        return True

    def some(self, connection: Connection, rows: Rows) -> set[str]:
        """See `LogInserts`."""
        connection.execute(self._either, list(rows))
        wanted = {row[self._identity]: (row["owner"], row["state"]) for row in rows}
        these = {"group": rows[0]["consumer_group"], "ids": sorted(wanted)}
        found = connection.execute(self._owners, these).all()
        return {identity for identity, *seen in found if tuple(seen) == wanted[identity]}

    def insert_failed(self, connection: Connection, row: dict[str, Any], token: str) -> bool:
        """See `LogInserts`."""
        new = {name: value for name, value in row.items() if name != LINES}
        connection.execute(self._either, new)  # the second statement adds the line
        values = {
            "group": row["consumer_group"],
            "this": row[self._identity],
            "new_attempt": row["attempt"],
            "new_doubt": row["in_doubt"],
            "token": token,
            "line": row[LINES],
            **{f"new_{name}": row[name] for name in self._told},
        }
        return connection.execute(self._failed, values).rowcount == 1


def appended(
    column: ColumnElement[str], line: Any = LINE, length_max: int = LIST_LENGTH_MAX
) -> ColumnElement[str]:
    """Return a list of attempts with one more line; unchanged if it is too long for one."""
    there: ColumnElement[str] = func.coalesce(column, "")
    return case((func.length(there) < length_max, there + line), else_=column)


def _later(new: ColumnElement[int], old: ColumnElement[int]) -> ColumnElement[int]:
    return case((new > old, new), else_=old)


def _may_fail(table: Table) -> ColumnElement[bool]:
    log = table.c
    ours = or_(log.owner.is_(None), log.owner == bindparam("token"))
    return and_(log.state == LogState.RECEIVED.value, ours)


def inserts_of(table: Table, identity: str, dialect: str, told: Sequence[str]) -> LogInserts:
    """Return the inserts for a dialect.

    Args:
        table: the consume log, or a table with the same columns and rules.
        identity: the column that, with the consumer group, is its primary key.
        dialect: SQLAlchemy's name of the dialect.
        told: the columns that a failed attempt writes unchanged.

    Raises:
        ConfigurationError: the database is not supported.
    """
    family = dialect_family(dialect)
    if family == "mysql":
        return DuplicateInserts(table, identity, told)
    if family not in ("postgresql", "sqlite"):
        raise ConfigurationError(
            f"the database {dialect!r} is not supported; use postgresql+psycopg://…, "
            "mysql+pymysql://… or sqlite:///…"
        )
    return ConflictInserts(table, identity, family, told)
