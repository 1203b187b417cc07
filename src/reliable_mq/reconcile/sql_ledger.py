"""The tables of an application as ledgers: key ranges, and the rows of a range as Arrow batches.

Receives a SQLAlchemy URL; hands on ranges found from the database itself and, for each of them, its
rows. It reads only. A range is half open and compared by the database, so that ranges neither
overlap nor leave a gap whatever the collation is; the outermost ones are open.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    Table,
    and_,
    create_engine,
    func,
    inspect,
    make_url,
    or_,
    select,
    true,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.sql_tables import consume_log_table
from reliable_mq.outbox.sql_tables import message_stub_table
from reliable_mq.resend.sql_scheduling_tables import retention_table
from reliable_mq.resend.sql_tables import confirmation_table
from reliable_mq.sql_types import MYSQL, MYSQL_DRIVER
from reliable_mq.wire.record import body_checksum

STUB, CONSUME_LOG, TOLD = "stub", "consume_log", "confirmation"
NEEDED = (STUB, CONSUME_LOG)
ROWS_PER_PARTITION = 250_000
PARTITIONS_MAX = 1_000
_BATCH_ROWS = 10_000
_ID_DIGITS = 32
_ID_PREFIX_DIGITS = 12  # the milliseconds of a message id (`message.new_message_id`)

_TEXT, _INT, _LONG, _BYTES = pa.string(), pa.int32(), pa.int64(), pa.binary()
_TIME = pa.timestamp("us", tz="UTC")

# What a reader of each table gets, in order. Columns that begin with `content` need the content.
COLUMNS: dict[str, dict[str, pa.DataType]] = {
    STUB: {
        "seq": _LONG,
        "message_id": _TEXT,
        "topic": _TEXT,
        "tag": _TEXT,
        "message_key": _TEXT,
        "ordering_key": _TEXT,
        "content_type": _TEXT,
        "content_size": _INT,
        "content_crc": _INT,
        "status": _INT,
        "count": _INT,
        "resend_time": _TIME,
        "broker_name": _TEXT,
        "queue_id": _INT,
        "offset": _LONG,
        "required_groups": _TEXT,
        "deliver_time": _TIME,
        "create_date": _TIME,
        "update_date": _TIME,
        "note": _TEXT,
        "owner": _TEXT,
        "lease_until": _TIME,
    },
    CONSUME_LOG: {
        "consumer_group": _TEXT,
        "message_id": _TEXT,
        "topic": _TEXT,
        "broker_name": _TEXT,
        "queue_id": _INT,
        "offset": _LONG,
        "state": _INT,
        "attempt": _INT,
        "owner": _TEXT,
        "lease_until": _TIME,
        "create_date": _TIME,
        "consume_date": _TIME,
        "confirm_to": _TEXT,
    },
    TOLD: {
        "consumer_group": _TEXT,
        "message_id": _TEXT,
        "state": _INT,
        "lease_until": _TIME,
        "create_date": _TIME,
        "update_date": _TIME,
    },
}


@dataclass(frozen=True)
class KeyRange:
    """Rows whose key is in `low` .. `high`, the end excluded; None is open."""

    column: str
    low: int | str | None
    high: int | str | None


@dataclass(frozen=True)
class IdWindow:
    """Message ids of a time window, `low` .. `high`, the end excluded; None is open.

    Only ids that begin with their time (`message.new_message_id`) can be told apart by it. The rows
    of all others are in every window: what decides about such a message is the first trace that any
    ledger has of it, and no ledger can know that alone.
    """

    low: str | None = None
    high: str | None = None


def table_of(name: str, prefix: str) -> Table:
    """Return the table that a ledger's name stands for.

    Raises:
        ConfigurationError: when no ledger has this name.
    """
    if name == STUB:
        return message_stub_table(MetaData(), prefix)
    if name == CONSUME_LOG:
        return consume_log_table(MetaData(), prefix)
    if name == TOLD:
        return confirmation_table(MetaData(), prefix)
    raise ConfigurationError(f"no ledger is called {name!r}; there are {', '.join(COLUMNS)}")


def open_engine(url: str) -> Engine:
    """Return an engine that keeps no connection.

    Raises:
        ConfigurationError: when `url` names no database that can be used.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() in MYSQL:
            parsed = parsed.set(drivername=MYSQL_DRIVER)
        elif parsed.get_dialect().is_async:
            parsed = parsed.set(drivername=_SYNC_DRIVERS.get(parsed.drivername, "") or url)
        return create_engine(parsed, poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigurationError(
            "not a database URL; write it like postgresql+psycopg://user@host/name,"
            f" mysql+pymysql://user@host/name or sqlite:////path/to/file ({error})"
        ) from error


_SYNC_DRIVERS = {
    "sqlite+aiosqlite": "sqlite",
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg_async": "postgresql+psycopg",
}


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def check_tables(url: str, prefix: str) -> None:
    """Make sure that the ledgers' tables are there.

    Raises:
        ConfigurationError: names the missing ones, or the SQLite file that does not exist.
        sqlalchemy.exc.SQLAlchemyError: when the database cannot be reached.
    """
    with _connected(url) as connection:
        there = set(inspect(connection).get_table_names())
    missing = [name for name in (table_of(key, prefix).name for key in NEEDED) if name not in there]
    if missing:
        place = make_url(url).render_as_string()
        raise ConfigurationError(
            f"the database {place} has no table {' and no table '.join(missing)}; a wrong --db or"
            " prefix? `reliable-mq create-tables` makes them"
        )


def removed_until(url: str, prefix: str) -> datetime | None:
    """Return the time before which retention may have removed stubs or logs, None: it has not."""
    duties = retention_table(MetaData(), prefix)
    with _connected(url) as connection:
        if not inspect(connection).has_table(duties.name):
            return None
        of_ledgers = (duties.c.stubs_removed_until, duties.c.logs_removed_until)
        marks = connection.execute(select(*map(func.max, of_ledgers))).one()
    mark: datetime | None = max((each for each in marks if each is not None), default=None)
    return None if mark is None or mark.timestamp() <= 0 else mark


def managed_topics(url: str, prefix: str) -> list[str]:
    """Return the topics for which a stub was ever written."""
    stubs = table_of(STUB, prefix)
    with _connected(url) as connection:
        return sorted(connection.scalars(select(stubs.c.topic).distinct()))


def told_groups(urls: Sequence[str], prefix: str) -> list[str]:
    """Return the consumer groups that are known by their notices only.

    Their consume logs lie in none of these databases; of all others the log itself is read.
    """
    told: set[str] = set()
    logged: set[str] = set()
    confirmation, log = table_of(TOLD, prefix), table_of(CONSUME_LOG, prefix)
    for url in urls:
        with _connected(url) as connection:
            if inspect(connection).has_table(confirmation.name):
                told.update(connection.scalars(select(confirmation.c.consumer_group).distinct()))
    for url in urls if told else ():
        with _connected(url) as connection:
            logged.update(connection.scalars(select(log.c.consumer_group).distinct()))
    return sorted(told - logged)


def stub_count_at_most(url: str, prefix: str) -> int:
    """Return a bound for the number of stubs that costs the database next to nothing."""
    key = table_of(STUB, prefix).c.seq
    with _connected(url) as connection:
        low, high = connection.execute(select(func.min(key), func.max(key))).one()
    return 0 if high is None else int(high - low + 1)


def key_ranges(
    url: str, name: str, prefix: str, window: IdWindow, rows_per_partition: int = ROWS_PER_PARTITION
) -> list[KeyRange]:
    """Cut a table into ranges of about equal size: stubs by `seq`, consume logs by message id."""
    table = table_of(name, prefix)
    key = table.c.seq if name == STUB else table.c.message_id
    query = select(func.min(key), func.max(key), func.count()).where(_in_window(table, window))
    with _connected(url) as connection:
        low, high, count = connection.execute(query).one()
    parts = min(max(1, -(-count // rows_per_partition)), PARTITIONS_MAX)
    cuts = _cuts(low, high, parts) if count else []
    edges = [None, *cuts, None]
    return [KeyRange(key.name, start, stop) for start, stop in pairwise(edges)]


def _cuts(low: Any, high: Any, parts: int) -> list[Any]:
    """Return the keys between `parts` ranges of equal width, or fewer than that."""
    if isinstance(low, int):
        return sorted({low + (high - low) * part // parts for part in range(1, parts)} - {low})
    try:
        first, last = (int(key[:_ID_PREFIX_DIGITS], 16) for key in (low, high))
    except ValueError:
        return []
    numbers = {first + (last - first) * part // parts for part in range(1, parts)} - {first}
    return [f"{number:0{_ID_PREFIX_DIGITS}X}" for number in sorted(numbers)]


def _in_window(table: Table, window: IdWindow) -> ColumnElement[bool]:
    column = table.c.message_id
    identity = func.upper(column)
    inside = [identity >= window.low] if window.low is not None else []
    if window.high is not None:
        inside.append(identity < window.high)
    return or_(_has_no_time(column), and_(*inside)) if inside else true()


def _has_no_time(message_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Return whether an id is none that begins with its time: no UUIDv7 of 32 digits."""
    variant = func.upper(func.substr(message_id, 17, 1))
    return or_(
        func.length(message_id) != _ID_DIGITS,
        func.substr(message_id, 13, 1) != "7",
        variant.not_in(("8", "9", "A", "B")),
    )


def broker_names(url: str, prefix: str, window: IdWindow) -> set[str]:
    """Return the brokers that stubs and consume logs of the window name."""
    names: set[str] = set()
    with _connected(url) as connection:
        for ledger in NEEDED:
            table = table_of(ledger, prefix)
            query = select(table.c.broker_name).where(_in_window(table, window)).distinct()
            names.update(name for name in connection.scalars(query) if name)
    return names


def read_range(
    url: str,
    name: str,
    prefix: str,
    window: IdWindow,
    part: KeyRange,
    *,
    with_content: bool,
    groups: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, with the columns of `COLUMNS` and, if asked for, `content`.

    `groups`: only of these consumer groups.
    """
    table = table_of(name, prefix)
    key = table.c[part.column]
    columns = list(COLUMNS[name])
    needs_content = name == STUB
    chosen: list[Column[Any]] = [
        table.c[column]
        for column in columns
        if not column.startswith("content_c") and column != "content_size"
    ]
    if needs_content:
        chosen.append(table.c.content)
    query = select(*chosen).where(_in_window(table, window))
    query = query.where(key >= part.low) if part.low is not None else query
    query = query.where(key < part.high) if part.high is not None else query
    query = query.where(table.c.consumer_group.in_(groups)) if groups is not None else query
    schema = arrow_schema(name, with_content=with_content)
    with _connected(url) as connection:
        result = connection.execution_options(yield_per=_BATCH_ROWS).execute(query)
        names = tuple(result.keys())
        for rows in result.partitions():
            yield _batch(names, rows, schema)


def arrow_schema(name: str, *, with_content: bool) -> pa.Schema:
    """Return the Arrow schema of a ledger's rows."""
    columns = dict(COLUMNS[name])
    if with_content and name == STUB:
        columns["content"] = _BYTES
    return pa.schema(list(columns.items()))


def _batch(names: Sequence[str], rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    values: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=True))
    if "content" in values:
        content = values["content"]
        values["content_size"] = [len(body) for body in content]
        values["content_crc"] = [body_checksum(body) for body in content]
    return pa.record_batch(
        [pa.array(values[field.name], type=field.type) for field in schema], schema=schema
    )
