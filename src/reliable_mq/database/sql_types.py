"""Column types of our tables, conditions and dialects, and the error for missing tables.

Imports no dialect of SQLAlchemy: each brings all its drivers. An application uses one of them.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from importlib import import_module
from operator import methodcaller
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    any_,
    bindparam,
    event,
    func,
    literal_column,
    or_,
    type_coerce,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from reliable_mq.errors import UsageError

READS_ONLY = {"reliable_mq_reads_only": True}
"""Execution options of a transaction that only reads. In SQLite it does not wait for a writer: that
may be the caller."""
ANY_TEXT = {"reliable_mq_any_text": True}
"""Execution options of a transaction that reads rows which other programs may have written. In
SQLite, text that is not UTF-8 is read as `Unreadable`, so that the rows beside it can be read, too.
Other databases never hold such text."""
EARLIEST, LATEST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""Read for a moment that Python's datetime cannot represent; see `UtcDateTime`."""
COMMAND_WORDS = "reliable_mq.command_words"  # in the info of a MetaData: writes commands its way
_DISTANT_FUTURE = re.compile(r"infinity|\d{5,}-(?!.*BC).*")
_UNDEFINED_TABLE = "42P01"  # SQLSTATE
_NO_SUCH_TABLE = 1146  # the number of MySQL and MariaDB

MYSQL = ("mysql", "mariadb")
"""SQLAlchemy's names of the dialects of MySQL and MariaDB; this library calls both "mysql"."""

MYSQL_DRIVER, MYSQL_ASYNC_DRIVER = "mysql+pymysql", "mysql+aiomysql"
"""The drivers that are used, even if the URL names another: one protocol, one set of errors."""


class Drivers(NamedTuple):
    """SQLAlchemy's names of a database's drivers, including the dialect: "mysql+pymysql"."""

    for_threads: str
    for_asyncio: str


_drivers = {
    "postgresql": Drivers("postgresql+psycopg", "postgresql+psycopg"),
    "sqlite": Drivers("sqlite", "sqlite+aiosqlite"),
    **dict.fromkeys(MYSQL, Drivers(MYSQL_DRIVER, MYSQL_ASYNC_DRIVER)),
}
_like_postgresql: set[str] = set()

PARTIAL_INDEXES = ("postgresql", "sqlite")
"""The dialects with partial indexes."""


class _MediumBlob(LargeBinary):
    """MySQL's type of this name."""

    __visit_name__ = "MEDIUMBLOB"


class _MediumText(Text):
    """MySQL's type of this name."""

    __visit_name__ = "MEDIUMTEXT"


#: a number that grows with the rows; in SQLite only a column of exactly type INTEGER grows
GrowingNumber = BigInteger().with_variant(Integer, "sqlite")
#: the body of a message; MySQL's BLOB holds at most 64 KiB
Body = LargeBinary().with_variant(_MediumBlob(), *MYSQL)
#: text of any length; MySQL's TEXT holds at most 64 KiB
LongText = Text().with_variant(_MediumText(), *MYSQL)


NOTE_LENGTH_MAX = 1000
"""The most characters of a reason or a note for people."""


def plain_text(text: str) -> str:
    """Return a text in a form that every database accepts.

    PostgreSQL accepts no NUL, and a lone surrogate has no UTF-8: both become escapes. An error may
    quote any text, and that text must not prevent the record of the error.
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


class PlainText(TypeDecorator[str]):
    """Text for people, from any source: made plain, and cut if it is too long."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        return None if value is None else plain_text(value)[: self.length]


class Unreadable(str):
    """Text that is not UTF-8; unreadable bytes are replaced."""

    __slots__ = ()


