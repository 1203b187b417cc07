"""`Declaring`: what an application declares at module level. It cannot connect to anything.

Receives declarations (`mq.topic`, `@mq.consumer`, `@mq.periodic`, `@mq.idempotent`); hands them on
to the application's `Declarations`, which check them. Refuses to know a connection: `ReliableMQ`
has the connections, and says here only whether its consumers were started.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from reliable_mq.app.declarations import Declarations
from reliable_mq.app.not_served import NotServed
from reliable_mq.consume.consumer import DEFAULT_CONCURRENCY
from reliable_mq.consume.handler_types import ConsumerOptions, F, PayloadHandlers, TopicOptions
from reliable_mq.consume.payload import decoder_of
from reliable_mq.database.sql_databases import Databases
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.idempotent_function import idempotent_function
from reliable_mq.idempotency.key_reading import KeySource
from reliable_mq.idempotency.keyed_function import KeyedFunction, Source
from reliable_mq.idempotency.thread_calls import CallBook
from reliable_mq.limits import RETRY_ATTEMPTS_MAX
from reliable_mq.misspelt import names_checked, parentheses_checked
from reliable_mq.outbox.cloud_events import envelope_of
from reliable_mq.outbox.message_options import ManyOptions
from reliable_mq.periodic.declaration import periodic_message
from reliable_mq.settings import EMBEDDED, MAIN_DATABASE, Settings
from reliable_mq.topic import Topic, name_of

if TYPE_CHECKING:
    from reliable_mq.contract.payloads import PayloadSchemas

M = TypeVar("M", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Declaring(NotServed):
    """The declarations of one application.

    Invariant: no method connects.

    Args:
        name: the application's name.
        settings: the application's settings.
        databases: the databases whose names a declaration may give.
        declared: keeps and checks the declarations.
        calls: stores the results of idempotent functions, once one is called.
        is_consuming: returns whether the consumers of this process were started.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        databases: Databases,
        declared: Declarations,
        calls: CallBook,
        is_consuming: Callable[[], bool],
    ) -> None:
        self.name = name
        self.settings = settings
        #: the databases by name, "main" first; their engines, sessions and our tables
        self.databases = databases
        self._declared = declared
        self._calls = calls
        self._is_consuming = is_consuming

    @property
    def consumer_groups(self) -> tuple[str, ...]:
        """The consumer groups that have a handler in this application."""
        return tuple(each.group for each in self._declared.consumers)

    @overload
    def topic(self, name: str, **options: Unpack[TopicOptions]) -> str: ...
    @overload
    def topic(
        self, name: str, *, payload: type[T], **options: Unpack[TopicOptions]
    ) -> Topic[T]: ...
    @overload
    def topic(
        self, name: str, *, payload: UnionType, **options: Unpack[TopicOptions]
    ) -> Topic[Any]: ...
    @names_checked
    def topic(
        self,
        name: str,
        *,
        payload: Any = None,
        groups: Sequence[str] | None = None,
        envelope: str | None = None,
        sensitive: Sequence[str] = (),
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
            sensitive: the fields whose values the console and commands show masked, at any depth:
                "card_number", or "customer.email" for the field of an object; "*": no payload is
                shown. See the setting `sensitive`, too. Each call adds its names.

        Raises:
            ConfigurationError: a name is not legal.
            UsageError: no payload can have this type, the topic has another payload, or there is
                no such envelope.
        """
        if payload is not None:
            decoder_of(payload, f"topic {name}")
        wrap = None if envelope is None else envelope_of(envelope, self.name)
        self._declared.topic(name, groups, payload, wrap, sensitive)
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
        dataclass, msgspec Struct, dict, list, str or bytes. A `def` runs in a thread, `async def`
        as a task. It may use savepoints. To end the session's transaction raises `UsageError`.

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
            lease: seconds of a claim, < `duplicate_window_seconds`; None: `claim_lease_seconds`.
            concurrency: the most calls that run at once. Default 8.
            database: the name of the database for its effects, its session, its consume log and
                the messages that it sends. Default "main".
            idempotent_by: the business key; of all messages with one key, one has its effect. A
                field of the payload ("order.id"), or a function of it; None: only the message id.
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
        if self._is_consuming():  # nobody would call the handler
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
            scope: keys are unique within it; at most 127 characters. Default "": module and name of
                the function.
            compare: parameters that must be the same when a key is used again, or a function of
                them. Default None: nothing is compared.
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
