"""SQLAlchemy over Django's own connection: one transaction, which belongs to Django.

Receives the alias of a database; returns an engine. Each of its connections is the connection that
Django has for this thread and alias, at this moment. So statements of the Django ORM and ours are
in one transaction, and are committed or rolled back together.

There are two kinds of engines. With a *joined* one, BEGIN, COMMIT and ROLLBACK do nothing: the code
that wrote `transaction.atomic()` ends the transaction. With a *leading* one, they are the begin and
the end of an `atomic` block of Django: a handler's transaction. Its savepoints are inner blocks. So
Django's own state is right while a handler runs: inner `atomic` blocks, `on_commit`, `set_rollback`
work as they do in a view.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.db import Error as DjangoError
from django.db import connections
from django.db.transaction import Atomic
from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.mysql.mysqldb import MySQLDialect_mysqldb
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from reliable_mq.contrib.django.configuration import is_under_test
from reliable_mq.database.sql_faults import is_transaction_lost
from reliable_mq.database.sql_handler_session import running_session
from reliable_mq.errors import ConfigurationError, UsageError

__all__ = [
    "depth_of",
    "django_engine",
    "is_closed_by_handler",
    "is_in_own_block",
    "renew_idle",
    "unwind",
]

_BLOCKS = "_reliable_mq_blocks"  # of a connection of Django: our atomic blocks, the outer one first
_FAULTY = "_reliable_mq_faulty"  # of a connection of Django: it failed before it was closed
_DEPTH = "reliable_mq.depth"  # of a connection of SQLAlchemy: how many there were when it began


class _RolledBack(Exception):
    """Ends an atomic block of Django with a rollback."""


class DjangoTransactions:
    """What the dialects here have in common: transactions are Django's, and so are connections."""

    alias = ""
    is_leading = False

    def on_connect(self) -> None:
        """Set nothing on the connection: it is Django's, which has set it up."""

    def do_begin(self, dbapi_connection: Any) -> None:
        """Enter an atomic block of Django, if this engine leads."""
        if self.is_leading:
            dbapi_connection.info[_DEPTH] = depth_of(self.alias)
            _enter(self.alias)

    def do_commit(self, dbapi_connection: Any) -> None:
        """Leave the atomic block, which commits."""
        del dbapi_connection
        if self.is_leading:
            _leave(self.alias, keeps=True)

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Leave the atomic blocks that this connection has entered, which rolls back."""
        try:
            depth = dbapi_connection.info.pop(_DEPTH, None)
        except NotImplementedError:  # SQLAlchemy's first questions to a new server
            return
        if self.is_leading and depth is not None:
            unwind(self.alias, depth)

    def do_savepoint(self, connection: Any, name: str) -> None:
        """Enter an inner atomic block."""
        del connection, name
        _enter(self.alias)

    def do_release_savepoint(self, connection: Any, name: str) -> None:
        """Leave an inner atomic block, which keeps what it did."""
        del connection, name
        _leave(self.alias, keeps=True)

    def do_rollback_to_savepoint(self, connection: Any, name: str) -> None:
        """Leave an inner atomic block, which undoes what it did."""
        del connection, name
        _leave(self.alias, keeps=False)

    def do_close(self, dbapi_connection: Any) -> None:
        """Leave the connection open: Django closes it. Give one of Django's pool back.

        A thread of a worker that kept it would take it from all others. In a test of Django it
        would keep the runner from dropping the database.
        """
        wrapper: Any = connections[self.alias]
        is_ours = self.is_leading and wrapper.connection is dbapi_connection
        is_needed = getattr(wrapper, "pool", None) or is_under_test()
        if is_ours and is_needed and not wrapper.in_atomic_block:
            wrapper.close()

    def do_terminate(self, dbapi_connection: Any) -> None:
        """Drop a connection that is lost, or whose transaction is. Django makes a new one."""
        wrapper: Any = connections[self.alias]
        if wrapper.connection is dbapi_connection:
            _note_fault(wrapper)
            wrapper.close()


class DjangoPsycopg(DjangoTransactions, PGDialect_psycopg):
    """PostgreSQL by psycopg 3."""

    supports_statement_cache = True  # each class must say it


class DjangoPsycopg2(DjangoTransactions, PGDialect_psycopg2):
    """PostgreSQL by psycopg2."""

    supports_statement_cache = True  # each class must say it


class DjangoSqlite(DjangoTransactions, SQLiteDialect_pysqlite):  # type: ignore[misc]
    """SQLite."""

    supports_statement_cache = True  # each class must say it


class DjangoMysqlclient(DjangoTransactions, MySQLDialect_mysqldb):  # type: ignore[misc]
    """MySQL and MariaDB by mysqlclient."""

    supports_statement_cache = True  # each class must say it


class DjangoPymysql(DjangoTransactions, MySQLDialect_pymysql):  # type: ignore[misc]
    """MySQL and MariaDB by PyMySQL, installed in the place of mysqlclient."""

    supports_statement_cache = True  # each class must say it


_DIALECTS = {
    "psycopg": ("postgresql", DjangoPsycopg),
    "psycopg2": ("postgresql", DjangoPsycopg2),
    "sqlite3": ("sqlite", DjangoSqlite),
    "MySQLdb": ("mysql", DjangoMysqlclient),
    "pymysql": ("mysql", DjangoPymysql),
}
"""The module of Django's driver -> the database, and its dialect here."""