def any_text(raw: bytes) -> str:
    """Return the text of a column of SQLite; `Unreadable` if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Unreadable(raw.decode(errors="replace"))


utc_datetime: Callable[[float], datetime] = partial(datetime.fromtimestamp, tz=UTC)
"""Return an aware UTC datetime for seconds since the epoch."""


class _AsText(FunctionElement[str]):
    """A column in a form that a driver can read, whatever its value is."""

    inherit_cache = True


@compiles(_AsText)
def _as_text(element: _AsText, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    # psycopg raises at infinity, at years before Christ and after 9999, and then all rows of the
    # answer are lost. JSON has ISO 8601 for every DateStyle of the connection.
    is_raising = dialect_family(compiler.dialect.name) == "postgresql"
    return f"CAST(to_json({column}) AS TEXT)" if is_raising else column


@cache
def _sqlite_text() -> type[TypeEngine[datetime]]:
    """Return the type of a moment in SQLite: SQLAlchemy writes it, and `UtcDateTime` reads it."""
    from sqlalchemy.dialects import sqlite  # noqa: PLC0415 - see the head

    class _SqliteText(sqlite.DATETIME):
        def result_processor(self, dialect: Dialect, coltype: object) -> None:  # noqa: ARG002
            return None

    return _SqliteText


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC.

    PostgreSQL stores `timestamptz`. SQLite has no such type: it stores ISO text without an offset,
    always UTC, so that text order is time order. MySQL stores DATETIME(6), also UTC, because a
    TIMESTAMP ends in 2038. Values are written and read as aware datetimes.

    A value of another program that Python cannot represent is read as `EARLIEST`, or as `LATEST`
    if it lies in the distant future. So an odd value does not prevent the reading of other rows.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[datetime]:
        if dialect_family(dialect.name) == "postgresql":
            return dialect.type_descriptor(DateTime(timezone=True))
        if dialect.name in MYSQL:
            from sqlalchemy.dialects import mysql  # noqa: PLC0415 - see the head

            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return _sqlite_text()()

    def column_expression(self, column: ColumnElement[datetime]) -> ColumnElement[datetime]:
        """Return the expression that is selected instead of a column or a function of it."""
        return type_coerce(_AsText(column), self)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a time zone: give one in UTC")
        value = value.astimezone(UTC)
        has_zone = dialect.name == "postgresql" or dialect.name in _like_postgresql
        return value if has_zone else value.replace(tzinfo=None)

    def treatment_of_utc(self, dialect: Dialect) -> Callable[[datetime], Any] | None:
        """Return what makes a parameter of a moment that is in UTC; None: it is one."""
        if dialect.name == "postgresql" or dialect.name in _like_postgresql:
            return None
        return self.impl_instance.bind_processor(dialect) or methodcaller("replace", tzinfo=None)

    def process_result_value(self, value: Any, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        try:
            if isinstance(value, str):
                value = value.strip('"')  # of JSON, see `_as_text`
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            if moment.tzinfo is None:
                return cast("datetime", moment.replace(tzinfo=UTC))
            return cast("datetime", moment.astimezone(UTC))
        except (AttributeError, TypeError, ValueError, OverflowError):
            return LATEST if _DISTANT_FUTURE.fullmatch(str(value)) else EARLIEST


def only_on(dialects: tuple[str, ...], *indexes: Index) -> None:
    """Create these indexes on these dialects only."""

    def is_wanted(_ddl: Any, index: Any, _bind: Any, *, dialect: Dialect, **_more: Any) -> bool:
        return is_on(index, dialect.name)

    for index in indexes:
        index.info["dialects"] = dialects
        index.ddl_if(callable_=is_wanted)  # type: ignore[arg-type]  # it names what it does not need


def is_on(index: Index, dialect: str) -> bool:
    """Return whether an index belongs to its table on a dialect."""
    dialects = index.info.get("dialects")
    return dialects is None or dialect in dialects or dialect_family(dialect) in dialects


def register_like_postgresql(name: str, *, driver: str, async_driver: str) -> None:
    """Allow URLs of a database that accepts PostgreSQL's SQL under its own dialect name.

    For dialects that are derived from SQLAlchemy's PostgreSQL dialect (CockroachDB's, say). The
    database gets PostgreSQL's statements, types and indexes, and its errors are read as
    PostgreSQL's SQLSTATEs. It must have advisory locks. Without NOTIFY, relays search by
    themselves. It has no partitions by day. Test it with `testing.database_contract`.

    Args:
        name: the beginning of its URLs: "cockroachdb".
        driver: its driver for threads: "cockroachdb+psycopg".
        async_driver: its driver for asyncio.

    Raises:
        UsageError: the name is a database that is supported already, or a driver has another
            dialect.
    """
    if name in _drivers and name not in _like_postgresql:
        raise UsageError(f"{name!r} is supported already, with its own statements")
    if not all(each.partition("+")[0] == name for each in (driver, async_driver)):
        raise UsageError(f"{driver!r}, {async_driver!r}: not drivers of the dialect {name!r}")
    _drivers[name] = Drivers(driver, async_driver)
    _like_postgresql.add(name)


def drivers_of(dialect: str) -> Drivers | None:
    """Return the drivers that are used for a dialect; None: it is not supported."""
    return _drivers.get(dialect)


def dialect_family(dialect: str) -> str:
    """Return a dialect's family: "sqlite", "postgresql", "mysql"; otherwise its own name.

    A family shares its SQL statements.
    """
    if dialect in MYSQL:
        return "mysql"
    return "postgresql" if dialect in _like_postgresql else dialect


def insert_of(dialect: str) -> Callable[[Table], Any]:
    """Return the `insert` of a dialect's family, which has its own clause for existing rows."""
    family = import_module(f"sqlalchemy.dialects.{dialect_family(dialect)}")
    insert: Callable[[Table], Any] = family.insert
    return insert


