"""Queries on an application's database before a run: its tables, topics, groups, and their size.

Receives a SQLAlchemy URL, and never writes. `sql_arrow` reads the rows, by `sql_ranges`.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    MetaData,
    func,
    inspect,
    select,
    text,
    true,
)

from reliable_mq.database.sql_scheduling_tables import retention_table
from reliable_mq.database.sql_schema import check_revision
from reliable_mq.database.sql_types import MYSQL
from reliable_mq.database.sql_urls import shown_url
from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.databases.ledger_columns import (
    COLUMNS,
    CONSUME_LOG,
    STUB,
    TOLD,
    table_of,
)
from reliable_mq.reconcile.databases.sql_conditions import (
    EVERYTHING,
    PARKED,
    SETTLED,
    WAITING,
    KeyRange,
    in_range,
)
from reliable_mq.reconcile.databases.sql_connection import connected, open_engine, paced, sync_url
from reliable_mq.reconcile.databases.sql_ranges import (
    ROWS_PER_PARTITION,
    ChangeWindow,
    IdWindow,
    key_ranges,
    whole_ranges,
)

__all__ = [
    "COLUMNS",
    "CONSUME_LOG",
    "NEEDED",
    "ROWS_PER_PARTITION",
    "STUB",
    "TOLD",
    "IdWindow",
    "broker_names",
    "check_ledgers",
    "check_tables",
    "groups_with_notices",
    "managed_topics",
    "open_engine",
    "removed_until",
    "stub_count_at_most",
    "table_of",
    "unsettled_between",
]

NEEDED = (STUB, CONSUME_LOG)
_ROWS_OF_A_PIECE = 10_000  # some milliseconds


def check_tables(url: str, prefix: str) -> None:
    """Check that the ledgers' tables exist, and are of this release.

    Raises:
        ConfigurationError: names missing tables, or the columns that an older release lacks.
        sqlalchemy.exc.SQLAlchemyError: when the database cannot be reached.
    """
    check_ledgers(url, prefix, {name: list(table_of(name, prefix).c.keys()) for name in NEEDED})


def check_ledgers(url: str, prefix: str, wanted: Mapping[str, Sequence[str]]) -> None:
    """Check that ledgers have the columns that will be read.

    Args:
        url: the SQLAlchemy URL of the database.
        prefix: the prefix of the table names.
        wanted: ledger name -> columns.

    Raises:
        ConfigurationError: names missing tables, or the columns that an older release lacks.
        sqlalchemy.exc.SQLAlchemyError: when the database cannot be reached.
    """
    tables = {table_of(name, prefix).name: columns for name, columns in wanted.items()}
    place = shown_url(sync_url(url))
    with connected(url) as connection:
        inspector = inspect(connection)
        missing = sorted(tables.keys() - set(inspector.get_table_names()))
        if missing:
            raise ConfigurationError(
                f"the database {place} has no table {' and no table '.join(missing)}; a wrong --db"
                " or prefix? `reliable-mq create-tables` makes them"
            )
        check_revision(connection, prefix)
        for table, columns in tables.items():
            there = {column["name"] for column in inspector.get_columns(table)}
            lacking = [column for column in columns if column not in there]
            if lacking:
                raise ConfigurationError(
                    f"the table {table} in {place} has no column {' and no column '.join(lacking)}:"
                    " another release has made it; run reliable-mq migrate --app MODULE:OBJECT"
                )


def removed_until(url: str, prefix: str) -> datetime | None:
    """Return the time before which retention may have removed stubs or logs. None: it has not."""
    duties = retention_table(MetaData(), prefix)
    with connected(url) as connection:
        if not inspect(connection).has_table(duties.name):
            return None
        of_ledgers = (duties.c.stubs_removed_until, duties.c.logs_removed_until)
        marks = connection.execute(select(*map(func.max, of_ledgers))).one()
    mark: datetime | None = max((each for each in marks if each is not None), default=None)
    return None if mark is None or mark.timestamp() <= 0 else mark


def unsettled_between(url: str, prefix: str, begin: datetime | None, end: datetime) -> int:
    """Count the unsettled stubs of a time range, end excluded. `begin` None: no limit."""
    stubs = table_of(STUB, prefix)
    created = stubs.c.create_date
    bounds = [created < end, *([created >= begin] if begin is not None else [])]
    with connected(url) as connection:
        counts = [
            connection.scalar(
                select(func.count()).where(in_range(stubs, KeyRange(kind=kind)), *bounds)
            )
            for kind in (WAITING, PARKED)
        ]
    return sum(each or 0 for each in counts)


def managed_topics(url: str, prefix: str) -> list[str]:
    """Return the topics that have a stub."""
    stubs = table_of(STUB, prefix)
    found: set[str] = set()
    with connected(url) as connection:
        for kind in (SETTLED, WAITING):
            found.update(_distinct(connection, stubs.c.topic, in_range(stubs, KeyRange(kind=kind))))
        parked = in_range(stubs, KeyRange(kind=PARKED))
        found.update(connection.scalars(select(stubs.c.topic).where(parked).distinct()))
    return sorted(found)


def _distinct(
    connection: Connection, column: Column[Any], where: ColumnElement[bool]
) -> Iterator[str]:
    """Yield the different values of the first column of an index, by one look-up for each."""
    if connection.dialect.name in MYSQL:  # MySQL uses such look-ups by itself
        yield from connection.scalars(select(column).where(where).distinct())
        return
    first = select(func.min(column).label("value")).where(where)
    found = first.cte("found", recursive=True)
    following = select(func.min(column)).where(where, column > found.c.value).scalar_subquery()
    found = found.union_all(select(following).where(found.c.value.is_not(None)))
    yield from connection.scalars(select(found.c.value).where(found.c.value.is_not(None)))


def groups_with_notices(urls: Sequence[str], prefix: str) -> list[str]:
    """Return the consumer groups that have notices here, but no consume log in these databases.

    For all other groups the consume log is read.
    """
    reported: set[str] = set()
    logged: set[str] = set()
    confirmation, log = table_of(TOLD, prefix), table_of(CONSUME_LOG, prefix)
    for url in urls:
        with connected(url) as connection:
            if inspect(connection).has_table(confirmation.name):
                reported.update(_distinct(connection, confirmation.c.consumer_group, true()))
    for url in urls if reported else ():
        with connected(url) as connection:
            logged.update(_distinct(connection, log.c.consumer_group, true()))
    return sorted(reported - logged)


def stub_count_at_most(url: str, prefix: str) -> int:
    """Return an upper bound for the number of stubs. It is cheap: the range of the row numbers."""
    key = table_of(STUB, prefix).c.seq
    with connected(url) as connection:
        low, high = connection.execute(select(func.min(key), func.max(key))).one()
    return 0 if high is None else int(high - low + 1)


def broker_names(
    url: str, prefix: str, window: IdWindow | ChangeWindow, share: float = 1.0
) -> set[str]:
    """Return the brokers that stubs and consume logs of the window name.

    No index answers this for a whole table. On PostgreSQL one statement would take all processors
    from the writers. So a whole table is read in pieces. A piece is a range of keys. The key of a
    row never changes, so each piece can have its own snapshot, and none is held during the pauses.

    Args:
        url: the SQLAlchemy URL of the database.
        prefix: the prefix of the table names.
        window: the part of the ledgers that the run reads.
        share: the part of the time that the queries may take. Default 1.0.
    """
    names: set[str] = set()
    for ledger in NEEDED:
        table = table_of(ledger, prefix)
        parts = whole_ranges(ledger, window)
        name = select(table.c.broker_name).distinct()
        with connected(url) as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            if parts == [EVERYTHING] and connection.dialect.name == "postgresql":
                parts = key_ranges(url, ledger, prefix, window, _ROWS_OF_A_PIECE)
                connection.execute(text("SET max_parallel_workers_per_gather = 0"))
            queries = (name.where(in_range(table, part)) for part in parts)
            for some in paced((connection.scalars(query).all() for query in queries), share):
                names.update(filter(None, some))
    return names
