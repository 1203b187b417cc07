"""`ReliableMQ`: the object on which an application declares its messaging.

Declarations at module level (`mq.topic`, `@mq.consumer`, `@mq.idempotent`) connect to nothing. The
application's `Declarations` check them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType, UnionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from reliable_mq.app.declarations import Declarations
from reliable_mq.app.thread_connections import Connections, OpenLeases
from reliable_mq.app.thread_signals import run_until_signal
from reliable_mq.app.thread_upkeep import ResendControl, Upkeep, check_upkeep
from reliable_mq.client.checked import check_value
from reliable_mq.client.observing.middleware import Middleware, check_middleware
from reliable_mq.client.settings import ClientSettings
from reliable_mq.consume.asyncio_worker import Worker
from reliable_mq.consume.consumer import DEFAULT_CONCURRENCY
from reliable_mq.consume.handler_types import ConsumerOptions, F, PayloadHandlers
from reliable_mq.consume.payload import decoder_of
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_databases import Databases
from reliable_mq.database.sql_handler_session import refuse_second_transaction, running_session
from reliable_mq.doctor.finding import Finding
from reliable_mq.errors import UsageError
from reliable_mq.escalate.alerts import Alerts, Notifier
from reliable_mq.extras import extra_of
from reliable_mq.idempotency.idempotent_function import idempotent_function
from reliable_mq.idempotency.key_reading import KeySource
from reliable_mq.idempotency.keyed_function import KeyedFunction, Source
from reliable_mq.idempotency.thread_calls import CallBook
from reliable_mq.limits import GROUP_LENGTH_MAX, RETRY_ATTEMPTS_MAX
from reliable_mq.misspelt import names_checked, parentheses_checked
from reliable_mq.names import check_name
from reliable_mq.outbox.asyncio_producer import Producer
from reliable_mq.outbox.cloud_events import envelope_of
from reliable_mq.outbox.composing import ManyOptions
from reliable_mq.outbox.resend_policy import ResendPolicy, Wait, ladder
from reliable_mq.outbox.sql_transaction import (
    Given,
    TransactionScope,
    missing_attribute,
    source_of,
)
from reliable_mq.outbox.thread_half_messages import HalfMessages
from reliable_mq.outbox.thread_outboxes import Outboxes
from reliable_mq.periodic.declaration import PeriodicState, periodic_message
from reliable_mq.periodic.sql_ticks import SqlTicks
from reliable_mq.periodic.thread_periodic import PeriodicSender
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.retention.retention import Retention
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.setting_options import SettingOptions
from reliable_mq.settings import (
    EMBEDDED,
    MAIN_DATABASE,
    Settings,
    load_settings,
    naming_variables,
)
from reliable_mq.telemetry import application_events
from reliable_mq.topic import Topic, name_of

if TYPE_CHECKING:
    from reliable_mq.app.thread_meter import Meter
    from reliable_mq.contract.payloads import PayloadSchemas

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Callable[..., Any])
L = TypeVar("L")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_SPARE_CONNECTIONS = 4
_PRODUCER_CONNECTIONS = 16


class ReliableMQ:
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
        self.name = name
        #: options with which a command finds this application; log lines suggest them
        self.found_by = "--app MODULE:OBJECT"
        check_value("settings", settings, Settings | None)
        check_value("client", client, ClientSettings | Mapping | None)
        chosen: dict[str, object] = {"broker": broker, "database": database, "redis": redis}
        chosen |= {"databases": databases, "client": client, **more}
        self.settings = load_settings(settings, **chosen)
        with naming_variables(self.settings, chosen if settings is None else settings.model_dump()):
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
                self._make_database,
            )
            self._declared = Declarations(self.settings)
            self._calls = CallBook(lambda: self.database, self.settings.claim_lease_seconds)
            self._notifiers = notifiers
            check_upkeep(self.settings, self._policy)
            self._middleware = check_middleware(middleware)
            self._use_connections(
                Connections(name, self.settings, self._policy, leases, self._middleware)
            )

    def _use_connections(self, connections: Connections) -> None:
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
            known_groups=self._declared.known_groups,
            envelopes=self._declared.envelopes,
            on_first_send=self._warn_without_consumers,
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
            self._periodic_senders,
        )

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
    def consumer_groups(self) -> tuple[str, ...]:
        """The consumer groups that have a handler in this application."""
        return tuple(each.group for each in self._declared.consumers)

    @property
    def is_alive(self) -> bool:
        """Whether the event loop of this process runs, or was not started yet."""
        return self._connections.is_alive

    def _connections_wanted(self, database: str) -> int:
        handlers = sum(
            each.concurrency for each in self._declared.consumers if each.database == database
        )
        return max(handlers, _PRODUCER_CONNECTIONS) + _SPARE_CONNECTIONS

    @overload
    def topic(
        self, name: str, *, groups: Sequence[str] | None = None, envelope: str | None = None
    ) -> str: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        payload: type[T],
        groups: Sequence[str] | None = None,
        envelope: str | None = None,
    ) -> Topic[T]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        payload: UnionType,
        groups: Sequence[str] | None = None,
        envelope: str | None = None,
    ) -> Topic[Any]: ...
    @names_checked
    def topic(
        self,
        name: str,
        *,
        payload: Any = None,
        groups: Sequence[str] | None = None,
        envelope: str | None = None,
    ) -> str | Topic[Any]:
        """Declare a managed topic and the consumer groups its messages must reach.

        Name the groups here that other applications run. Also name groups of this application if
        the topic is sent to where their modules are not imported. Other groups are known anyway.
        An empty list means that no group needs to read the topic: if there is none, a message is
        confirmed when the broker has stored it.

        Args:
            name: the topic's name.
            payload: the type of its payloads, a union for several. With it, a `Topic` is returned
                instead of the name: a type checker then compares the payloads that are sent to it
                and the handlers that consume it with the type. Payloads are not compared at run
                time. `reliable-mq schema` and `reliable-mq asyncapi` describe it.
            groups: the names of consumer groups. Default None: those that are known anyway. Each
                call adds its groups to those of earlier calls for the topic.
            envelope: "cloudevents" makes each message a CloudEvent 1.0 in binary mode: attributes
                are properties. "cloudevents-structured" puts attributes and payload into a JSON
                object. Consumers of the topic get the payload as before, in either mode and from
                any sender; `CloudEvent.of(message)` has the attributes. Default None: no envelope.

        Raises:
            ConfigurationError: a name is not legal.
            UsageError: no payload can have this type, the topic has another payload, or there is
                no such envelope.
        """
        if payload is not None:
            decoder_of(payload, f"topic {name}")
        wrap = None if envelope is None else envelope_of(envelope, self.name)
        self._declared.topic(name, groups, payload, wrap)
        return name if payload is None else Topic(name, payload)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that this application declares, sends to in transactions, or consumes."""
        return self._declared.topics

    def groups_of(self, topic: str | Topic[Any], tag: str = "") -> tuple[str, ...]:
        """Return the consumer groups that a message of `topic` must reach to be confirmed.

        A consumer whose tags exclude the message is not included. The topic is a managed one from
        now on.
        """
        return self._declared.groups_of(name_of(topic), tag)

    @overload
    def consumer(
        self, topic: Topic[T], **options: Unpack[ConsumerOptions]
    ) -> PayloadHandlers[T]: ...
    @overload
    def consumer(self, topic: str, **options: Unpack[ConsumerOptions]) -> Callable[[F], F]: ...
    @names_checked
    def consumer(
        self,
        topic: str | Topic[Any],
        *,
        group: str,
        tag: str = "*",
        ordered: bool = True,
        batch: int = 1,
        max_attempts: int = RETRY_ATTEMPTS_MAX,
        retry_waits: Sequence[float] | None = None,
        log_receipt: bool = False,
        lease: float | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        database: str = MAIN_DATABASE,
        idempotent_by: KeySource | None = None,
        by: Literal["queue", "message"] = "queue",
    ) -> Callable[[Any], Any]:
        """Register the decorated function as the handler of a consumer group.

        The function's effect in the database and the row that says CONSUMED are one commit: the
        effect happens exactly once per message and group. Parameters are filled by annotation. A
        `Session` (in an `async def`: an `AsyncSession`) is committed when the function returns. A
        `ReceivedMessage` is the message. Any other parameter is the payload: a pydantic model,
        dataclass, dict, str or bytes. A `def` runs in a thread, an `async def` as a task. The
        function may use savepoints, but ending the session's transaction raises `UsageError`.

        Return or raise `Retry(after=…)` to be called again, `Reject(reason)` for the dead letters.
        Any other exception is a failed attempt. Any other value means consumed.

        Args:
            topic: the topic; a type checker compares a `Topic` with the handler's first parameter.
            group: the consumer group; each group has one handler.
            tag: `"*"`, or tags joined by `||`. Default `"*"`.
            ordered: messages with one ordering key are handled one at a time, in order (default).
            batch: handle up to this many messages in one database transaction. Default 1. If one
                of them fails, all are rolled back and called again, each behind a savepoint. So
                with more than 1, keep the effects in the session, or set `log_receipt`. Messages
                of a batch in which a process died are called alone from then on.
            max_attempts: attempts before a message is a dead letter; deaths of the process count.
            retry_waits: the waits between its attempts, in seconds, as (1, 5, 30): above 0, up to
                two hours, not becoming shorter; the last one repeats. Default None: the setting
                `retry_waits_seconds`.
            log_receipt: commit a RECEIVED row before the function runs. Use it for effects outside
                of this database: after a crash, `message.in_doubt` is set. Default False.
            lease: seconds that a claim lasts without renewal; below `duplicate_window_seconds`.
            concurrency: the most calls that run at once.
            database: the name of the database for its effects, its session, its consume log and
                the messages that it sends. Default "main".
            idempotent_by: the business key; of all messages with one key, one has its effect. It is
                a field of the payload ("order.id"), or a function of it, see `key_reading`.
            by: what processes share: queues (default), or each "message": then a slow one holds
                nobody up, and no order is kept, so it needs `ordered=False`.

        Raises:
            UsageError: a parameter cannot be filled, a number or a wait is out of its range, the
                group already has a handler, or the consumers of this process were started.
            ConfigurationError: a name or number is not legal, or there is no such database.
        """
        self.databases.check_name(database)
        options: dict[str, Any] = {"topic": name_of(topic), "tag": tag, "batch": batch}
        options |= {"ordered": ordered, "max_attempts": max_attempts, "lease": lease}
        options |= {"retry_waits": retry_waits, "log_receipt": log_receipt, "database": database}
        options |= {"concurrency": concurrency, "by": by}

        def register(function: F) -> F:
            self._check_not_started(group)
            self._declared.consumer(function, group=group, idempotent_by=idempotent_by, **options)
            return function

        return register

    def _check_not_started(self, group: str) -> None:
        if self._connections.is_consuming:  # nobody would call the handler
            raise UsageError(
                f"consumer group {group}: the consumers of {self.name} were started already; "
                "import the module of this handler before mq.start() or mq.run()"
            )

    @parentheses_checked
    def periodic(
        self,
        *schedule: str,
        topic: str | Topic[Any],
        name: str | None = None,
        time_zone: str = "UTC",
        catch_up: timedelta | None = None,
        database: str = MAIN_DATABASE,
        **options: Unpack[ManyOptions[Any]],
    ) -> Callable[[M], M]:
        """Send a message at each tick of a schedule; the decorated function makes its payload.

        Each tick is fired exactly once, however many resend schedulers run: its messages are
        committed together with the row of the tick. `reliable-mq resend` fires ticks, and so does
        an application with an embedded broker.

        The function is a `def`. It returns the payload, or None for no message at this tick; a
        generator yields several payloads. Parameters are filled by annotation: a `Tick` says which
        tick it is, a `Session` is committed with the messages. It should be quick: it runs inside
        that transaction. If it raises, the tick is tried again after 1, 5, 15 and then every 60
        seconds, or until a newer one is due.

        A tick is missed if no scheduler runs at its time. Without `catch_up`, the newest missed
        tick is made up, and the ones before it are skipped.

        Args:
            *schedule: cron expressions: minute, hour, day of the month, month, day of the week;
                with six fields, the first one has seconds. Or "@hourly", "@daily", "@weekly",
                "@monthly", "@yearly". With several, each time that one of them names is a tick.
            topic: the topic of the messages.
            name: its name in this application. Default: that of the function. With another name it
                is another periodic message.
            time_zone: the time zone of the schedule. Default "UTC".
            catch_up: make up every missed tick that is at most this late, the oldest first: one
                minute to 31 days. Default None: the newest one only, however late.
            database: the name of the database of its stubs and its session. Default "main".
            **options: options of the messages, as for `Transaction.send_many`; each is a value, or
                a function of the payload.

        Raises:
            UsageError: an expression cannot be read or never comes, there is no such time zone,
                the function cannot be called, or the name is taken.
            ConfigurationError: a name is not legal, or there is no such database. The extra
                `periodic` is not installed.
        """
        self.databases.check_name(database)

        def register(function: M) -> M:
            self._declared.add_periodic(
                periodic_message(
                    function,
                    schedule,
                    topic=name_of(topic),
                    name=name,
                    time_zone=time_zone,
                    catch_up=catch_up,
                    database=database,
                    options=options,
                )
            )
            return function

        return register

    def periodic_messages(self) -> list[PeriodicState]:
        """Return the periodic messages of this application, with their next and last ticks.

        Raises:
            ConfigurationError: a table is missing.
        """
        self.databases.check_tables()
        return self._periodic_states()

    def _periodic_states(self) -> list[PeriodicState]:
        return [
            state
            for name, sender in self._periodic_senders().items()
            for state in sender.states(self.databases[name].clock.measured_now())
        ]

    def _periodic_senders(self) -> dict[str, PeriodicSender]:
        """Return what fires the ticks, by the names of databases that have periodic messages."""
        return {
            name: PeriodicSender(
                messages,
                SqlTicks(each.engine, each.periodic, each.periodic_ticks, self.name),
                each.handler_session,
                partial(self._outboxes.of, name, False),
            )
            for name, each in self.databases.items()
            if (messages := [p for p in self._declared.periodic if p.database == name])
        }

    def payload_schemas(self) -> "list[PayloadSchemas]":
        """Return the JSON Schemas of the payloads; see `reliable-mq schema`.

        Raises:
            UsageError: a payload type has no JSON Schema.
        """
        from reliable_mq.contract.payloads import declared_payloads  # noqa: PLC0415 - rarely used

        declared = declared_payloads(self._declared.sent, self._declared.consumers)
        return [each.schemas() for each in declared]

    def asyncapi(self, *, version: str = "0.0.0") -> dict[str, Any]:
        """Return the AsyncAPI 3.0.0 document of this application, for `json.dumps`.

        Channels are topics. Operations are the consumers and the known sends: periodic messages,
        and topics that were declared with a `payload`.

        Args:
            version: the version of your messages. Default "0.0.0".

        Raises:
            UsageError: a payload type has no JSON Schema.
        """
        from reliable_mq.contract.asyncapi import (  # noqa: PLC0415 - rarely used
            Described,
            asyncapi_document,
        )

        broker, declared = self.settings.broker, self._declared
        servers = [] if broker.startswith(EMBEDDED) else broker.split(";")
        about = Described(
            self.name,
            version,
            declared.topics,
            declared.sent,
            declared.consumers,
            declared.periodic,
            [each.strip() for each in servers if each.strip()],
            {topic: each.mode for topic, each in declared.envelopes.items()},
        )
        return asyncapi_document(about)

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

    @names_checked
    def idempotent(
        self,
        *,
        key: Source,
        scope: str = "",
        compare: Source | Sequence[str] | None = None,
        window: timedelta = timedelta(days=1),
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Let the decorated function run once for each key; later calls get the stored result.

        It decorates a `def` or an `async def` anywhere, without a consumer or a broker. If a
        parameter is a `Session` (`AsyncSession`), callers leave it out: its effect, the key and the
        result are one commit. A caller that passes a session, or a `Transaction`
        (`AsyncTransaction`) for a parameter of that type, gets all of it into its own transaction.
        Without a session, an effect elsewhere happens at least once; a parameter annotated
        `IdempotentCall` says whether an earlier attempt may have had it. A call that raises leaves
        the key free.

        Type checkers see the parameters of the function. Give those that callers leave out a
        default: `session: Session = injected`.

        Args:
            key: a parameter's name ("request_id"), a field of one ("order.id"), or a function of
                the same arguments.
            scope: keys are unique within it; at most 127 characters; default: module and name of
                the function.
            compare: parameters that must be the same when a key is used again, or a function.
            window: how long a result is kept. Default 1 day.

        The decorated function raises `KeyInvalid` if there is no key, and `KeyReused` if `compare`
        differs. It raises `CallRunning` if a call with this key is running, but `UsageError` inside
        that call. It raises `UsageError` if it has no session and uses a transaction that ends
        later: its result would be stored before.

        Raises:
            UsageError: a parameter has a wrong type, or the result cannot be stored.
        """
        if not isinstance(window, timedelta):
            raise UsageError(f"window={window!r}: a timedelta is needed, timedelta(seconds=…)")

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            seconds = window.total_seconds()
            keyed = KeyedFunction(function, key=key, scope=scope, compare=compare, window=seconds)
            return idempotent_function(self._calls, keyed)

        return decorate

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
        if self._producer is None:
            policy = self.settings.send_outside_transaction
            self._producer = Producer(
                self._connections,
                self._declared.is_managed,
                policy,
                self._half_messages.listeners,
                self._declared.envelopes,
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

        Retention and alerts run in other threads. While a database is away, it waits.

        Raises:
            ConfigurationError: a table is missing, or retention windows contradict each other.
        """
        check_upkeep(self.settings, self._policy, self._declared.consumers)
        if not self.databases.wait_until_reached(stopped):
            return
        self.databases.check_tables()
        interval = self.settings.resend_interval_seconds
        application_events.RESEND_STARTED.log(log, application=self.name, interval=interval)
        self._half_messages.join()
        self._share_relays()
        self._upkeep.run(stopped)
        application_events.APPLICATION_STOPPED.log(
            log, application=self.name, part="resend scheduler"
        )

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
        return found + periodic_findings(self._periodic_states)

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
        if not self._declared.consumers:
            raise UsageError(
                f"application {self.name} has no consumers: decorate a handler, or name the module"
                " that imports them"
            )
        check_upkeep(self.settings, self._policy, self._declared.consumers)
        self.databases.check_tables()
        self._half_messages.join()
        self._share_relays()
        connections, consumers = self._connections, self._declared.consumers
        self._say_when_ready(connections.start_worker("consumers", consumers, self.databases))
        if self._connections.is_embedded:
            self._connections.start_scheduler(self.resend_forever)

    def _say_when_ready(self, worker: Worker) -> None:
        consumed = (f"{each.topic} as {each.group}" for each in self._declared.consumers)
        facts: dict[str, Any] = {"application": self.name, "consumes": ", ".join(consumed)}
        if not self._connections.client._engine.name_servers.has_answered:
            application_events.APPLICATION_WAITS.log(log, **facts)
        worker.when_accepted(lambda: application_events.APPLICATION_READY.log(log, **facts))

    def _share_relays(self) -> None:
        if self.settings.relay == "shared":
            self._connections.shared_relays.start(self.databases)

    def _warn_without_consumers(self) -> None:
        """Warn when an application sends to its embedded broker without started consumers."""
        connections = self._connections
        if connections.is_embedded and self._declared.consumers and not connections.is_consuming:
            application_events.APPLICATION_NOT_STARTED.log(log, application=self.name)

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
