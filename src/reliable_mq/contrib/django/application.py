"""`DjangoMQ`: a `ReliableMQ` whose transactions are those of Django.

The application's one object is `reliable_mq.contrib.django.mq`. It is made when it is first used.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable
from functools import partial, wraps
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

import django
from asgiref.sync import async_to_sync
from django.apps import apps
from django.conf import settings
from django.db import Error as DjangoError
from django.db import connections, reset_queries
from django.db.transaction import Atomic
from sqlalchemy.exc import DBAPIError

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.thread_connections import Connections
from reliable_mq.contrib.django.configuration import (
    alias_of,
    aliases,
    arguments,
    is_under_test,
    named,
    text_of_url,
)
from reliable_mq.contrib.django.database import DjangoDatabase, handler_alias
from reliable_mq.contrib.django.misplaced import (
    check_installed,
    check_not_broken,
    check_transaction_left,
    closed_in_handler,
    forbidden_in_handler,
    not_in_block,
    objects_of_their_own,
    started_too_early,
    without_consumers,
)
from reliable_mq.contrib.django.sql_dialects import is_in_own_block, renew_idle
from reliable_mq.database.sql_database import Database
from reliable_mq.decorated import check_function
from reliable_mq.errors import UsageError
from reliable_mq.misspelt import explained, names_checked_as, parentheses_checked_as
from reliable_mq.outbox.message_options import ManyOptions, StubOptions, check_options
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_transaction import Transaction, TransactionScope
from reliable_mq.outbox.transaction_block import Given
from reliable_mq.settings import MAIN_DATABASE
from reliable_mq.topic import Topic, name_of

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
T = TypeVar("T")


class DjangoMQ(ReliableMQ):
    """Reliable messaging for one Django project; see `ReliableMQ`.

    `send` writes a message into the transaction that Django has open. A handler runs within an
    atomic block of Django, whose COMMIT also says that the message is consumed.
    """

    @classmethod
    def of_settings(cls) -> "DjangoMQ":
        """Return a new one, by RELIABLE_MQ and DATABASES of Django's settings.

        Raises:
            ConfigurationError: a setting is wrong.
        """
        return cls(**arguments())

    def start(self) -> None:
        """Start the consumers; see `ReliableMQ.start`.

        Raises:
            UsageError: there are none; names a module that looks as if it had some.
        """
        if not self.consumer_groups:
            raise UsageError(without_consumers(self.name))
        for each in (started_too_early(), *objects_of_their_own()):
            if each:
                warnings.warn(each, UserWarning, stacklevel=2)
        super().start()

    def shown_name(self, database: str) -> str:
        """Return the alias of a database: the first one is not "main" for Django."""
        return alias_of(database)

    def _make_database(self, name: str, url: str, **options: Any) -> Database:
        del url  # tests of Django change the name of the database after this object was made
        alias = alias_of(name)
        return DjangoDatabase(alias, text_of_url(alias), **options)

    def _use_connections(self, connections: Connections) -> None:
        connections.check_may_connect = _refuse_in_tests
        super()._use_connections(connections)

    @property
    def database(self) -> Database:
        """The database of the first alias."""
        found = super().database
        cast("DjangoDatabase", found).follow()
        return found

    @explained
    def send(
        self,
        topic: str | Topic[T],
        payload: T,
        *,
        using: str | None = None,
        **options: Unpack[StubOptions],
    ) -> str:
        """Send `payload` if and only if Django's open transaction commits; return the message id.

        Args:
            topic: the topic; a type checker compares the payload with that of a `Topic`.
            payload: a pydantic model, dataclass, msgspec Struct, dict, list, str or bytes.
            using: the alias of the database. None: in a handler, that of its effect. Elsewhere the
                first alias of RELIABLE_MQ.
            **options: as for `Transaction.send`.

        Raises:
            UsageError: no atomic block is open for this database, or `using` is missing and blocks
                of several databases are open. The block of a `TestCase` does not count. Also as
                `Transaction.send`.
            ConfigurationError: RELIABLE_MQ does not name the alias.
            MessageRefused: as `Transaction.send`.
        """
        check_options(options, "using")
        name = name_of(topic)
        return self._joined(
            using, lambda outbox, source: outbox.write_stub(source, name, payload, **options)
        )

    @explained
    def send_many(
        self,
        topic: str | Topic[T],
        payloads: Iterable[T],
        *,
        using: str | None = None,
        **options: Unpack[ManyOptions[T]],
    ) -> list[str]:
        """Send every payload in few statements; see `send` and `Transaction.send_many`."""
        check_options(options, "using")
        name = name_of(topic)
        return self._joined(
            using, lambda outbox, source: outbox.write_many(source, name, payloads, **options)
        )

    def _joined(self, using: str | None, write: Callable[[SqlOutbox, Any], R]) -> R:
        name = self._meant(using)
        alias = alias_of(name)
        if not is_in_own_block(alias):
            raise not_in_block(alias, using)
        check_not_broken(alias)
        outbox, database = self._outbox(name)
        with database.joined_engine.begin() as connection:
            return write(outbox, connection)

    def _meant(self, using: str | None) -> str:
        """Return the name of the database that a message goes to.

        Raises:
            UsageError: no alias is given, and it could be several.
        """
        using = using or handler_alias()
        if using is not None:
            return named(using)
        opened = [each for each in aliases() if is_in_own_block(each)]
        if len(opened) > 1:
            raise UsageError(
                f"transactions of {' and '.join(opened)} are open, and the message must be in that "
                f"of your rows: write mq.send(…, using={opened[-1]!r})"
            )
        return MAIN_DATABASE

    def _outbox(self, name: str) -> tuple[SqlOutbox, DjangoDatabase]:
        opened = self._outboxes.made.get((name, False)) or self._outboxes.of(name, False)
        return opened.outbox, cast("DjangoDatabase", self.databases[name])

    @explained
    def transaction(
        self, session: Given | None = None, *, database: str | None = None, half: bool = False
    ) -> TransactionScope:
        """Return an atomic block of Django with a `tx.send`: a transaction, or a savepoint of one.

        Args:
            session: a session of SQLAlchemy, if you have one; then as `ReliableMQ.transaction`.
            database: the alias of the database. None: in a handler, that of its effect. Elsewhere
                the first alias of RELIABLE_MQ.
            half: not supported without a session.

        Raises:
            UsageError: `half` without a session.
            ConfigurationError: there is no such database.
        """
        if session is not None:
            return super().transaction(session, database=database, half=half)
        if half:
            raise UsageError("half messages need a session of SQLAlchemy; leave half=True out")
        alias = database or handler_alias() or MAIN_DATABASE
        return _AtomicScope(*self._outbox(named(alias)))

    if not TYPE_CHECKING:  # the types are those of `ReliableMQ`

        @names_checked_as(ReliableMQ.consumer)
        def consumer(
            self, topic: str, *, group: str, database: str = MAIN_DATABASE, **options: Any
        ) -> Callable[[F], F]:
            """Register a handler that uses the Django ORM; see `ReliableMQ.consumer`.

            It runs within an atomic block of the alias `database` (default: the first alias of
            RELIABLE_MQ). Its effect on that database, and the row that says "consumed", are one
            COMMIT. An `async def` runs in a thread of its own, so that its ORM calls are in this
            transaction.
            """
            name = named(database)
            alias = alias_of(name)

            def register(function: F) -> F:
                check_function(function, "a handler is")
                converted = partial(self._converted, name, alias)
                handler = _within_django(function, alias, converted)
                super(DjangoMQ, self).consumer(topic, group=group, database=name, **options)(
                    handler
                )
                return function

            return register

        @parentheses_checked_as(ReliableMQ.periodic)
        def periodic(
            self, *schedule: str, database: str = MAIN_DATABASE, **options: Any
        ) -> Callable[[F], F]:
            """Send a message at each tick; see `ReliableMQ.periodic`.

            The function may use the Django ORM: its rows, its messages and the row of the tick are
            one COMMIT on the alias `database` (default: the first alias of RELIABLE_MQ).
            """
            name = named(database)

            def register(function: F) -> F:
                check_function(function, "a periodic message is made by")
                converted = partial(self._converted, name, alias_of(name))
                maker = _within_django(function, alias_of(name), converted)
                super(DjangoMQ, self).periodic(*schedule, database=name, **options)(maker)
                return function

            return register

    def _converted(self, name: str, alias: str, error: DjangoError) -> Exception:
        """Return an error of the ORM as SQLAlchemy would raise it: a deadlock costs no attempt."""
        cause = error.__cause__
        dialect = cast("DjangoDatabase", self.databases[name]).leading_engine.dialect
        errors = dialect.loaded_dbapi.Error
        if not isinstance(cause, errors):
            return cast("Exception", error)
        lost = dialect.is_disconnect(cause, connections[alias].connection, None)
        found: Any = DBAPIError.instance(
            None, None, cause, errors, connection_invalidated=lost, dialect=dialect
        )
        return cast("Exception", found)


def _refuse_in_tests() -> None:
    """Let nothing leave the process in a test of Django.

    Raises:
        UsageError: this is one.
    """
    if is_under_test():
        raise UsageError(
            "in tests of Django nothing is sent to the broker of your settings: write `with "
            "MessageWorld(mq) as world:` (reliable_mq.testing.message_world) in a "
            "TransactionTestCase"
        )


def _within_django(
    function: Callable[..., Any], alias: str, converted: Callable[[DjangoError], Exception]
) -> Callable[..., Any]:
    called = async_to_sync(function) if inspect.iscoroutinefunction(function) else function

    @wraps(function)
    def handler(*given: Any, **named: Any) -> Any:
        if settings.DEBUG:
            reset_queries()
        renew_idle()
        try:
            answer = called(*given, **named)
        except (DjangoError, RuntimeError) as error:
            if plain := closed_in_handler(alias) or forbidden_in_handler(error):
                raise plain from error
            if not isinstance(error, DjangoError):
                raise
            other = converted(error)
            if other is error:
                raise
            raise other from error
        check_transaction_left(alias)
        return answer

    return handler


class _AtomicScope(TransactionScope):
    """The block of `DjangoMQ.transaction()`."""

    def __init__(self, outbox: SqlOutbox, database: DjangoDatabase) -> None:
        super().__init__(outbox, database.session, database.async_session, None)
        self._database = database
        self._atomic = Atomic(database.alias, True, False)

    def __enter__(self) -> Transaction:
        self._atomic.__enter__()
        try:
            self._connection = self._database.joined_engine.connect()
        except BaseException as error:
            self._atomic.__exit__(type(error), error, error.__traceback__)
            raise
        self._tx = Transaction(self._outbox, self._connection)
        return self._tx

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tx.is_open = False
        try:
            with self._connection as connection:
                if error is None:
                    connection.commit()  # hands over at the COMMIT, which is Django's
        except BaseException as failed:
            self._atomic.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._atomic.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Any:
        raise UsageError(
            "Django's transactions are synchronous: write `with mq.transaction():`, in an async "
            "view inside of sync_to_async"
        )


_lock = RLock()
_made: list[DjangoMQ] = []


def shared() -> DjangoMQ:
    """Return the project's object. Sets Django up if a command line did not.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    with _lock:
        if not _made:
            _made.append(DjangoMQ.of_settings())
        if not apps.ready and not apps.loading:
            django.setup()
        check_installed()
        return _made[0]
