"""The asyncio face: what an application can ask of the client, verb by verb.

Everything that decides lives in the flows; what drives them, and what the verbs share, is in
`asyncio_client_engine`.
"""

from collections.abc import Sequence
from typing import Literal, Self

from reliable_mq.client.administering.asyncio_admin import AsyncAdmin
from reliable_mq.client.administering.cluster_facts import ClusterFacts, cluster_facts
from reliable_mq.client.administering.own_names import own_facts
from reliable_mq.client.administering.progress import come_in
from reliable_mq.client.administering.topic_changes import give_queues
from reliable_mq.client.asyncio_client_engine import ClientEngine
from reliable_mq.client.checked import checked
from reliable_mq.client.connecting.routes import Route
from reliable_mq.client.consuming.allocation import Allocation, average
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
    """Sends and consumes on one event loop; everything in it shares its connections.

    Use it as `async with AsyncClient(...) as client`, or call `start` and `close`. Every verb
    raises `UsageError` before `start` and after `close`, and `ForkedClient` in a forked process.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: time-outs, limits and intervals.
        middleware: sees what is sent and consumed, see `Middleware`.
        sign: returns a message with its signature. It comes behind the middleware. A message that
            it fails for is refused (`MessageRefused`).

    Raises:
        ConfigurationError: when `name_servers` does not read, or a middleware is none.
    """

    def __init__(
        self,
        name_servers: str,
        *,
        settings: ClientSettings = DEFAULT_SETTINGS,
        middleware: Sequence[Middleware] = (),
        sign: Sign | None = None,
    ) -> None:
        self._stand_on(ClientEngine(name_servers, settings, middleware, sign))

    def _stand_on(self, engine: ClientEngine) -> None:
        self._engine = engine
        #: half messages: the verbs below, several at once, and without waiting for an answer
        self.transactions = engine.transactions
        #: topics, groups, offsets, messages and dead letters looked after
        self.admin = AsyncAdmin(engine)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._engine.client_id

    async def start(self) -> None:
        """Make the client ready; connections open when they are needed.

        Raises:
            ForkedClient: when it was made before a fork: every member of a group has its own name.
            UsageError: when it was started before, on whatever loop: each loop needs its own.
        """
        await self._engine.start()

    async def close(self) -> None:
        """Close consumers and batchers gracefully, leave the producer groups, end the connections.

        Handlers get the setting `close_timeout` to finish; see `AsyncPushConsumer.close`. What
        waits in a batcher is sent. In a forked process this does nothing: all is the parent's.
        Afterwards sending and consuming raise `UsageError`; a second call does nothing. Who calls
        it meanwhile waits for the same end, which comes also when who waits is cancelled.
        """
        await self._engine.close()

    async def join_transactions(self, group: str, check: Answerer) -> None:
        """Answer for the half messages of a producer group, whoever of it sent them.

        Brokers that cannot be told now are told by a later heartbeat.

        Args:
            group: the producer group.
            check: says what became of a half: an `async def`, which runs on this loop.

        Raises:
            ConfigurationError: when the group's name is illegal.
        """
        await self.transactions.join(group, check)

    async def send_half(self, message: Message, group: str, *, timeout: float = 3.0) -> Half:
        """Send a half message of a group that was joined: it is stored and not visible yet.

        Args:
            message: without a delay.
            group: the producer group.
            timeout: seconds for all tries together.

        Raises:
            UsageError: when nobody here answers for the group: the half would hang.
            MessageRefused: when the message cannot be sent as it is, or is delayed.
            RemoteError: when the broker refuses it; it may take no halves at all.
            Unavailable: when no broker stores it safely in time. One that did is asking for it.
        """
        return await self.transactions.send(message, group, timeout=timeout)

    async def end_half(self, half: Half, decision: Decision) -> None:
        """End a half by COMMIT or ROLLBACK, and wait until the broker has that stored.

        Once only: the bundled broker answers another end as if it counted, too, and does nothing;
        Apache's stores the message with each COMMIT.

        Raises:
            UsageError: when the decision is none.
            RemoteError: when the broker knows no such half.
            Unavailable: when it does not answer; the half may have ended all the same.
        """
        await self.transactions.end(half, decision)

    @checked(but=("handler",))
    async def consume(self, subscription: Subscription, handler: AnyHandler) -> AsyncPushConsumer:
        """Begin to read for a consumer group and return the running consumer.

        With `broadcasting` this client goes on where its file of offsets says, if there is one for
        its `instance_name` and the group (`offset_folder` of the settings).

        Args:
            subscription: what is read, and how.
            handler: gets 1..`batch` messages of one topic, returns one outcome for each,
                `Consumed`, `Retry` or `Reject`, or one for all; the last two may be raised. Calls
                of an `async def` run as tasks on this loop, which they must not block, those of a
                `def` in threads; `concurrency` of the subscription at once.

        Raises:
            UsageError: when the handler is no function, or this client consumes for the group
                already.
            ConfigurationError: when a broker cannot filter by an SQL92 expression, with its words;
                or when another client of this name broadcasts to the group.
            StoreError: when a file of offsets cannot be used.
        """
        if not callable(handler):
            raise UsageError(f"the handler is of type {type(handler).__name__}, no function")
        engine = self._engine
        group = await engine.checked_group(subscription)
        if subscription.broadcasting:
            group.local_offsets = await engine.local_offsets(group.name)
        observed = engine.hooks.around_handler(handler, subscription.group)
        consumer = AsyncPushConsumer(engine, group, engine.namespace.own_handler(observed))
        try:
            engine.refuse_closing()
            engine.join(consumer)
        except UsageError:  # the client was closed, or somebody has joined, meanwhile
            if group.local_offsets is not None:
                group.local_offsets.close()
            raise
        engine.consumers[group.name] = consumer
        await consumer.start()
        return consumer

    @checked()
    async def simple_consumer(self, subscription: Subscription) -> AsyncSimpleConsumer:
        """Begin to read for a consumer group whose messages are received and acknowledged singly.

        Args:
            subscription: what is read, and how; hands and batches are the application's.

        Raises:
            UsageError: when this client consumes for the group already.
            ConfigurationError: when the group broadcasts, or a broker cannot filter by an SQL92
                expression.
        """
        if subscription.broadcasting:
            raise ConfigurationError("a simple consumer shares queues: it cannot broadcast")
        engine = self._engine
        consumer = AsyncSimpleConsumer(engine, await engine.checked_group(subscription))
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
        """Return a consumer that is asked for messages, and reads nothing yet.

        Args:
            group: the consumer group, whose committed offsets say where reading begins.
            from_where: where it begins in a queue in which the group has committed nothing.
            from_time_ms: with "timestamp", milliseconds since the epoch.
            auto_commit: whether what is handled is committed every `offset_commit_seconds` and on
                closing; None: with `subscribe`, and not with `assign`.
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
        """Create a topic at the master of every broker, or give it so many queues.

        Returns when the name server tells of all of them, so that the next send uses them.

        Args:
            topic: its name.
            queues: how many at each broker, to write and to read.

        Raises:
            ConfigurationError: when the name is illegal.
            NoRoute: when no broker is known, or the name servers do not hear of the topic in time.
            RemoteError, Unavailable: when a broker refuses or is away; others may have it.
        """
        engine = self._engine
        whole = engine.namespace.whole(topic)
        await engine.run(give_queues(self.admin.cluster, whole, queues))

    @checked()
    async def consumer_progress(
        self, group: str, topic: str
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Return (committed, maximum) offsets of a group in each readable queue of a topic.

        A group that has committed nothing in a queue has the committed offset -1.

        Raises:
            NoRoute: when the name servers do not know the topic.
            RemoteError, Unavailable: when a broker does not tell.
        """
        names = self._engine.namespace
        flow = come_in(self.admin.cluster, names.whole(group), names.whole(topic))
        return names.by_own_queue(await self._engine.run(flow))

    @checked()
    async def cluster_facts(
        self, groups: Sequence[str] = (), topics: Sequence[str] = ()
    ) -> ClusterFacts:
        """Return what name servers and brokers say of themselves.

        With a namespace the topics are its own ones and the brokers'.
        """
        names = self._engine.namespace
        asked = [names.whole(group) for group in groups], [names.whole(topic) for topic in topics]
        engine = self._engine
        flow = cluster_facts(engine.name_servers, engine.settings, *asked)
        return own_facts(names, await engine.run(flow))

    @checked()
    async def topic_route(self, topic: str) -> Route:
        """Return where `topic` is, asked from the name servers now.

        Raises:
            NoRoute: when they know none.
            RemoteError, Unavailable: when none tells.
        """
        engine = self._engine
        route = await engine.run(engine.routes.look_up(engine.namespace.whole(topic)))
        return engine.namespace.own_route(route)