for _driver, (_database, _dialect) in _DIALECTS.items():
    registry.register(f"{_database}.django_{_driver.lower()}", __name__, _dialect.__name__)


def django_engine(alias: str, url: URL, *, leads: bool, hides_values: bool) -> Engine:
    """Return an engine over Django's own connections to a database.

    Args:
        alias: the database's name in DATABASES.
        url: its URL; only tells which database it is, nobody connects by it.
        leads: whether BEGIN and COMMIT are those of an atomic block of Django.
        hides_values: whether errors leave out the parameters of statements.

    Raises:
        ConfigurationError: Django uses a driver that is not supported here.
    """
    driver = _driver_of(alias)
    if driver not in _DIALECTS:
        raise ConfigurationError(
            f"DATABASES[{alias!r}] uses the driver {driver}; supported are {', '.join(_DIALECTS)}"
        )
    database, _ = _DIALECTS[driver]
    options = {"use_native_hstore": False} if database == "postgresql" else {}
    engine = create_engine(
        url.set(drivername=f"{database}+django_{driver.lower()}"),
        creator=partial(_connection_of, alias, leads),
        poolclass=NullPool,
        pool_reset_on_return=None,
        hide_parameters=hides_values,
        **options,
    )
    dialect: Any = engine.dialect
    dialect.alias, dialect.is_leading = alias, leads
    return engine


def _driver_of(alias: str) -> str:
    database: Any = connections[alias].Database
    name = str(database.__name__).partition(".")[0]
    made_by = str(getattr(database, "connect", None) and database.connect.__module__)
    return "pymysql" if made_by.startswith("pymysql") else name


def _connection_of(alias: str, leads: bool) -> Any:
    """Return the driver's connection that Django has for this thread; connect if it has none."""
    wrapper: Any = connections[alias]
    if leads and not wrapper.in_atomic_block:
        _renew(wrapper)
    wrapper.ensure_connection()
    return wrapper.connection


def is_in_own_block(alias: str) -> bool:
    """Return whether an atomic block is open here that the application opened.

    A `TestCase` of Django opens one around each test. It is not counted, so that a test fails where
    production would.
    """
    blocks: list[Any] = connections[alias].atomic_blocks
    return any(not each._from_testcase for each in blocks)


def renew_idle() -> None:
    """Renew the connections of this thread that are in no transaction: those of other aliases."""
    for wrapper in connections.all(initialized_only=True):
        if not wrapper.in_atomic_block:
            _renew(wrapper)


def _renew(wrapper: Any) -> None:
    """Close a connection that is lost or too old, as Django does between two requests.

    Django's default `CONN_MAX_AGE` of 0 closes it after each request. A worker's thread keeps it:
    otherwise each message would connect anew.
    """
    if wrapper.connection is None:
        return
    is_old = (
        bool(wrapper.settings_dict["CONN_MAX_AGE"])
        and wrapper.close_at is not None
        and time.monotonic() >= wrapper.close_at
    )
    if is_old or (wrapper.errors_occurred and not wrapper.is_usable()):
        wrapper.close()
    wrapper.errors_occurred = False


