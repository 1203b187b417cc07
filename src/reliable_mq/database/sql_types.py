"""What our tables share: the types of their columns, and the error when they are not there."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, cast

from sqlalchemy import (
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
    Text,
    any_,
    bindparam,
    event,
    func,
    literal_column,
    or_,
    type_coerce,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from reliable_mq.errors import UsageError

TABLE_PREFIX_PATTERN = r"^[a-z][a-z0-9_]{0,31}$"
READS_ONLY = {"reliable_mq_reads_only": True}
"""Execution options of a transaction that only reads: in SQLite it does not wait for a writer, who
may be the caller."""
ANY_TEXT = {"reliable_mq_any_text": True}
"""Execution options of a transaction that reads rows which others may have written to: in SQLite,
text that is no UTF-8 comes as `Unreadable`, and does not take the rows beside it along. Other
databases hold none."""
EARLIEST, LATEST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""What is read for a moment that no datetime of Python can be; see `UtcDateTime`."""
_DISTANT_FUTURE = re.compile(r"infinity|\d{5,}-(?!.*BC).*")
_UNDEFINED_TABLE = "42P01"  # SQLSTATE
_NO_SUCH_TABLE = 1146  # the number of MySQL and MariaDB

MYSQL = ("mysql", "mariadb")
"""What SQLAlchemy calls the dialects of MySQL and MariaDB; to us they are one, "mysql"."""

MYSQL_DRIVER, MYSQL_ASYNC_DRIVER = "mysql+pymysql", "mysql+aiomysql"
"""The drivers that we use, whichever the URL names: one protocol, one set of errors."""


class Drivers(NamedTuple):
    """SQLAlchemy's names of a database's drivers, with the dialect's: "mysql+pymysql"."""

    for_threads: str
    for_asyncio: str


_drivers = {
    "postgresql": Drivers("postgresql+psycopg", "postgresql+psycopg"),
    "sqlite": Drivers("sqlite", "sqlite+aiosqlite"),
    **dict.fromkeys(MYSQL, Drivers(MYSQL_DRIVER, MYSQL_ASYNC_DRIVER)),
}
_like_postgresql: set[str] = set()

PARTIAL_INDEXES = ("postgresql", "sqlite")
"""The dialects whose indexes may leave rows out."""

#: a number that grows with the rows; SQLite makes only a column of exactly type INTEGER grow
GrowingNumber = BigInteger().with_variant(Integer, "sqlite")
#: the body of a message; MySQL's BLOB ends at 64 KiB
Body = LargeBinary().with_variant(mysql.MEDIUMBLOB(), *MYSQL)
#: text of any length; MySQL's TEXT ends at 64 KiB
LongText = Text().with_variant(mysql.MEDIUMTEXT(), *MYSQL)


NOTE_LENGTH_MAX = 1000
"""Characters of a reason or a note, of what is kept for people to read."""


def plain_text(text: str) -> str:
    """Return what somebody said as every database takes it.

    PostgreSQL takes no NUL, and a lone surrogate has no UTF-8: they come as escapes. An error may
    quote whatever it met, and its text must not keep what happened from being written down.
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


class PlainText(TypeDecorator[str]):
    """Text for people, whoever said it: made plain, and cut where it is too long."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        return None if value is None else plain_text(value)[: self.length]


class Unreadable(str):
    """Text that is no UTF-8, as far as it reads."""

    __slots__ = ()


