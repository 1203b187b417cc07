"""The application's database: engines and sessions that keep the promises."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, Engine, create_engine, inspect
from sqlalchemy.exc import ArgumentError
from sqlalchemy.exc import NoSuchModuleError as NoSuchDriver
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.database.sql_day_partitions import DayPartitions
from reliable_mq.database.sql_faults import DatabaseWatch
from reliable_mq.database.sql_handler_session import HandlerSession, hold_transactions_of
from reliable_mq.database.sql_identity import SqlIdentity
from reliable_mq.database.sql_mysql import ISOLATION_LEVEL, make_mysql_strict
from reliable_mq.database.sql_prepared import run_on_driver
from reliable_mq.database.sql_processes import SqlProcesses
from reliable_mq.database.sql_schema import REVISION, check_revision, create_and_note, lock_tables
from reliable_mq.database.sql_tables import our_tables
from reliable_mq.database.sql_transactions import Handover, make_sqlite_durable
from reliable_mq.database.sql_types import (
    ANY_TEXT,
    READS_ONLY,
    dialect_family,
    for_one_statement,
    missing_table_text,
)
from reliable_mq.database.sql_urls import checked_url, known_drivers, shown_url, words_in_utf8
from reliable_mq.database.thread_handling_times import HandlingTimes
from reliable_mq.errors import ConfigurationError
from reliable_mq.extras import extra_of
from reliable_mq.names import TABLE_PREFIX_PATTERN
from reliable_mq.runtime.forks import call_in_child, leave_to_parent
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

_OVERFLOW = 4


class Database:
    """One database and our tables in it. Connects when a connection is first needed.

    An asynchronous engine belongs to the event loop that first asked for it, so each loop has its
    own. A forked child makes its own connections.

    Args:
        url: SQLAlchemy URL.
        prefix: the beginning of our tables' names.
        connections: the size of the connection pool.
        local_clock: this machine's clock.
        by_day: whether stubs and consume logs are partitioned by day (PostgreSQL). Default False.
        hides_values: whether errors and `echo` leave out the parameters of statements.
        command_words: writes the commands of an error text as its users type them. Default: as
            they are.

    Raises:
        ConfigurationError: the URL is missing, malformed, of an unsupported database or names a
            folder, or the prefix cannot begin a table's name.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        connections: int,
        local_clock: Callable[[], float] = time.time,
        by_day: bool = False,
        hides_values: bool = True,
        command_words: Callable[[str], str] = str,
    ) -> None:
        if not re.fullmatch(TABLE_PREFIX_PATTERN, prefix):
            raise ConfigurationError(
                f"prefix {prefix!r}: write a lower-case letter, then letters, digits and _, at "
                "most 32 characters"
            )
        self.url = checked_url(url)
        name = self.url.get_backend_name()
        self.dialect = dialect_family(name)
        self._check_no_folder()
        self._drivers = known_drivers(name)
        self._connections = connections
        self._hides_values = hides_values
        self.prefix = prefix
        if by_day and name != "postgresql":
            raise ConfigurationError("retention='partitions' is for PostgreSQL; use 'rows'")
        self.by_day = by_day
        tables = our_tables(prefix, by_day=by_day, command_words=command_words)
        self.metadata = tables.metadata
        self.stubs = tables.stubs
        self.logs = tables.logs
        self.confirmations = tables.confirmations
        self.keys = tables.keys
        self.calls = tables.calls
        self.resend_topics = tables.resend_topics
        self.retention_duties = tables.retention_duties
        self.watched_time = tables.watched_time
        self.escalations = tables.escalations
        self.alerts = tables.alerts
        self.notifiers = tables.notifiers
        self.duties = tables.duties
        self.audit = tables.audit
        self.periodic = tables.periodic
        self.periodic_ticks = tables.periodic_ticks
        self.processes = tables.processes
        self.handling_times = HandlingTimes()
        self._watch = DatabaseWatch(shown_url(self.url))
        self.engine = self._make_engine()
        #: returns a new session
        self.session: Callable[[], Session] = partial(Session, self.engine)
        #: returns a new session for a handler
        self.handler_session: Callable[[], HandlerSession] = partial(HandlerSession, self.engine)
        #: for the transactions that a thread runs one after another; None: each asks the pool
        self.series_engine = self.engine if self.url.get_backend_name() == "postgresql" else None
        #: for our rows that other programs may have written to, see `ANY_TEXT`
        self.forgiving_engine = self.engine.execution_options(**ANY_TEXT)
        #: for single statements that only read
        self.reading_engine = for_one_statement(self.engine).execution_options(**READS_ONLY)
        self.identity = SqlIdentity(self.engine, tables.identity)
        self.clock = DatabaseClock(self.engine, local_clock)
        self._async_engines: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEngine]
        self._async_engines = WeakKeyDictionary()
        call_in_child(self._forget_parent)

    def _forget_parent(self) -> None:
        leave_to_parent(self.engine.pool, *self._async_engines.values())
        self.engine.dispose(close=False)
        self._async_engines = WeakKeyDictionary()

    @property
    def connections_max(self) -> int:
        """The most connections that one engine of this process may open."""
        return self._connections + _OVERFLOW

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"pool_size": self._connections, "pool_recycle": 1800}
        options |= {"max_overflow": _OVERFLOW, "hide_parameters": self._hides_values}
        if self.dialect == "mysql":
            options["isolation_level"] = ISOLATION_LEVEL
        return options | {"connect_args": words_in_utf8(self.url)}

    def _url_for(self, driver: str) -> URL:
        url = self.url.set(drivername=driver)
        return url.update_query_dict({"charset": "utf8mb4"}) if self.dialect == "mysql" else url

    def _make_engine(self) -> Engine:
        url = self._url_for(self._drivers.for_threads)
        try:
            with extra_of(f"database={url.drivername}://"):
                engine = create_engine(url, **self._options())
        except (ArgumentError, NoSuchDriver) as error:
            what = str(error).partition("\n")[0]  # the rest explains URLs
            raise ConfigurationError(f"database={shown_url(self.url)}: {what}") from error
        self._prepare(engine)
        return engine

    def _prepare(self, engine: Engine) -> None:
        if self.dialect == "sqlite":
            make_sqlite_durable(engine)
        elif self.dialect == "mysql":
            make_mysql_strict(engine)
        else:
            # Many rows in one INSERT. psycopg's executemany sends them one by one in a pipeline.
            engine.dialect.use_insertmanyvalues_wo_returning = True
        hold_transactions_of(engine)
        if engine.dialect.driver == "psycopg":
            run_on_driver(engine)
        self._watch.watch(engine)

    def note_processes(self, application: str, owner: Callable[[], str]) -> None:
        """Let this process report once a minute that it is alive; see `sql_processes`."""
        notes = SqlProcesses(self.engine, self.processes, application, owner, self.handling_times)
        self.clock.on_measured = notes.record_alive

    @property
    def async_engine(self) -> AsyncEngine:
        """The asynchronous engine of the running event loop."""
        loop = asyncio.get_running_loop()
        engine = self._async_engines.get(loop)
        if engine is None:
            url = self._url_for(self._drivers.for_asyncio)
            with extra_of(f"database={url.drivername}://"):
                engine = create_async_engine(url, **self._options())
            self._prepare(engine.sync_engine)
            self._async_engines[loop] = engine
        return engine

    def async_session(self) -> AsyncSession:
        """Return a new asynchronous session of the running event loop."""
        return AsyncSession(self.async_engine, expire_on_commit=False)

    def async_handler_session(self) -> AsyncSession:
        """Return a new asynchronous session for a handler; its `sync_session` has `held`."""
        return AsyncSession(
            self.async_engine, expire_on_commit=False, sync_session_class=HandlerSession
        )

    def handover_to(self, relay: Handover) -> Handover:
        """Return what gets the stubs of a COMMIT on behalf of `relay`: here, `relay` itself."""
        return relay

    def transaction_around(self) -> AbstractContextManager[Connection] | None:
        """Return a connection in the transaction around the caller, if there is one without a name.

        Only frameworks have such transactions: each thread has one.
        """
        return None

    async def is_task_in_transaction(self) -> bool:
        """Return whether the task was called from such a transaction."""
        return False

    def day_partitions(self) -> DayPartitions:
        """Return the day partitions of stubs and consume logs."""
        return DayPartitions(self.engine, (self.stubs, self.logs))

    def create_tables(self) -> list[str]:
        """Create the missing tables; return the names of those that were missing, sorted.

        Raises:
            ConfigurationError: there are tables of an older release; migrate them. SQLite: the
                folder of the file is missing.
        """
        self.check_folder()
        with self.engine.connect() as connection, lock_tables(connection, self.prefix):
            made = create_and_note(connection, self.metadata, self.prefix)
            connection.commit()
        if self.by_day:
            days = self.day_partitions()
            days.check()
            days.ensure(self.clock.measured_now())
        self.identity.value()
        return sorted(made)

    def check_commits(self) -> None:
        """Check that a test may commit, and other connections see it. A framework may forbid it.

        Raises:
            UsageError: they cannot, the text says what to do.
        """

    def check_tables(self) -> None:
        """Check that all our tables exist in this release's form; measure the database's clock.

        Raises:
            ConfigurationError: names the missing or older table and what to do.
        """
        self.check_file()
        self.clock.measured_now()
        with self.engine.connect() as connection:
            revision = check_revision(connection, self.prefix)
            there = set(inspect(connection).get_table_names())
        if revision is not None and revision > REVISION:
            application_events.TABLES_NEWER.log(log, revision=revision)
        for name in sorted(self.metadata.tables):
            if name not in there:
                raise ConfigurationError(missing_table_text(name, self.metadata))
        if self.by_day:
            days = self.day_partitions()
            days.check()
            days.ensure(self.clock.now())
        self.identity.notice_topic()

    def check_file(self) -> None:
        """Check that an SQLite file exists: reading a missing file would create an empty one.

        Raises:
            ConfigurationError: names the file and what to do.
        """
        file = self.url.database or ""
        if self.dialect == "sqlite" and not file.startswith("file:") and not Path(file).exists():
            name = min(self.metadata.tables)
            missing = missing_table_text(name, self.metadata)
            raise ConfigurationError(f"there is no file {file}; {missing}")

    def _check_no_folder(self) -> None:
        file = self.url.database or ""
        if self.dialect == "sqlite" and Path(file).is_dir():
            raise ConfigurationError(
                f"database={shown_url(self.url)}: {file} is a folder: name a file in it"
            )

    def check_folder(self) -> None:
        """Check that the folder of an SQLite file exists: SQLite makes the file, not the folder.

        Raises:
            ConfigurationError: names the folder and what to do.
        """
        file = self.url.database or ""
        folder = Path(file).parent
        if self.dialect == "sqlite" and not file.startswith("file:") and not folder.is_dir():
            raise ConfigurationError(f"there is no folder {folder}: make it, or correct the URL")

    def close(self) -> None:
        """Close the connections of the synchronous engine."""
        self.engine.dispose()

    async def close_async(self) -> None:
        """Close the connections of the running loop's engine."""
        engine = self._async_engines.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.dispose()