def _enter(alias: str) -> None:
    wrapper: Any = connections[alias]
    blocks: list[tuple[Atomic, ExitStack]] = wrapper.__dict__.setdefault(_BLOCKS, [])
    if not blocks and not wrapper.settings_dict["AUTOCOMMIT"]:
        raise ConfigurationError(
            f"DATABASES[{alias!r}] has AUTOCOMMIT=False, so no atomic block of Django would commit:"
            " leave it out"
        )
    block, around = Atomic(alias, True, False), ExitStack()
    mode = getattr(wrapper, "transaction_mode", None)
    is_changed = not wrapper.in_atomic_block and wrapper.vendor == "sqlite" and mode is None
    if is_changed:
        # It takes the write lock now. A handler that reads first and writes later would fail if
        # another transaction wrote in between.
        wrapper.transaction_mode = "IMMEDIATE"
    try:
        block.__enter__()
    finally:
        if is_changed:
            wrapper.transaction_mode = mode
    if not blocks:
        wrapper.__dict__.pop(_FAULTY, None)
        around.enter_context(wrapper.execute_wrapper(_watched))
    blocks.append((block, around))


def _leave(alias: str, *, keeps: bool) -> None:
    """Leave the innermost of our blocks.

    Raises:
        UsageError: it cannot be kept, because the handler has marked it for a rollback.
        Exception: the driver's error, when the COMMIT failed.
    """
    wrapper: Any = connections[alias]
    blocks: list[tuple[Atomic, ExitStack]] = wrapper.__dict__.get(_BLOCKS, [])
    if not blocks:
        if keeps:
            raise UsageError("the transaction of Django that should be committed has ended")
        return
    block, around = blocks.pop()
    around.close()
    is_doomed = keeps and wrapper.needs_rollback
    if keeps and not is_doomed and not blocks:
        # The effect is committed before the first of them runs: their errors cannot undo it.
        wrapper.run_on_commit = [(*each[:2], True) for each in wrapper.run_on_commit]
    try:
        if keeps and not is_doomed:
            block.__exit__(None, None, None)
        else:
            block.__exit__(_RolledBack, _RolledBack(), None)
    except DjangoError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None
    if is_doomed:
        raise UsageError(
            "the transaction was marked for a rollback (transaction.set_rollback, an error inside "
            "of atomic(savepoint=False), or a closed connection), so it is rolled back: raise "
            "instead, or put the step into its own `with transaction.atomic():`"
        )


def _note_fault(wrapper: Any) -> None:
    """Note that a connection has failed; not if it was closed before, which makes all else fail."""
    if not wrapper.closed_in_transaction:
        wrapper.__dict__[_FAULTY] = True


def is_closed_by_handler(wrapper: Any) -> bool:
    """Return whether the code in an atomic block closed its connection, which had not failed."""
    is_closed = bool(wrapper.in_atomic_block and wrapper.closed_in_transaction)
    return is_closed and _FAULTY not in wrapper.__dict__


def depth_of(alias: str) -> int:
    """Return how many blocks were entered here on this thread and not left."""
    return len(connections[alias].__dict__.get(_BLOCKS, ()))


def unwind(alias: str, depth: int) -> None:
    """Roll back all blocks but the outer `depth`: a handler may call a keyed function."""
    while depth_of(alias) > depth:
        _leave(alias, keeps=False)


def _watched(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Execute a statement of the Django ORM in a handler's transaction.

    Raises:
        UsageError: the statement would end the transaction.
    """
    session = running_session()
    if session is not None:
        session.check_below(sql if isinstance(sql, str) else sql.as_string(None))
    try:
        return execute(sql, params, many, context)
    except DjangoError as error:
        if is_transaction_lost(error.__cause__):  # or later statements would begin another one
            context["connection"].needs_rollback = True
        if context["connection"].errors_occurred:
            _note_fault(context["connection"])
        raise