def any_text(raw: bytes) -> str:
    """Return the text that a column of SQLite holds, `Unreadable` when it is none."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Unreadable(raw.decode(errors="replace"))


utc_datetime: Callable[[float], datetime] = partial(datetime.fromtimestamp, tz=UTC)
"""Returns an aware UTC datetime for seconds since the epoch."""


class _AsText(FunctionElement[str]):
    """A column in a form in which a driver can read whatever is there."""

    inherit_cache = True


@compiles(_AsText)
def _as_text(element: _AsText, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    # psycopg raises at infinity, before Christ and after 9999, and with one row all others of the
    # answer are lost. JSON is ISO 8601, whatever the DateStyle of the connection is.
    is_raising = family_of(compiler.dialect.name) == "postgresql"
    return f"CAST(to_json({column}) AS TEXT)" if is_raising else column


class _SqliteText(sqlite.DATETIME):
    """A moment that SQLAlchemy writes, and that is read by `UtcDateTime`."""

    def result_processor(self, dialect: Dialect, coltype: object) -> None:  # noqa: ARG002
        return None


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC.

    PostgreSQL stores `timestamptz`. SQLite has no such type: there it is ISO text without an
    offset, always UTC, so that text order is time order; in MySQL it is a DATETIME(6), also UTC,
    because a TIMESTAMP ends in 2038. Values go in and come out aware.

    What somebody else wrote there and is no moment that Python knows is read as `EARLIEST`, or as
    `LATEST` when it lies in the distant future: reading one row must not take others along.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[datetime]:
        if family_of(dialect.name) == "postgresql":
            return dialect.type_descriptor(DateTime(timezone=True))
        if dialect.name in MYSQL:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return _SqliteText()  # type: ignore[no-untyped-call]

    def column_expression(self, column: ColumnElement[datetime]) -> ColumnElement[datetime]:
        """Return what is selected instead of a column, or of a function of it."""
        return type_coerce(_AsText(column), self)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a time zone; give one in UTC")
        value = value.astimezone(UTC)
        has_zone = dialect.name == "postgresql" or dialect.name in _like_postgresql
        return value if has_zone else value.replace(tzinfo=None)

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
    """Let indexes be there on these dialects only."""

    def is_wanted(_ddl: Any, index: Any, _bind: Any, *, dialect: Dialect, **_more: Any) -> bool:
        return is_on(index, dialect.name)

    for index in indexes:
        index.info["dialects"] = dialects
        index.ddl_if(callable_=is_wanted)  # type: ignore[arg-type]  # it names what it does not need


def is_on(index: Index, dialect: str) -> bool:
    """Say whether an index belongs to a table on a dialect."""
    dialects = index.info.get("dialects")
    return dialects is None or dialect in dialects or family_of(dialect) in dialects


def register_like_postgresql(name: str, *, driver: str, async_driver: str) -> None:
    """Let URLs name a database that takes PostgreSQL's SQL under a name of its own.

    For dialects that others have made from SQLAlchemy's PostgreSQL dialect (CockroachDB's, say).
    It gets PostgreSQL's statements, types and indexes, and is judged by the same SQLSTATEs. It has
    to know advisory locks. Without NOTIFY relays look by themselves, and there are no partitions by
    day. Whether it keeps what the promises rest on is for `testing.database_contract` to say.

    Args:
        name: what its URLs begin with: "cockroachdb".
        driver: its driver for threads: "cockroachdb+psycopg".
        async_driver: its driver for asyncio.

    Raises:
        UsageError: when the name is one that we know, or a driver is not the dialect's.
    """
    if name in _drivers and name not in _like_postgresql:
        raise UsageError(f"{name!r} is a database that we know; its statements are its own")
    if not all(each.partition("+")[0] == name for each in (driver, async_driver)):
        raise UsageError(f"{driver!r}, {async_driver!r}: no drivers of the dialect {name!r}")
    _drivers[name] = Drivers(driver, async_driver)
    _like_postgresql.add(name)


def drivers_of(dialect: str) -> Drivers | None:
    """Return the drivers that we use for a dialect; None: it is none that we know."""
    return _drivers.get(dialect)


def family_of(dialect: str) -> str:
    """Return whose statements a dialect takes: "sqlite", "postgresql", "mysql"; else its name."""
    if dialect in MYSQL:
        return "mysql"
    return "postgresql" if dialect in _like_postgresql else dialect


def table_options(dialect: Dialect) -> dict[str, str]:
    """Return what `CREATE TABLE` must say so that a table of ours is what it is elsewhere.

    On MySQL: transactions, and text that is compared letter for letter. Its usual collations take
    "Orders" for "orders" and "é" for "e", its binary ones of old "a" for "a ": two messages would
    be one. The collation that does neither has two names.
    """
    if dialect.name not in MYSQL:
        return {}
    exact = "utf8mb4_nopad_bin" if getattr(dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
    options = {"engine": "InnoDB", "charset": "utf8mb4", "collate": exact}
    return {f"{dialect.name}_{name}": value for name, value in options.items()}


def let_tables_be_alike(metadata: MetaData) -> MetaData:
    """Let the tables of `metadata` be created with `table_options`; return it."""

    @event.listens_for(metadata, "before_create")
    def _on_create(target: MetaData, connection: Connection, **_more: Any) -> None:
        options = table_options(connection.dialect)
        for table in target.tables.values():
            table.dialect_kwargs.update(options)

    return metadata


def for_one_statement(engine: Engine) -> Engine:
    """Return the engine for what needs no transaction: one round trip instead of three.

    On PostgreSQL only: SQLite has no such trips, and MySQL would be told the mode each time.
    """
    if engine.dialect.name != "postgresql":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def is_among(column: ColumnElement[Any], parameter: str, dialect: str) -> ColumnElement[bool]:
    """Say that the column is one of the values of a list parameter.

    On PostgreSQL the list is one array, so that a statement has one text, and one prepared plan,
    for any number of values.
    """
    if dialect == "postgresql":
        return column == any_(bindparam(parameter, type_=ARRAY(column.type)))
    return column.in_(bindparam(parameter, expanding=True))


def tells_no_time(message_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Say that an id is not one of ours: 32 upper-case digits that begin with its time, a UUIDv7.

    Ours stand in the order of their time. The others have to be found among them, so partial
    indexes hold these; literals throughout, or they would not be used.
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


def missing_table_text(name: str) -> str:
    """Return what to tell somebody whose table is missing."""
    return (
        f"table {name} is missing: call mq.create_tables() "
        "or run reliable-mq create-tables MODULE:OBJECT (with Alembic: reliable-mq migrate)"
    )


def is_missing_table(error: BaseException) -> bool:
    """Say whether a statement failed because its table is not there."""
    if not isinstance(error, DBAPIError):
        return False
    if sqlstate_of(error.orig) == _UNDEFINED_TABLE:
        return True
    return mysql_code(error) == _NO_SUCH_TABLE or "no such table" in str(error.orig)


def mysql_code(error: DBAPIError) -> int | None:
    """Return the number of an error of MySQL or of its driver; None: it is another database's."""
    return mysql_code_of(error.orig)


def mysql_code_of(cause: BaseException | None) -> int | None:
    """Return the same of an error as any driver of MySQL raises it."""
    if cause is None or isinstance(cause, OSError) or hasattr(cause, "sqlite_errorcode"):
        return None
    code = cause.args[0] if cause.args else None
    if not isinstance(code, int):  # MariaDB's own driver has its text there
        code = getattr(cause, "errno", None)
    return code if isinstance(code, int) else None


def sqlstate_of(cause: BaseException | None) -> str | None:
    """Return the SQLSTATE of an error as any driver of PostgreSQL raises it; None: it has none."""
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state is None and cause is not None and cause.args and isinstance(cause.args[0], dict):
        state = cause.args[0].get("C")  # pg8000 gives the fields of the server's message
    return None if state is None else str(state)
