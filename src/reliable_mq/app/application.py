"""`ReliableMQ`: the object on which an application declares its messaging."""

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from reliable_mq.app.declarations import Declarations
from reliable_mq.app.declaring import Declaring
from reliable_mq.app.tables_and_health import TablesAndHealth
from reliable_mq.app.thread_connections import Connections, OpenLeases
from reliable_mq.app.thread_signals import run_until_signal
from reliable_mq.app.thread_upkeep import ResendControl, Upkeep, check_upkeep
from reliable_mq.client.checked import check_value
from reliable_mq.client.observing.middleware import Middleware, check_middleware
from reliable_mq.client.settings import ClientSettings
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_databases import Databases
from reliable_mq.database.sql_handler_session import refuse_second_transaction
from reliable_mq.errors import UsageError
from reliable_mq.escalate.alerts import Alerts, Notifier
from reliable_mq.idempotency.thread_calls import CallBook
from reliable_mq.limits import GROUP_LENGTH_MAX
from reliable_mq.names import check_name
from reliable_mq.outbox.asyncio_producer import Producer
from reliable_mq.outbox.resend_policy import ResendPolicy, Wait, ladder
from reliable_mq.outbox.sql_transaction import Given, TransactionScope, source_of
from reliable_mq.outbox.thread_half_messages import HalfMessages
from reliable_mq.outbox.thread_outboxes import Outboxes
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.retention.retention import Retention
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.settings import MAIN_DATABASE, Settings, load_settings

log = logging.getLogger(__name__)


_SPARE_CONNECTIONS = 4
_PRODUCER_CONNECTIONS = 16


