"""Inserts into the message stub table.

Stubs are inserted one at a time, or many in few statements. Many stubs get their row numbers in the
caller's order, because row numbers are the order of an ordering key. MySQL (not MariaDB) returns
only the first number. Whether the next numbers follow without a gap depends on its settings, so
the numbers are read back.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Table,
    bindparam,
    insert,
    literal_column,
    select,
)

from reliable_mq.database.row_values import StubStatus as Status
from reliable_mq.database.sql_arrays import rows_of_arrays
from reliable_mq.database.sql_prepared import PreparedStatement, WithCommit
from reliable_mq.database.sql_types import (
    MYSQL,
    is_among,
    utc_datetime,
)
from reliable_mq.outbox.correlation import column_of
from reliable_mq.outbox.stub import Stub, groups_text

NewRow = dict[str, Any]
_OF_ALL = ("status", "count", "resend_time", "create_date", "update_date", "owner", "lease_until")
"""Columns with the same value for all stubs of one call."""
_OF_EACH = (
    *("message_id", "topic", "tag", "message_key", "ordering_key", "content", "content_type"),
    *("properties", "required_groups", "deliver_time", "correlation_id"),
)
_USUAL: Mapping[str, tuple[Any, str]] = {
    "tag": ("", "''"),
    "ordering_key": ("", "''"),
    "properties": ("{}", "'{}'"),
    "correlation_id": (None, "NULL"),
    "deliver_time": (None, "NULL"),
    "status": (Status.UNCONFIRMED.value, str(Status.UNCONFIRMED.value)),
    "count": (0, "0"),
}
"""What most new stubs have in these columns, and its literal: each parameter takes time."""
_NEW: NewRow = {"status": Status.UNCONFIRMED.value, "count": 0}
_OF_USUAL = {name: value for name, (value, _) in _USUAL.items()}.items()
_USUALLY_SAME = {"lease_until": "resend_time", "update_date": "create_date"}
"""Columns of a new stub with an owner, and the column that has the same time."""
ROWS_MAX = 1_000
CONTENT_SIZE_MAX = 8 * 1024 * 1024
"""The most rows, and bytes of their content, in one statement. A larger stub goes alone."""
_MYSQL_CONTENT_SIZE_MAX = 2 * 1024 * 1024
"""MySQL refuses a statement that is larger than its `max_allowed_packet` (16 MiB in MariaDB).
Escaping may turn one byte of content into two."""


def columns_of_all(owner: str | None, now: float, lease: float) -> NewRow:
    """Return the columns of new rows that are the same for all stubs of one call."""
    at, until = utc_datetime(now), utc_datetime(now + lease)
    return {
        "resend_time": until,
        "create_date": at,
        "update_date": at,
        "owner": owner,
        "lease_until": None if owner is None else until,
    }


def own_columns(stub: Stub) -> dict[str, Any]:
    """Return the columns of a new row that come from its stub."""
    return {
        "message_id": stub.message_id,
        "topic": stub.topic,
        "tag": stub.tag,
        "message_key": stub.message_key,
        "ordering_key": stub.ordering_key,
        "content": stub.content,
        "content_type": stub.content_type,
        "properties": json.dumps(dict(stub.properties)) if stub.properties else "{}",
        "required_groups": groups_text(stub.required_groups),
        "deliver_time": stub.deliver_time and utc_datetime(stub.deliver_time),
        "correlation_id": column_of(stub.properties) if stub.properties else None,
    }


class StubInserts:
    """Inserts into one message stub table. Statements are built once."""

    def __init__(self, table: Table, dialect: str) -> None:
        stub = table.c
        every: dict[str, Any] = {
            name: bindparam(name, type_=stub[name].type) for name in (*_OF_EACH, *_OF_ALL)
        }
        self._one = PreparedStatement(insert(table).values(every).returning(stub.seq))
        usual: dict[str, Any] = {name: literal_column(text) for name, (_, text) in _USUAL.items()}
        same = {name: every[other] for name, other in _USUALLY_SAME.items()}
        filled = insert(table).values(every | usual | same)
        self._usual = PreparedStatement(filled.returning(stub.seq))
        self._many = insert(table).returning(stub.message_id, stub.seq)
        self._plain = insert(table)
        self._numbers = select(stub.message_id, stub.seq).where(
            is_among(stub.message_id, "ids", dialect)
        )
        is_mysql = dialect in MYSQL
        self._size_max = _MYSQL_CONTENT_SIZE_MAX if is_mysql else CONTENT_SIZE_MAX
        self._as_arrays = dialect == "postgresql"
        if self._as_arrays:
            self._many = _from_arrays(table)

    def insert(self, connection: Connection, rows: Sequence[NewRow], of_all: NewRow) -> list[int]:
        """Insert stubs in the caller's transaction; return their `seq`, in the order of `rows`.

        Args:
            connection: in the transaction.
            rows: the values that differ between the stubs.
            of_all: the values that are the same for all.
        """
        of_all = _NEW | of_all
        if not connection.dialect.insert_returning:
            return self._ask_for_numbers(connection, rows, of_all)
        if len(rows) == 1:
            row = rows[0] | of_all
            return [self._of_one(row).value(connection, row)]
        numbers: dict[str, int] = {}
        for part in parts_of(rows, self._size_max):
            given: Any = [row | of_all for row in part]
            if self._as_arrays:
                given = {name: [row[name] for row in part] for name in _OF_EACH} | of_all
            inserted = connection.execute(self._many, given)
            numbers |= {row.message_id: row.seq for row in inserted}
        return [numbers[row["message_id"]] for row in rows]

    def _of_one(self, row: NewRow) -> PreparedStatement:
        is_usual = row.items() >= _OF_USUAL and row["owner"] is not None
        return self._usual if is_usual else self._one

    def with_commit(self, connection: Connection, row: NewRow) -> WithCommit | None:
        """Return what inserts a row and commits; None: it has to be inserted before."""
        row = _NEW | row
        return self._of_one(row).with_commit(connection, row)

    def _ask_for_numbers(
        self, connection: Connection, rows: Sequence[NewRow], of_all: NewRow
    ) -> list[int]:
        if len(rows) == 1:
            key = connection.execute(self._plain, rows[0] | of_all).inserted_primary_key
            return [] if key is None else [key[0]]
        numbers: dict[str, int] = {}
        for part in parts_of(rows, self._size_max):
            connection.execute(self._plain, [row | of_all for row in part])
            found = connection.execute(self._numbers, {"ids": [row["message_id"] for row in part]})
            numbers |= {row.message_id: row.seq for row in found}
        return [numbers[row["message_id"]] for row in rows]


def _from_arrays(table: Table) -> Any:
    """Return PostgreSQL's insert of many rows. It numbers the rows in the order of the arrays."""
    row = rows_of_arrays({name: table.c[name].type for name in _OF_EACH})
    of_all = [bindparam(name, type_=table.c[name].type) for name in _OF_ALL]
    chosen = select(*(row.c[name] for name in _OF_EACH), *of_all).order_by(row.c.place)
    filled = insert(table).from_select([*_OF_EACH, *_OF_ALL], chosen)
    return filled.returning(table.c.message_id, table.c.seq)


def parts_of(rows: Sequence[NewRow], size_max: int = CONTENT_SIZE_MAX) -> Iterator[list[NewRow]]:
    """Split rows into parts; each part fits one statement."""
    part: list[NewRow] = []
    size = 0
    for row in rows:
        if part and (len(part) == ROWS_MAX or size + len(row["content"]) > size_max):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row["content"])
    if part:
        yield part
