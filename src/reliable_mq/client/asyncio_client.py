"""The asyncio client: its methods are the verbs of the application.

Flows hold all client logic. `asyncio_client_engine` runs the flows, and holds what verbs share.
"""

from collections.abc import Sequence
from typing import Literal, Self

from reliable_mq.client.administering.asyncio_admin import AsyncAdmin
from reliable_mq.client.administering.cluster_facts import ClusterFacts, cluster_facts
from reliable_mq.client.administering.own_names import own_facts
from reliable_mq.client.administering.progress import read_progress_of
from reliable_mq.client.administering.topic_changes import give_queues
from reliable_mq.client.asyncio_client_engine import ClientEngine
from reliable_mq.client.checked import checked
from reliable_mq.client.connecting.routes import Route
from reliable_mq.client.consuming.allocation import Allocation, average
from reliable_mq.client.consuming.asyncio_message_consumer import AsyncMessageConsumer
from reliable_mq.client.consuming.asyncio_message_receiver import AsyncMessageReceiver
from reliable_mq.client.consuming.asyncio_pull_consumer import AsyncPullConsumer, PullOptions
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.client.observing.middleware import Middleware
from reliable_mq.client.sending.asyncio_sending import AsyncSending
from reliable_mq.client.sending.asyncio_transactions import Answerer
from reliable_mq.client.sending.outgoing import Sign
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.message import Decision, Half, Message, MessageQueue

DEFAULT_SETTINGS = ClientSettings()


