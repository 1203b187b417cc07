"""Inserts stubs and returns the numbers that the database gave their rows.

One at a time, or many in few statements. The rows of many have the order in which they were given,
because their numbers are the order of their ordering keys. MySQL (not MariaDB) returns nothing but
the first number, and whether the others follow it without a gap is a matter of its settings; so it
is asked for them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, insert, select

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_arrays import rows_of_arrays
from reliable_mq.database.sql_prepared import Prepared
from reliable_mq.database.sql_types import MYSQL, is_among

Row = dict[str, Any]

_OF_ALL = ("status", "count", "resend_time", "create_date", "update_date", "owner", "lease_until")
"""Columns that are the same for all stubs of one call."""
_OF_EACH = (
    *("message_id", "topic", "tag", "message_key", "ordering_key", "content", "content_type"),
    *("properties", "required_groups", "deliver_time"),
)
ROWS_MAX = 1_000
CONTENT_SIZE_MAX = 8 * 1024 * 1024
"""Rows, and bytes of their content, in one statement; a larger stub goes alone."""
_MYSQL_CONTENT_SIZE_MAX = 2 * 1024 * 1024
"""MySQL takes no statement that is larger than its `max_allowed_packet` (16 MiB at MariaDB), and a
byte may become two on its way there."""


class StubInserts:
    """Inserts into one message stub table. Statements are built once."""

    def __init__(self, table: Table, dialect: str) -> None:
        stub = table.c
        every = {name: bindparam(name, type_=stub[name].type) for name in (*_OF_EACH, *_OF_ALL)}
        self._one = Prepared(insert(table).values(every).returning(stub.seq))
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

    def insert(self, connection: Connection, rows: Sequence[Row], of_all: Row) -> list[int]:
        """Insert stubs in the caller's transaction; return their `seq`, in the order of `rows`.

        Args:
            connection: in the transaction.
            rows: what is each stub's own.
            of_all: what is the same for all.
        """
        of_all = {"status": StubStatus.UNCONFIRMED.value, "count": 0, **of_all}
        if not connection.dialect.insert_returning:
            return self._ask_for_numbers(connection, rows, of_all)
        if len(rows) == 1:
            return [self._one.execute(connection, rows[0] | of_all).scalar_one()]
        numbers: dict[str, int] = {}
        for part in parts_of(rows, self._size_max):
            given: Any = [row | of_all for row in part]
            if self._as_arrays:
                given = {name: [row[name] for row in part] for name in _OF_EACH} | of_all
            inserted = connection.execute(self._many, given)
            numbers |= {row.message_id: row.seq for row in inserted}
        return [numbers[row["message_id"]] for row in rows]

    def _ask_for_numbers(
        self, connection: Connection, rows: Sequence[Row], of_all: Row
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
    """Return PostgreSQL's insert of many rows; numbers are drawn in the order of the arrays."""
    row = rows_of_arrays({name: table.c[name].type for name in _OF_EACH})
    of_all = [bindparam(name, type_=table.c[name].type) for name in _OF_ALL]
    chosen = select(*(row.c[name] for name in _OF_EACH), *of_all).order_by(row.c.place)
    filled = insert(table).from_select([*_OF_EACH, *_OF_ALL], chosen)
    return filled.returning(table.c.message_id, table.c.seq)


def parts_of(rows: Sequence[Row], size_max: int = CONTENT_SIZE_MAX) -> Iterator[list[Row]]:
    """Cut rows into parts of which each is one statement."""
    part: list[Row] = []
    size = 0
    for row in rows:
        if part and (len(part) == ROWS_MAX or size + len(row["content"]) > size_max):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row["content"])
    if part:
        yield part