def table_options(dialect: Dialect) -> dict[str, str]:
    """Return options for `CREATE TABLE` that make our tables alike on all dialects.

    On MySQL: transactions, and an exact comparison of text. Its usual collations treat "Orders" as
    "orders" and "é" as "e", its old binary ones "a" as "a ": two messages would be one. The
    collation that compares exactly has one name in MySQL and another in MariaDB.
    """
    if dialect.name not in MYSQL:
        return {}
    exact = "utf8mb4_nopad_bin" if getattr(dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
    options = {"engine": "InnoDB", "charset": "utf8mb4", "collate": exact}
    return {f"{dialect.name}_{name}": value for name, value in options.items()}


def set_table_options(metadata: MetaData) -> MetaData:
    """Create the tables of `metadata` with `table_options`; return `metadata`."""

    @event.listens_for(metadata, "before_create")
    def _on_create(target: MetaData, connection: Connection, **_more: Any) -> None:
        options = table_options(connection.dialect)
        for table in target.tables.values():
            table.dialect_kwargs.update(options)

    return metadata


def for_one_statement(engine: Engine) -> Engine:
    """Return the engine for statements that need no transaction: one round trip instead of three.

    On PostgreSQL only. SQLite has no round trips, and MySQL would set the mode each time.
    """
    if engine.dialect.name != "postgresql":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def is_among(column: ColumnElement[Any], parameter: str, dialect: str) -> ColumnElement[bool]:
    """Return the condition: the column is one of the values of a list parameter.

    On PostgreSQL the list is one array, so that any number of values has the same statement text
    and one prepared plan.
    """
    if dialect == "postgresql":
        return column == any_(bindparam(parameter, type_=ARRAY(column.type)))
    return column.in_(bindparam(parameter, expanding=True))


def has_no_id_time(message_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition: an id is not a UUIDv7 of ours (32 upper-case digits, time first).

    Our ids sort by time. The others must be found separately, by partial indexes. The condition
    uses literals only: otherwise those indexes would not be used.
    """

    def digit(place: int) -> ColumnElement[str]:
        return func.substr(message_id, literal_column(str(place)), literal_column("1"))

    variants: list[ColumnElement[str]] = [literal_column(f"'{each}'") for each in "89AB"]
    return or_(
        func.length(message_id) != literal_column("32"),
        digit(13) != literal_column("'7'"),
        digit(17).not_in(variants),
        message_id != func.upper(message_id),
    )


def missing_table_text(name: str, metadata: MetaData) -> str:
    """Return the error text for a missing table, in the words of its owner (`COMMAND_WORDS`)."""
    text: str = metadata.info.get(COMMAND_WORDS, str)(
        f"table {name} is missing: call mq.create_tables() "
        "or run reliable-mq create-tables --app MODULE:OBJECT (with Alembic: reliable-mq migrate)"
    )
    return text


def is_missing_table(error: BaseException) -> bool:
    """Return whether a statement failed because its table is missing."""
    if not isinstance(error, DBAPIError):
        return False
    if sqlstate_of(error.orig) == _UNDEFINED_TABLE:
        return True
    return mysql_code(error) == _NO_SUCH_TABLE or "no such table" in str(error.orig)


def mysql_code(error: DBAPIError) -> int | None:
    """Return the number of an error of MySQL or its driver; None: of another database."""
    return mysql_code_of(error.orig)


def mysql_code_of(cause: BaseException | None) -> int | None:
    """Return the same for an error as any driver of MySQL raises it."""
    if cause is None or isinstance(cause, OSError) or hasattr(cause, "sqlite_errorcode"):
        return None
    code = cause.args[0] if cause.args else None
    if not isinstance(code, int):  # MariaDB's own driver has its text in this place
        code = getattr(cause, "errno", None)
    return code if isinstance(code, int) else None


def sqlstate_of(cause: BaseException | None) -> str | None:
    """Return the SQLSTATE of an error that any driver of PostgreSQL raised; None: it has none."""
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state is None and cause is not None and cause.args and isinstance(cause.args[0], dict):
        state = cause.args[0].get("C")  # pg8000 passes the fields of the server's message
    return None if state is None else str(state)