class AsyncClient(AsyncSending):
    """Sends and consumes on one event loop. All its work shares the same connections.

    Use it as `async with AsyncClient(...) as client`, or call `start` and `close`. Every verb
    raises `UsageError` before `start` and after `close`, and `ForkedClient` in a forked process.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: timeouts, limits and intervals.
        middleware: sees messages that are sent and consumed, see `Middleware`.
        sign: returns a message with its signature. It runs after the middleware. If it raises, the
            message is refused (`MessageRefused`).

    Raises:
        ConfigurationError: when `name_servers` cannot be parsed, or an object is no middleware.
    """

    def __init__(
        self,
        name_servers: str,
        *,
        settings: ClientSettings = DEFAULT_SETTINGS,
        middleware: Sequence[Middleware] = (),
        sign: Sign | None = None,
    ) -> None:
        self._use_engine(ClientEngine(name_servers, settings, middleware, sign))

    def _use_engine(self, engine: ClientEngine) -> None:
        self._engine = engine
        #: half messages: verbs for several at once, and without waiting for an answer
        self.transactions = engine.transactions
        #: manages topics, groups, offsets, messages and dead letters
        self.admin = AsyncAdmin(engine)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The client's name at brokers."""
        return self._engine.client_id

    async def start(self) -> None:
        """Make the client ready. Connections are opened on first use.

        Raises:
            ForkedClient: when the client was made before a fork: each process needs its own name.
            UsageError: when it was started before, on any loop: each loop needs its own client.
        """
        await self._engine.start()

    async def close(self) -> None:
        """Close consumers and batchers gracefully, leave the producer groups, end the connections.

        Handlers get the setting `close_timeout_seconds` to finish; see `AsyncPushConsumer.close`.
        Batchers send their waiting messages. In a forked process this does nothing: the
        connections belong to the parent. Afterwards, sending and consuming raise `UsageError`. A
        second call waits for the same end, or returns at once after it. A cancelled call does not
        stop the closing.
        """
        await self._engine.close()

    async def join_transactions(self, group: str, check: Answerer) -> None:
        """Answer check-backs for the half messages of a producer group, of all its members.

        A broker that cannot be reached now learns of the group by a later heartbeat.

        Args:
            group: the producer group.
            check: decides a half message. An `async def`, which runs on this loop.

        Raises:
            ConfigurationError: when the group's name is illegal.
        """
        await self.transactions.join(group, check)

    async def send_half(self, message: Message, group: str, *, timeout: float = 3.0) -> Half:
        """Send a half message of a joined group. It is stored, but not visible yet.

        Args:
            message: the message, without a delay.
            group: the producer group.
            timeout: seconds for all attempts together.

        Raises:
            UsageError: when this client has not joined the group: the half would stay undecided.
            MessageRefused: when the message is delayed or cannot be sent for another reason.
            RemoteError: when the broker refuses it, perhaps because it supports no transactions.
            Unavailable: when no broker stores it safely in time. A broker that did sends
                check-backs.
        """
        return await self.transactions.send(message, group, timeout=timeout)

    async def end_half(self, half: Half, decision: Decision) -> None:
        """End a half message by COMMIT or ROLLBACK. Return when the broker has stored the decision.

        Call it once only. The bundled broker accepts a second decision, and ignores it. Apache's
        broker stores the message again with each COMMIT.

        Raises:
            UsageError: when the decision is neither COMMIT nor ROLLBACK.
            RemoteError: when the broker knows no such half.
            Unavailable: when it does not answer; the half may have ended nevertheless.
        """
        await self.transactions.end(half, decision)

    @checked(but=("handler",))
    async def consume(self, subscription: Subscription, handler: AnyHandler) -> AsyncPushConsumer:
        """Start a consumer of a consumer group and return it.

        With `broadcasting`, the consumer continues at the offsets in its file, if there is one. The
        setting `offset_folder` has a file for each `instance_name` and group.

        Args:
            subscription: which messages to read, and how.
            handler: gets 1..`batch` messages of one topic, returns one outcome for each,
                `Consumed`, `Retry` or `Reject`, or one for all; the last two may be raised. Calls
                of an `async def` run as tasks on this loop, which they must not block, those of a
                `def` in threads; `concurrency` of the subscription at once.

        Raises:
            UsageError: when the handler is no function, or this client already consumes for the
                group.
            ConfigurationError: when a broker rejects an SQL92 expression, with its text; when it
                cannot deliver by the message, and the subscription asks for that; or when another
                client with this name broadcasts to the group.
            StoreError: when a file of offsets cannot be used.
        """
        if not callable(handler):
            raise UsageError(f"the handler is of type {type(handler).__name__}, not a function")
        engine = self._engine
        group = await engine.checked_group(subscription)
        if subscription.broadcasting:
            group.local_offsets = await engine.local_offsets(group.name)
        observed = engine.hooks.around_handler(handler, subscription.group)
        kind = AsyncMessageConsumer if subscription.by_message else AsyncPushConsumer
        consumer = kind(engine, group, engine.namespace.own_handler(observed))
        try:
            engine.refuse_closing()
            engine.join(consumer)
        except UsageError:  # meanwhile the client was closed, or another consumer joined
            if group.local_offsets is not None:
                group.local_offsets.close()
            raise
        engine.consumers[group.name] = consumer
        await consumer.start()
        return consumer

    @checked()
    async def simple_consumer(self, subscription: Subscription) -> AsyncSimpleConsumer:
        """Start a consumer whose messages the application receives and acknowledges one by one.

        Args:
            subscription: which messages to read, and how. The application decides concurrency and
                batches.

        Raises:
            UsageError: when this client already consumes for the group.
            ConfigurationError: when the group broadcasts, a broker rejects an SQL92 expression, or
                it cannot deliver by the message and the subscription asks for that.
        """
        if subscription.broadcasting:
            raise ConfigurationError("a simple consumer shares queues: it cannot broadcast")
        engine = self._engine
        kind = AsyncMessageReceiver if subscription.by_message else AsyncSimpleConsumer
        consumer = kind(engine, await engine.checked_group(subscription))
        engine.join(consumer)
        engine.reader_opened(consumer)
        consumer.start()
        return consumer

    @checked()
    def pull_consumer(
        self,
        group: str,
        *,
        from_where: Literal["first", "last", "timestamp"] = "first",
        from_time_ms: int = 0,
        auto_commit: bool | None = None,
        allocation: Allocation = average,
    ) -> AsyncPullConsumer:
        """Return a consumer that the application polls for messages. It reads nothing yet.

        Args:
            group: the consumer group. Reading begins at its committed offsets.
            from_where: the start in a queue without a committed offset.
            from_time_ms: with "timestamp", milliseconds since the epoch.
            auto_commit: whether to commit handled messages every `offset_commit_seconds` and on
                closing. None: True with `subscribe`, False with `assign`.
            allocation: how members share queues with `subscribe`; all must use the same.
        """
        self._engine.refuse_closing()
        options = PullOptions(
            group=group,
            from_where=from_where,
            from_time_ms=from_time_ms,
            auto_commit=auto_commit,
            allocation=allocation,
        )
        consumer = AsyncPullConsumer(self._engine, options)
        self._engine.reader_opened(consumer)
        return consumer

    @checked(but=("queues",))
    async def create_topic(self, topic: str, queues: int = 8) -> None:
        """Create a topic at the master of every broker, or change its number of queues.

        Returns when the name server knows all the queues, so that the next send uses them.

        Args:
            topic: its name.
            queues: number of queues at each broker, for writing and reading.

        Raises:
            ConfigurationError: when the name is illegal.
            NoRoute: when no broker is known, or the name servers do not learn the topic in time.
            RemoteError, Unavailable: when a broker refuses or is away; other brokers may have it.
        """
        engine = self._engine
        whole = engine.namespace.full_name(topic)
        await engine.run(give_queues(self.admin.cluster, whole, queues))

    @checked()
    async def consumer_progress(
        self, group: str, topic: str
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Return (committed, maximum) offsets of a group in each readable queue of a topic.

        The committed offset is -1 in a queue where the group has committed nothing.

        Raises:
            NoRoute: when the name servers do not know the topic.
            RemoteError, Unavailable: when a broker does not answer the question.
        """
        names = self._engine.namespace
        flow = read_progress_of(self.admin.cluster, names.full_name(group), names.full_name(topic))
        return names.by_own_queue(await self._engine.run(flow))

    @checked()
    async def cluster_facts(
        self, groups: Sequence[str] = (), topics: Sequence[str] = ()
    ) -> ClusterFacts:
        """Return facts about name servers and brokers, as they report them.

        With a namespace, only the namespace's own topics and the brokers' topics are included.
        """
        names = self._engine.namespace
        asked = (
            [names.full_name(group) for group in groups],
            [names.full_name(topic) for topic in topics],
        )
        engine = self._engine
        flow = cluster_facts(engine.name_servers, engine.settings, *asked)
        return own_facts(names, await engine.run(flow))

    @checked()
    async def topic_route(self, topic: str) -> Route:
        """Return the route of `topic`. The name servers are asked now.

        Raises:
            NoRoute: when no name server knows the topic.
            RemoteError, Unavailable: when no name server answers the question.
        """
        engine = self._engine
        route = await engine.run(engine.routes.look_up(engine.namespace.full_name(topic)))
        return engine.namespace.own_route(route)
