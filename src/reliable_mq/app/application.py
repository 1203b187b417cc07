"""`ReliableMQ`: the object of an application, the face of everything.

What it declares is in `declaring`, and connects to nothing. What it runs over its connections is in
`life`. Here are its settings, its databases, its transactions, and the verbs of its processes.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from reliable_mq.app.declarations import Declarations
from reliable_mq.app.declaring import Declaring
from reliable_mq.app.life import Life
from reliable_mq.app.thread_connections import Connections, OpenLeases
from reliable_mq.app.thread_signals import run_until_signal
from reliable_mq.app.thread_upkeep import ResendControl, check_upkeep
from reliable_mq.client.checked import check_value
from reliable_mq.client.observing.middleware import Middleware, check_middleware
from reliable_mq.client.settings import ClientSettings
from reliable_mq.configuration.setting_options import SettingOptions
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_databases import Databases
from reliable_mq.database.sql_handler_session import refuse_second_transaction, running_session
from reliable_mq.doctor.finding import Finding
from reliable_mq.errors import UsageError
from reliable_mq.escalate.alerts import Alerts, Notifier
from reliable_mq.extras import extra_of
from reliable_mq.idempotency.thread_calls import CallBook
from reliable_mq.limits import GROUP_LENGTH_MAX
from reliable_mq.misspelt import explained, names_checked
from reliable_mq.names import check_name
from reliable_mq.outbox.asyncio_producer import Producer
from reliable_mq.outbox.resend_policy import ResendPolicy, Wait, ladder
from reliable_mq.outbox.sql_transaction import TransactionScope
from reliable_mq.outbox.transaction_block import Given, missing_attribute, source_of
from reliable_mq.periodic.declaration import PeriodicState
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.retention.retention import Retention
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.settings import MAIN_DATABASE, Settings, load_settings, naming_variables
from reliable_mq.telemetry import application_events
from reliable_mq.topic import Topic, name_of

if TYPE_CHECKING:
    from reliable_mq.app.thread_meter import Meter

log = logging.getLogger(__name__)

L = TypeVar("L")


class ReliableMQ(Declaring):
    """Reliable messaging for one application.

    It connects when a connection is first needed: declare it at module level, import it everywhere.
    A forked process makes its own connections, and consumes nothing before `start`.

    Args:
        name: the application's name; the names of its relay and producer group contain it.
        broker: name servers "host:port;host:port" of the bundled broker or of Apache RocketMQ, or
            "embedded:DIR": the bundled broker inside this process, with its store in DIR.
        database: SQLAlchemy URL of PostgreSQL, MySQL, MariaDB or SQLite.
        databases: more databases, name to URL: `mq.transaction(database="billing")`, and
            `@mq.consumer(…, database="billing")`. The first database's name is "main".
        redis: Redis URL. Without Redis the database alone decides, at one more commit per message.
        client: account, TLS, namespace, timeouts and limits of the connections to the cluster.
            A `ClientSettings`, or some of its fields by name. Its default values are replaced by
            the settings (`access_key` or `tls_ca`, for example). Its `producer_group` is the
            application's own unless it names one.
        leases: opens another store instead of Redis, see `idempotency.lease_store`.
        settings: all other settings. Missing ones come from `RELIABLE_MQ_*` variables.
        notifiers: more notifiers that inform a person when something does not settle by itself.
            The log, and mail or webhook from the settings, notify anyway.
        resend_wait: how long after the n-th send of a stub the next one is due: one of tenacity's
            waits, alone or combined; default: a ladder of the setting `resend_waits_seconds`.
        middleware: sees messages when they are sent and handled, see `Middleware`.
        **more: single settings by name, see `reliable_mq.settings.Settings`.

    Raises:
        ConfigurationError: a setting is wrong.
    """

    @explained
    def __init__(
        self,
        name: str,
        *,
        broker: str | None = None,
        database: str | None = None,
        databases: Mapping[str, str] | None = None,
        redis: str | None = None,
        client: ClientSettings | Mapping[str, Any] | None = None,
        leases: OpenLeases | None = None,
        settings: Settings | None = None,
        notifiers: Sequence[Notifier] = (),
        resend_wait: Wait | None = None,
        middleware: Sequence[Middleware] = (),
        **more: Unpack[SettingOptions],
    ) -> None:
        check_name("application", name, GROUP_LENGTH_MAX)
        #: options with which a command finds this application; log lines suggest them
        self.found_by = "--app MODULE:OBJECT"
        check_value("settings", settings, Settings | None)
        check_value("client", client, ClientSettings | Mapping | None)
        chosen: dict[str, object] = {"broker": broker, "database": database, "redis": redis}
        chosen |= {"databases": databases, "client": client, **more}
        loaded = load_settings(settings, **chosen)
        with naming_variables(loaded, chosen if settings is None else settings.model_dump()):
            self._policy = ResendPolicy(
                wait=resend_wait or ladder(*loaded.resend_waits_seconds),
                count_max=loaded.resend_count_max,
                backlog_wait=loaded.resend_backlog_wait_seconds,
                told_after=loaded.resend_notify_after_seconds,
            )
            declared = Declarations(loaded)
            made = Databases(
                loaded,
                declared.connections_wanted,
                lambda made: made.note_processes(name, lambda: self._connections.owner),
                self._make_database,
            )
            calls = CallBook(lambda: self.database, loaded.claim_lease_seconds)
            super().__init__(
                *(name, loaded, made, declared, calls),
                is_consuming=lambda: self._connections.is_consuming,
            )
            self._notifiers = notifiers
            check_upkeep(loaded, self._policy)
            self._middleware = check_middleware(middleware)
            self._use_connections(Connections(name, loaded, self._policy, leases, self._middleware))

    def _use_connections(self, connections: Connections) -> None:
        """Make the parts that send and receive over these connections; tests pass other ones."""
        self._connections = connections
        self._life = Life(
            *(self.name, connections, self.databases, self.settings, self._policy),
            *(self._declared, self._notifiers, lambda: self.found_by),
        )
        self._half_messages = self._life.half_messages
        self._outboxes = self._life.outboxes  # `transaction` asks it for each message

    @property
    def database(self) -> Database:
        """The database "main": its engine, sessions and our tables."""
        return self.databases[MAIN_DATABASE]

    def shown_name(self, database: str) -> str:
        """Return the name by which people know a database; a framework may have its own."""
        return database

    def _make_database(self, name: str, url: str, **options: Any) -> Database:
        """Make the database of a name; a framework with its own connections overrides it."""
        del name  # only where they differ
        return Database(url, **options)

    @property
    def is_alive(self) -> bool:
        """Whether the event loop of this process runs, or was not started yet."""
        return self._connections.is_alive

    def periodic_messages(self) -> list[PeriodicState]:
        """Return the periodic messages of this application, with their next and last ticks.

        Raises:
            ConfigurationError: a table is missing.
        """
        self.databases.check_tables()
        return self._life.periodic_states()

    @names_checked
    def transaction_listener(self, topic: str | Topic[Any]) -> Callable[[L], L]:
        """Register the decorated class, or an object, as the listener for halves of a topic.

        See `TransactionListener` for its methods, and `Producer.send_in_transaction` for the send.
        Transactions in a database of this application need none: use `transaction(half=True)`.

        Raises:
            UsageError: it lacks a method, or the topic has a listener.
            ConfigurationError: the topic's name is not legal.
        """

        def register(listener: L) -> L:
            self._half_messages.listeners.register(name_of(topic), listener)
            return listener

        return register

    def transaction(
        self,
        session: Given | None = None,
        *,
        database: str | None = None,
        half: bool = False,
    ) -> TransactionScope:
        """Return a block in which messages and business rows are committed together.

        `with mq.transaction() as tx` (or `async with`) makes a session and commits it at the end of
        the block. With your own session or Core connection, `TransactionScope` says who commits. In
        a handler, pass the handler's session.

        Args:
            session: a session, or a Core connection, of one of the application's databases.
            database: the name of the database; None: the one that the session is bound to, or
                "main" without a session.
            half: each `send` stores a half message at the broker, which becomes visible when the
                transaction has committed. If the half cannot be stored, the transaction fails.

        Raises:
            UsageError: there is no session, and this is a handler of the same database.
            ConfigurationError: there is no such database.
        """
        source = None if session is None else source_of(session)
        if database is None:
            database = MAIN_DATABASE if source is None else self.databases.name_of(source)
        if source is None and running_session() is not None:
            refuse_second_transaction(self.databases[database].url)
        opened = self._outboxes.made.get((database, half)) or self._outboxes.of(database, half)
        return TransactionScope(*opened, source)

    @property
    def producer(self) -> Producer:
        """Sends at once, without a stub. A send to a managed topic warns, raises or is allowed.

        A managed topic was declared by `topic`. Also managed: topics to which a transaction of this
        application sends, and topics that its consumers read.
        """
        return self._life.producer

    def scheduler(self, *, database: str = MAIN_DATABASE) -> Scheduler:
        """Return a resend scheduler of one database, under its own owner name.

        Args:
            database: the name of the database.
        """
        return self._life.upkeep.scheduler(database)

    def retention(self, *, database: str = MAIN_DATABASE) -> Retention:
        """Return the retention of a database: it removes old settled stubs and old consume logs.

        `resend_forever` runs it. With the setting `retention="off"`, call its `run_once` yourself.
        """
        return self._life.upkeep.retention(database)

    def alerts(self, *, database: str = MAIN_DATABASE) -> Alerts:
        """Return the alerts of one database: they inform people. Resend schedulers run them, too.

        Args:
            database: the name of the database.
        """
        return self._life.upkeep.alerts(database)

    def resend_forever(self, stopped: StopSignal) -> None:
        """Run the resend schedulers of all databases until `stopped`, the first in this thread.

        Retention and alerts run in other threads. While a database is away, it waits.

        Raises:
            ConfigurationError: a table is missing, or retention windows contradict each other.
        """
        self._life.resend_forever(stopped)

    @property
    def resending(self) -> ResendControl:
        """Pauses the resending of topics, and reports which are paused or closed."""
        return ResendControl(self.databases)

    def resend_once(self) -> dict[str, dict[str, int]]:
        """Read all waiting notices, run each database's scheduler once; return counts.

        Alerts run once, too: `stuck` counts stubs, `digests` the digests that were sent, and
        `digests_failed` the failed ones.

        Raises:
            ConfigurationError: a table is missing.
        """
        self.databases.check_tables()
        return self._life.upkeep.run_once()

    def create_tables(self) -> list[str]:
        """Create the missing tables; return the names of those that were missing.

        With several databases, a name is `database.table`.

        Raises:
            ConfigurationError: there are tables of an older release; migrate them.
        """
        return self.databases.create_tables()

    def migrate(self) -> list[str]:
        """Migrate the tables to this release with Alembic; return the revisions that were run.

        The same as `reliable-mq migrate`; needs the extra `migrations`. With several databases, a
        revision is `database.revision`.

        Raises:
            ConfigurationError: a table was not made by a release of reliable_mq.
            Unavailable: another process has been migrating the tables for a minute.
        """
        with extra_of("migrate"):
            from reliable_mq.migrations.sql_upgrade import (  # noqa: PLC0415 - an extra
                migrate_all,
            )

        return migrate_all(self.databases)

    def examine(self) -> list[Finding]:
        """Return the findings of `reliable-mq doctor`: what would break a promise, and what to do.

        Only reads. A broker that is embedded in another process is not examined.
        """
        # Imported late: only this needs the synchronous Redis client.
        from reliable_mq.doctor.periodic_checks import periodic_findings  # noqa: PLC0415
        from reliable_mq.doctor.redis_examination import examine_all  # noqa: PLC0415

        cluster = None if self._connections.is_embedded else self._connections
        leases = self._declared.leases(self.databases)
        unread = self._declared.unread_topics()
        found = examine_all(self.databases, self.settings, leases, cluster, unread)
        return found + periodic_findings(self._life.periodic_states)

    def register_metrics(self, registry: Any = None) -> None:
        """Register the metrics of this application; serve them as you like.

        `run` and `resend` do this when they get `--metrics-port`. In a program of your own, call it
        once where the program starts, before the first message is sent or consumed. It adds a
        `PrometheusMiddleware` unless there is one.

        Args:
            registry: of prometheus_client; None: its own.

        Raises:
            ExtraMissing: prometheus_client is not installed.
            UsageError: the application has connected already.
            ValueError: the registry has such metrics already.
        """
        self.meter(registry).register()

    def meter(self, registry: Any = None) -> "Meter":
        """Return what registers single parts of the metrics; see `register_metrics`.

        Args:
            registry: of prometheus_client; None: its own.

        Raises:
            ExtraMissing: prometheus_client is not installed.
        """
        # Imported late: most applications serve no metrics.
        from reliable_mq.app.thread_meter import Meter  # noqa: PLC0415

        return Meter(self._connections, self.databases, self.settings, registry, self.shown_name)

    if not TYPE_CHECKING:  # a type checker must see that the attribute is missing

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def start(self) -> None:
        """Start this application's consumers in this process; returns when they have subscribed.

        With an embedded broker, the resend scheduler is started, too: no other process can reach
        that broker. Otherwise run `reliable-mq resend` beside your workers.

        Raises:
            UsageError: it has no consumers.
            ConfigurationError: a table is missing, or retention windows contradict each other.
        """
        self._life.start()

    def run(self) -> None:
        """Run the consumers until SIGTERM or SIGINT, then finish running handlers and close.

        While a database or the brokers are away at the start, it waits. `start` does not.

        Raises:
            UsageError: there are no consumers, or this is not the main thread.
            ConfigurationError: a table is missing.
            WorkerDied: the event loop has ended, so the process would do nothing.
        """
        run_until_signal(
            self.start,
            self.close,
            lambda: self._connections.is_alive,
            self._connections.loop_answers,
            self.databases.wait_until_reached,
        )
        application_events.APPLICATION_STOPPED.log(log, application=self.name, part="worker")

    def close(self) -> None:
        """Let handlers finish, send remaining stubs, close all connections."""
        self._life.close()

    def __reduce__(self) -> str:
        raise UsageError("a ReliableMQ cannot be copied or pickled: import it where it is needed")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