class ReliableMQ(Declaring, TablesAndHealth):
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
            Its default values are replaced by the settings (`access_key` or `tls_ca`, for
            example). Its `producer_group` is the application's own unless it names one.
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

    def __init__(
        self,
        name: str,
        *,
        broker: str | None = None,
        database: str | None = None,
        databases: Mapping[str, str] | None = None,
        redis: str | None = None,
        client: ClientSettings | None = None,
        leases: OpenLeases | None = None,
        settings: Settings | None = None,
        notifiers: Sequence[Notifier] = (),
        resend_wait: Wait | None = None,
        middleware: Sequence[Middleware] = (),
        **more: Any,
    ) -> None:
        check_name("application", name, GROUP_LENGTH_MAX)
        self.name = name
        #: options with which a command finds this application; log lines suggest them
        self.found_by = "--app MODULE:OBJECT"
        check_value("settings", settings, Settings | None)
        check_value("client", client, ClientSettings | Mapping | None)
        chosen = {"broker": broker, "database": database, "redis": redis, **more}
        chosen |= {"databases": databases, "client": client}
        self.settings = load_settings(settings, **chosen)
        self._policy = ResendPolicy(
            wait=resend_wait or ladder(*self.settings.resend_waits_seconds),
            count_max=self.settings.resend_count_max,
            backlog_wait=self.settings.resend_backlog_wait_seconds,
            told_after=self.settings.resend_notify_after_seconds,
        )
        #: the databases by name, "main" first; their engines, sessions and our tables
        self.databases = Databases(
            self.settings,
            self._connections_wanted,
            lambda made: made.note_processes(name, lambda: self._connections.owner),
        )
        self._declared = Declarations(self.settings)
        self._calls = CallBook(lambda: self.database, self.settings.claim_lease_seconds)
        self._notifiers = notifiers
        check_upkeep(self.settings, self._policy)
        self._middleware = check_middleware(middleware)
        self._stand_on(Connections(name, self.settings, self._policy, leases, self._middleware))

    def _stand_on(self, connections: Connections) -> None:
        """Make the parts that send and receive over these connections; tests pass other ones."""
        self._connections = connections
        self._half_messages = HalfMessages(
            self.name,
            self._connections,
            self.databases,
            self._policy.next_time,
            self.settings.resend_lease_seconds,
        )
        self._outboxes = Outboxes(
            self._connections,
            self.databases,
            self._half_messages,
            relay_lease=self.settings.relay_lease_seconds,
            timer_range=self.settings.timer_range_seconds,
            is_shared=self.settings.relay == "shared" and connections.shares_relays,
            groups_of_topic=self._declared.required_groups,
            on_first_send=self._tell_when_nobody_consumes,
        )
        self._producer: Producer | None = None
        self._upkeep = Upkeep(
            self.name,
            self._connections,
            self.databases,
            self.settings,
            self._policy,
            self._notifiers,
            lambda: self.found_by,
        )

    @property
    def database(self) -> Database:
        """The database "main": its engine, sessions and our tables."""
        return self.databases[MAIN_DATABASE]

    def _connections_wanted(self, database: str) -> int:
        handlers = sum(
            each.concurrency for each in self._declared.consumers if each.database == database
        )
        return max(handlers, _PRODUCER_CONNECTIONS) + _SPARE_CONNECTIONS

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
        chosen = self.databases[database]
        if source is None:
            refuse_second_transaction(chosen.url)
        return TransactionScope(
            self._outboxes.of(database, half=half), chosen.session, chosen.async_session, source
        )

    @property
    def producer(self) -> Producer:
        """Sends at once, without a stub. A send to a managed topic warns, raises or is allowed.

        A managed topic was declared by `topic`. Also managed: topics to which a transaction of this
        application sends, and topics that its consumers read.
        """
        if self._producer is None:
            policy = self.settings.send_outside_transaction
            self._producer = Producer(
                self._connections,
                self._declared.is_managed,
                policy,
                self._half_messages.listeners,
            )
        return self._producer

    def scheduler(self, *, database: str = MAIN_DATABASE) -> Scheduler:
        """Return a resend scheduler of one database, under its own owner name.

        Args:
            database: the name of the database.
        """
        return self._upkeep.scheduler(database)

    def retention(self, *, database: str = MAIN_DATABASE) -> Retention:
        """Return the retention of a database: it removes old settled stubs and old consume logs.

        `resend_forever` runs it. With the setting `retention="off"`, call its `run_once` yourself.
        """
        return self._upkeep.retention(database)

    def alerts(self, *, database: str = MAIN_DATABASE) -> Alerts:
        """Return the alerts of one database: they inform people. Resend schedulers run them, too.

        Args:
            database: the name of the database.
        """
        return self._upkeep.alerts(database)

    def resend_forever(self, stopped: StopSignal) -> None:
        """Run the resend schedulers of all databases until `stopped`, the first in this thread.

        Retention and alerts run in other threads.

        Raises:
            ConfigurationError: a table is missing, or retention windows contradict each other.
        """
        check_upkeep(self.settings, self._policy, self._declared.consumers)
        self.databases.check_tables()
        interval = self.settings.resend_interval_seconds
        log.info("application %s: resend looks every %g s", self.name, interval)
        self._half_messages.join()
        self._share_relays()
        self._upkeep.run(stopped)

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
        return self._upkeep.run_once()

    def start(self) -> None:
        """Start this application's consumers in this process; returns when they have subscribed.

        With an embedded broker, the resend scheduler is started, too: no other process can reach
        that broker. Otherwise run `reliable-mq resend` beside your workers.

        Raises:
            UsageError: it has no consumers.
            ConfigurationError: a table is missing, or retention windows contradict each other.
        """
        if not self._declared.consumers:
            raise UsageError(f"application {self.name} has no consumers: decorate a handler")
        check_upkeep(self.settings, self._policy, self._declared.consumers)
        self.databases.check_tables()
        self._half_messages.join()
        self._share_relays()
        self._connections.start_worker("consumers", self._declared.consumers, self.databases)
        consumed = (f"{each.topic} as {each.group}" for each in self._declared.consumers)
        log.info("application %s is ready and consumes %s", self.name, ", ".join(consumed))
        if self._connections.is_embedded:
            self._connections.start_scheduler(self.resend_forever)

    def _share_relays(self) -> None:
        if self.settings.relay == "shared":
            self._connections.shared_relays.start(self.databases)

    def _tell_when_nobody_consumes(self) -> None:
        """Warn when an application sends to its embedded broker without started consumers."""
        connections = self._connections
        if connections.is_embedded and self._declared.consumers and not connections.is_consuming:
            log.warning(
                "application %s sends but is not started: nobody consumes its messages, they stay "
                "UNCONFIRMED. Its broker is inside this process, so no other process can consume "
                "them. Write `with mq:`, or call mq.start() or mq.run()",
                self.name,
            )

    def run(self) -> None:
        """Run the consumers until SIGTERM or SIGINT, then finish running handlers and close.

        Raises:
            UsageError: there are no consumers, or this is not the main thread.
            ConfigurationError: a table is missing.
            WorkerDied: the event loop has ended, so the process would do nothing.
        """
        run_until_signal(self.start, self.close, lambda: self._connections.is_alive)

    def close(self) -> None:
        """Let handlers finish, send remaining stubs, close all connections."""
        self._connections.close()
        self._half_messages.close()
        self._outboxes.forget()
        self.databases.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
