"""The asyncio face: what an application can ask of the client, verb by verb.

Everything that decides lives in the flows, and what drives them in `asyncio_engine`.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Literal, Protocol, Self

from reliable_mq.client.administering.asyncio_admin import AsyncAdmin
from reliable_mq.client.administering.cluster_facts import ClusterFacts, cluster_facts
from reliable_mq.client.administering.own_names import own_facts
from reliable_mq.client.administering.progress import come_in
from reliable_mq.client.administering.topic_changes import give_queues
from reliable_mq.client.asyncio_daemon import attempt
from reliable_mq.client.checked import checked
from reliable_mq.client.connecting.membership import Member
from reliable_mq.client.connecting.routes import Route
from reliable_mq.client.consuming.allocation import Allocation, average
from reliable_mq.client.consuming.asyncio_answers import ConsumerAnswers
from reliable_mq.client.consuming.asyncio_pull_consumer import AsyncPullConsumer, PullOptions
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.file_offsets import FileOffsets
from reliable_mq.client.consuming.filters import check_filters
from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.client.observing.middleware import Middleware
from reliable_mq.client.sending.asyncio_sending import AsyncSending
from reliable_mq.client.sending.outgoing import Sign
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, UsageError, closed
from reliable_mq.message import MessageQueue
from reliable_mq.runtime.links import Links

DEFAULT_SETTINGS = ClientSettings()


class Reader(Protocol):
    """What the client closes when it is closed."""

    async def close(self) -> None:
        """Give up what it reads."""


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
        super().__init__(name_servers, settings, middleware, sign)
        self._consumers: dict[str, AsyncPushConsumer] = {}
        self._readers: set[Reader] = set()
        self._closing: asyncio.Task[None] | None = None
        self.requests |= ConsumerAnswers(self, self._consumers.get).requests()
        self._budget = FlowBudget(settings.held_total_size_max)
        #: topics, groups, offsets, messages and dead letters looked after
        self.admin = AsyncAdmin(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def members(self) -> Collection[Member]:
        """This client's members of consumer groups."""
        return self.membership.members

    async def start(self) -> None:
        """Make the client ready; connections open when they are needed.

        Raises:
            ForkedClient: when it was made before a fork: every member of a group has its own name.
            UsageError: when it was started before, on whatever loop: each loop needs its own.
        """
        await super().start()
        await self.hooks.start(self)

    async def close(self) -> None:
        """Close consumers and batchers gracefully, leave the producer groups, end the connections.

        Handlers get the setting `close_timeout` to finish; see `AsyncPushConsumer.close`. What
        waits in a batcher is sent. In a forked process this does nothing: all is the parent's.
        Afterwards sending and consuming raise `UsageError`; a second call does nothing. Who calls
        it meanwhile waits for the same end, which comes also when who waits is cancelled.
        """
        if self.is_foreign or self._is_closed:
            return
        links = self._started()
        self._refuse_other_loop()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(links))
        await asyncio.shield(self._closing)

    async def _close(self, links: Links) -> None:
        readers = [*self._consumers.values(), *self._readers]
        try:  # what fails keeps nothing else from its end
            await asyncio.gather(*(attempt(each.close, "closing a consumer") for each in readers))
            await attempt(self.close_batchers, "closing batchers")
            await self.hooks.close(self)
            await self.stop_daemons()
            await self.transactions.close()
            await attempt(self.membership.farewell, "leaving the producer groups")
        finally:
            self._is_closed = True
            self.give_batchers_up()
            await links.close()

    @checked(but=("handler",))
    async def consume(self, subscription: Subscription, handler: AnyHandler) -> AsyncPushConsumer:
        """Begin to read for a consumer group and return the running consumer.

        With `broadcasting` this client goes on where its file of offsets says, if there is one for
        its `instance_name` and the group (`offset_folder` of the settings).

        Args:
            subscription: what is read, and how.
            handler: gets 1..`batch` messages of one topic, returns one outcome for each. Calls of
                an `async def` run as tasks on this loop, which they must not block, those of a
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
        group = await self._checked_group(subscription)
        if subscription.broadcasting:
            group.local_offsets = await self._local_offsets(group.name)
        observed = self.hooks.around_handler(handler, subscription.group)
        consumer = AsyncPushConsumer(self, group, self.namespace.own_handler(observed))
        try:
            self._refuse_closing()
            self.membership.join(consumer)
        except UsageError:  # the client was closed, or somebody has joined, meanwhile
            if group.local_offsets is not None:
                group.local_offsets.close()
            raise
        self._consumers[group.name] = consumer
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
        group = await self._checked_group(subscription)
        consumer = AsyncSimpleConsumer(self, group)
        self.membership.join(consumer)
        self._readers.add(consumer)
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
        self._refuse_closing()
        options = PullOptions(
            group=group,
            from_where=from_where,
            from_time_ms=from_time_ms,
            auto_commit=auto_commit,
            allocation=allocation,
        )
        consumer = AsyncPullConsumer(self, options)
        self._readers.add(consumer)
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
        await self.run(give_queues(self.admin.cluster, self.namespace.whole(topic), queues))

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
        names = self.namespace
        flow = come_in(self.admin.cluster, names.whole(group), names.whole(topic))
        return names.by_own_queue(await self.run(flow))

    @checked()
    async def cluster_facts(
        self, groups: Sequence[str] = (), topics: Sequence[str] = ()
    ) -> ClusterFacts:
        """Return what name servers and brokers say of themselves; see `cluster_facts`.

        With a namespace the topics are its own ones and the brokers'.
        """
        names = self.namespace
        asked = [names.whole(group) for group in groups], [names.whole(topic) for topic in topics]
        return own_facts(
            names, await self.run(cluster_facts(self._name_servers, self.settings, *asked))
        )

    @checked()
    async def topic_route(self, topic: str) -> Route:
        """Return where `topic` is, asked from the name servers now.

        Raises:
            NoRoute: when they know none.
            RemoteError, Unavailable: when none tells.
        """
        route = await self.run(self._routes.look_up(self.namespace.whole(topic)))
        return self.namespace.own_route(route)

    async def leave_group(self, group: ConsumerGroup) -> None:
        """Take a consumer that has ended out of its group at every broker it is connected to."""
        self._consumers.pop(group.name, None)
        if group.local_offsets is not None:
            group.local_offsets.close()
        await self.membership.leave(group.name)

    def reader_closed(self, reader: Reader) -> None:
        """Close a reader no more with the client."""
        self._readers.discard(reader)

    def join(self, member: Member) -> None:
        """Make a consumer a member of its group; brokers hear of it with the next heartbeat."""
        self.membership.join(member)

    def polled_group(self, subscription: Subscription, *, is_member: bool) -> ConsumerGroup:
        """Return the state of a group whose messages the application asks for."""
        return self._group(subscription, polled=True, is_member=is_member)

    def _group(
        self, subscription: Subscription, *, polled: bool = False, is_member: bool = True
    ) -> ConsumerGroup:
        return ConsumerGroup(
            self.namespace.whole_subscription(subscription),
            int(time.time() * 1000),
            self.client_id,
            settings=self.settings,
            routes=self._routes,
            producer=self._carrier,
            namespace=self.namespace,
            polled=polled,
            is_member=is_member,
            budget=self._budget,
        )

    async def _checked_group(self, subscription: Subscription) -> ConsumerGroup:
        self._refuse_closing()
        group = self._group(subscription)
        self.membership.check_free(group.name)
        await self.run(check_filters(group))
        self._refuse_closing()
        return group

    def _refuse_closing(self) -> None:
        """Let nothing begin to read that nobody would close any more."""
        self._started()
        if self._closing is not None:
            raise closed("client")

    async def _local_offsets(self, group: str) -> FileOffsets:
        opening = asyncio.create_task(asyncio.to_thread(self._offsets_of, group))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread goes on: who comes next must find them free
            opening.add_done_callback(_let_go)
            raise

    def _offsets_of(self, group: str) -> FileOffsets:
        host = self.client_id.partition("@")[0]
        return FileOffsets.of_group(group, host, self.settings)


def _let_go(opening: asyncio.Task[FileOffsets]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
