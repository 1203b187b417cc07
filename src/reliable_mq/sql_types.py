"""Column types of our tables. Receives values of Python; hands on what each database stores."""

from datetime import UTC, datetime

from sqlalchemy import DateTime, Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine


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
