"""A database of Django: our tables in it, engines of our own, and Django's own connections."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from sqlalchemy import Connection, Dialect, Engine, ExceptionContext, NullPool, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry

from reliable_mq.command_words import BY_DJANGO, with_place
from reliable_mq.contrib.django.configuration import is_test_memory, is_under_test, url_of
from reliable_mq.contrib.django.sql_dialects import depth_of, django_engine, unwind
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import drop_lost_transactions
from reliable_mq.database.sql_handler_session import (
    HandlerSession,
    hold_transactions_of,
    running_session,
)
from reliable_mq.database.sql_transactions import Handover
from reliable_mq.errors import UsageError
from reliable_mq.outbox.thread_relay import RelayThread
from reliable_mq.outbox.thread_shared_relays import SharedHandover

_COMMAND_WORDS = partial(with_place, found_by=BY_DJANGO)
_PLACE = "reliable_mq.place"  # of a connection: the URL that it was made with in a test


class DjangoSession(HandlerSession):
    """A handler's session on Django's own connection.

    Invariant: while it is in a transaction, Django is in an atomic block of it, on this thread.
    """

    depth = 0
    """How many of our blocks were open on this thread before this session began."""

    @property
    def alias(self) -> str:
        """The database's name in DATABASES."""
        dialect: Any = self.get_bind().dialect
        return str(dialect.alias)

    def begin(self, nested: bool = False) -> SessionTransaction:
        """Begin at once: the handler's first statement may be one of the Django ORM."""
        begun = super().begin(nested)
        self.connection()
        return begun


def handler_alias() -> str | None:
    """Return the alias that the effect of the handler goes to that runs here; None: none runs."""
    session = running_session()
    return session.alias if isinstance(session, DjangoSession) and session.is_held else None


@event.listens_for(DjangoSession, "after_transaction_create")
def _on_create(session: DjangoSession, created: SessionTransaction) -> None:
    if created.parent is None:
        session.depth = depth_of(session.alias)


@event.listens_for(DjangoSession, "after_transaction_end")
def _on_end(session: DjangoSession, ended: SessionTransaction) -> None:
    """Leave Django's block also when SQLAlchemy dropped the connection without a ROLLBACK."""
    if ended.parent is None:
        unwind(session.alias, session.depth)


