"""What our tables share: the type of their times, and the error when they are not there."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, DateTime, Dialect, any_, bindparam
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeDecorator, TypeEngine

TABLE_PREFIX_PATTERN = r"^[a-z][a-z0-9_]{0,31}$"
READS_ONLY = {"reliable_mq_reads_only": True}
"""Execution options of a transaction that only reads: in SQLite it does not wait for a writer, who
may be the caller."""
_UNDEFINED_TABLE = "42P01"  # SQLSTATE


def utc_datetime(seconds: float) -> datetime:
    """Return an aware UTC datetime for `seconds` since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC.

    PostgreSQL stores `timestamptz`. SQLite has no such type: there it is ISO text without an
    offset, always UTC, so that text order is time order. Values go in and come out aware.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[datetime]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(DateTime(timezone=True))
        return dialect.type_descriptor(DateTime(timezone=False))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a time zone; give one in UTC")
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        return value.astimezone(UTC)


def is_among(column: ColumnElement[Any], parameter: str, dialect: str) -> ColumnElement[bool]:
    """Say that the column is one of the values of a list parameter.

    On PostgreSQL the list is one array, so that a statement has one text, and one prepared plan,
    for any number of values.
    """
    if dialect == "postgresql":
        return column == any_(bindparam(parameter, type_=ARRAY(column.type)))
    return column.in_(bindparam(parameter, expanding=True))


def missing_table_text(name: str) -> str:
    """Return what to tell somebody whose table is missing."""
    return (
        f"table {name} is missing: call mq.create_tables() "
        "or run reliable-mq create-tables MODULE:OBJECT"
    )


def is_missing_table(error: BaseException) -> bool:
    """Say whether a statement failed because its table is not there."""
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return state == _UNDEFINED_TABLE or "no such table" in str(error.orig)