class DjangoDatabase(Database):
    """One alias of Django's DATABASES, with our tables.

    The relay, the scheduler and retention have connections of their own. Stubs, and the
    transactions of handlers, are on Django's.

    Args:
        alias: its name in DATABASES.
        url: the URL that leads to the same database.
        **options: as for `Database`.
    """

    def __init__(self, alias: str, url: str, **options: Any) -> None:
        self.alias = alias
        super().__init__(url, command_words=_COMMAND_WORDS, **options)
        #: its transactions are those of the code around it
        hides = self.engine.hide_parameters
        self.joined_engine = django_engine(alias, self.engine.url, leads=False, hides_values=hides)
        #: its transactions are atomic blocks of Django
        self.leading_engine = django_engine(alias, self.engine.url, leads=True, hides_values=hides)
        if self.dialect == "mysql":
            drop_lost_transactions(self.joined_engine)
            drop_lost_transactions(self.leading_engine)
        elif self.dialect == "postgresql":
            event.listen(self.joined_engine, "handle_error", self._mark_aborted)
        hold_transactions_of(self.leading_engine)
        self.handler_session = partial(DjangoSession, self.leading_engine)
        self.series_engine = None  # Django has its own connections

    def follow(self) -> None:
        """Name the database that Django uses now: the test runner changes it, also after a fork."""
        if not is_under_test():
            return
        self.url = now = url_of(self.alias)
        for engine in (self.engine, self.joined_engine, self.leading_engine):
            engine.url = now.set(drivername=engine.url.drivername)

    def _prepare(self, engine: Engine) -> None:
        super()._prepare(engine)
        event.listen(engine, "do_connect", self._connect_where_django_does)
        event.listen(engine, "checkout", self._refuse_left_database)
        if not isinstance(engine.pool, NullPool):
            event.listen(engine, "checkin", _close_in_tests)

    def _connect_where_django_does(
        self, dialect: Dialect, record: Any, arguments: list[Any], options: dict[str, Any]
    ) -> None:
        """Connect to the database of Django's settings as they are now; in tests they change."""
        if not is_under_test():
            return
        url = url_of(self.alias)
        wanted = url.set(drivername=f"{dialect.name}+{dialect.driver}")
        if dialect.name == "mysql":
            wanted = wanted.update_query_dict({"charset": "utf8mb4"})
        given, named = dialect.create_connect_args(wanted)
        arguments[:] = given
        options.update(named)
        record.info[_PLACE] = url

    def _refuse_left_database(self, _connection: Any, record: Any, _proxy: Any) -> None:
        """Replace a connection that was made before the tests began: it leads to the real database.

        Raises:
            DisconnectionError: it is one; the pool connects again.
        """
        if is_under_test() and record.info.get(_PLACE) != url_of(self.alias):
            raise DisconnectionError

    def _options(self) -> dict[str, Any]:
        """Return the options of an engine of ours. In a test of Django it keeps no connection.

        Otherwise the test runner could not drop its database.
        """
        options = super()._options()
        if not is_under_test():
            return options
        of_a_pool = {"pool_size", "pool_recycle", "max_overflow"}
        kept = {name: value for name, value in options.items() if name not in of_a_pool}
        return {**kept, "poolclass": NullPool}

    def handover_to(self, relay: Handover) -> Handover:
        """Return what hands stubs over when Django has committed them.

        In a test of Django nothing is sent. A relay would have a connection of its own. It would
        not see a database in memory, and it would keep the test runner from dropping another one.
        The relay of a `MessageWorld` runs in the test's own thread.
        """
        is_thread = isinstance(relay, RelayThread | SharedHandover)
        if is_test_memory(self.alias) or (is_thread and is_under_test()):
            relay = NoRelay()
        return CommittedByDjango(relay, self.alias)

    def transaction_around(self) -> AbstractContextManager[Connection] | None:
        """Return a connection in Django's open block; also in that of a `TestCase`."""
        if not connections[self.alias].in_atomic_block:
            return None
        return self.joined_engine.begin()

    async def is_task_in_transaction(self) -> bool:
        """Return whether the thread that `sync_to_async` uses is in an open block."""
        is_open = partial(_is_in_block, self.alias)
        return await sync_to_async(is_open)()

    def _mark_aborted(self, _context: ExceptionContext) -> None:
        """Mark Django's block for a rollback: PostgreSQL has aborted its transaction.

        Its COMMIT would be a ROLLBACK without an error, after which Django would call the functions
        of `on_commit`.
        """
        wrapper: Any = connections[self.alias]
        wrapper.needs_rollback |= wrapper.in_atomic_block

    def async_handler_session(self) -> AsyncSession:
        """Refuse: Django's transactions are synchronous.

        Raises:
            UsageError: always.
        """
        raise UsageError("Django has no asynchronous transactions; take a Session, or none")


def _is_in_block(alias: str) -> bool:
    return bool(connections[alias].in_atomic_block)


def _close_in_tests(_connection: Any, record: ConnectionPoolEntry) -> None:
    """Keep no connection in a test, or the runner could not drop its database."""
    if is_under_test():
        record.invalidate()


class NoRelay:
    """Sends nothing."""

    def accept_committed(self, stubs: list[Any]) -> None:
        """Leave the stubs in their table."""


class CommittedByDjango:
    """Hands stubs over after the outermost atomic block of Django; a rollback forgets them.

    Args:
        relay: gets the stubs.
        alias: the database's name in DATABASES.
    """

    def __init__(self, relay: Handover, alias: str) -> None:
        self._relay = relay
        self._alias = alias

    @property
    def accept_committed(self) -> Callable[[list[Any]], None]:
        """Accepts stubs that were written on Django's connection, or committed by us."""
        return self._accept

    def _accept(self, stubs: list[Any]) -> None:
        if connections[self._alias].in_atomic_block:
            later = partial(_hand_over, self._relay, stubs)
            transaction.on_commit(later, using=self._alias, robust=True)
        else:
            self._relay.accept_committed(stubs)


def _hand_over(relay: Handover, stubs: list[Any]) -> None:
    relay.accept_committed(stubs)
