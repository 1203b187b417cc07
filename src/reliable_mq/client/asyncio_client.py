"""The asyncio face: what an application can ask of the client, verb by verb.

Everything that decides lives in the flows, and what drives them in `asyncio_engine`.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Literal, Protocol, Self, TypeVar

from reliable_mq.client.administering import admin
from reliable_mq.client.administering.asyncio_admin import AsyncAdmin
from reliable_mq.client.administering.cluster_facts import ClusterFacts, cluster_facts
from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.connecting.membership import Member
from reliable_mq.client.connecting.routes import Route
from reliable_mq.client.consuming.allocation import Allocation, average
from reliable_mq.client.consuming.asyncio_answers import ConsumerAnswers
from reliable_mq.client.consuming.asyncio_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.asyncio_pulling import AsyncPullConsumer, PullOptions
from reliable_mq.client.consuming.asyncio_sharing import AsyncSimpleConsumer
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.file_offsets import FileOffsets
from reliable_mq.client.consuming.filters import check_filters
from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.client.sending.asyncio_transactions import AsyncTransactions
from reliable_mq.client.sending.batching import Group, plan_many
from reliable_mq.client.sending.producer import Producer
from reliable_mq.client.sending.thread_in_flight import InFlight
from reliable_mq.client.sending.transaction import TransactionFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.wire.codes import RequestCode

T = TypeVar("T")

DEFAULT_SETTINGS = ClientSettings()


class Reader(Protocol):
    """What the client closes when it is closed."""

    async def close(self) -> None:
        """Give up what it reads."""


class AsyncClient(AsyncEngine):
    """Sends and consumes on one event loop; everything in it shares its connections.

    Use it as `async with AsyncClient(...) as client`, or call `start` and `close`. Every verb
    raises `UsageError` before `start`, and `ForkedClient` in a forked process.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: time-outs, limits and intervals.

    Raises:
        ConfigurationError: when `name_servers` does not read.
    """

    def __init__(self, name_servers: str, *, settings: ClientSettings = DEFAULT_SETTINGS) -> None:
        super().__init__(name_servers, settings)
        self._producer = Producer(settings, self._routes, os.urandom)
        flows = TransactionFlows(settings, self._routes, self._producer, os.urandom)
        #: half messages: sent, ended, and answered for
        self.transactions = AsyncTransactions(
            flows, self.run, self.membership.produce_everywhere, self.namespace
        )
        self.requests[RequestCode.CHECK_TRANSACTION_STATE] = self.transactions.asked
        self._consumers: dict[str, AsyncPushConsumer] = {}
        self._readers: set[Reader] = set()
        self.requests |= ConsumerAnswers(self, self._consumers.get).requests()
        self._budget = FlowBudget(settings.held_total_size_max)
        self._groups_in_flight = asyncio.Semaphore(settings.batches_in_flight)
        #: topics, groups, offsets, messages and dead letters looked after
        self.admin = AsyncAdmin(self)
        #: the messages of `send` that are on their way
        self.in_flight = InFlight(settings.in_flight_count_max, settings.in_flight_size_max)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the consumers gracefully, leave the producer groups, end the connections.

        Handlers get the setting `close_timeout` to finish; see `AsyncPushConsumer.close`. In a
        forked process this does nothing: all of it is the parent's.
        """
        if self.is_foreign:
            return
        links = self._started()
        readers = [*self._consumers.values(), *self._readers]
        await asyncio.gather(*(reader.close() for reader in readers))
        await self.stop_daemons()
        await self.transactions.close()
        await self.membership.farewell()
        await links.close()

    async def send(
        self, message: Message, *, timeout: float = 3.0, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send one message and return where it is stored.

        It waits for a place while `in_flight_count_max` messages are on their way, or
        `in_flight_size_max` bytes of bodies.

        Args:
            message: what to send.
            timeout: seconds for the wait and all tries together.
            queue: the queue to use; by default the ordering key or the turn chooses.

        Raises:
            MessageRefused: when the message cannot be sent as it is. Nothing was sent.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            RemoteError: when the broker refuses it; `retryable` of the class says what to do.
            Unavailable: when no broker takes it in time. It may be stored all the same.
            ProtocolError: when the answer does not read. It may be stored all the same.
        """
        size = size_of(message)
        if not self.in_flight.take(size):
            begun = time.monotonic()
            await self.in_flight.wait(size, timeout)
            timeout -= time.monotonic() - begun
        try:
            return await self.send_unbounded(message, timeout=timeout, queue=queue)
        finally:
            self.in_flight.give(size)

    async def send_unbounded(
        self, message: Message, *, timeout: float, queue: MessageQueue | None
    ) -> SendResult:
        """Send a message whose caller has a place in `in_flight`, and gives it back."""
        self._sends()
        names = self.namespace
        message, queue = names.whole_message(message), names.whole_queue(queue)
        return names.own_result(
            await self.run(self._producer.send(message, timeout=timeout, queue=queue))
        )

    async def send_oneway(self, message: Message) -> None:
        """Send one message and ask for no answer: nobody will know whether it is stored.

        Raises:
            MessageRefused: when the message cannot be sent as it is.
            Unavailable: when no broker can be reached.
        """
        self._sends()
        await self.run(self._producer.send_oneway(self.namespace.whole_message(message)))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue in one request, all or none.

        The result is the first message's; its ids are those of all, joined by commas.

        Args:
            messages: of one topic, without delays; with ordering keys of one queue.
            timeout: seconds for all tries together.
            queue: the queue to use; by default the ordering keys or the turn choose.

        Raises:
            MessageRefused: when they cannot be sent together, or are too large together.
            RemoteError: when the broker refuses them.
            Unavailable: when no broker takes them in time. They may be stored all the same.
        """
        self._sends()
        names = self.namespace
        messages, queue = names.whole_messages(messages), names.whole_queue(queue)
        return names.own_result(
            await self.run(self._producer.send_batch(messages, timeout=timeout, queue=queue))
        )

    async def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages of any topics in few requests, several on their way at once.

        The order of each ordering key is kept: when a message cannot be sent, later ones of its
        queue are not sent either and carry `NotSent`. Nothing is raised for a single message; its
        place in the result holds the error.
        """
        self._sends()
        messages = self.namespace.whole_messages(messages)
        plan = await self.run(plan_many(self._producer, self._routes, self.settings, messages))
        outcomes: dict[int, SendResult | Exception] = dict(plan.failures)
        for group, results in zip(
            plan.groups, await asyncio.gather(*map(self._send_group, plan.groups)), strict=True
        ):
            outcomes.update(zip(group.positions, results, strict=True))
        return [outcomes[position] for position in range(len(messages))]

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
            UsageError: when this client consumes for the group already.
            ConfigurationError: when a broker cannot filter by an SQL92 expression, with its words;
                or when another client of this name broadcasts to the group.
            StoreError: when a file of offsets cannot be used.
        """
        group = await self._checked_group(subscription)
        if subscription.broadcasting:
            group.local_offsets = await asyncio.to_thread(self._offsets_of, group.name)
        consumer = AsyncPushConsumer(self, group, self.namespace.own_handler(handler))
        self.membership.join(consumer)
        self._consumers[group.name] = consumer
        await consumer.start()
        return consumer

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
        self._started()
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
        topic = self.namespace.whole(topic)
        flow = admin.create_topic(self._name_servers, self._routes, self.settings, topic, queues)
        await self.run(flow)

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
        flow = admin.consumer_progress(
            self._routes, self.settings, names.whole(group), names.whole(topic)
        )
        return names.by_own_queue(await self.run(flow))

    async def cluster_facts(self, groups: Sequence[str] = ()) -> ClusterFacts:
        """Return what name servers and brokers say of themselves; see `cluster_facts`."""
        return await self.run(cluster_facts(self._name_servers, self.settings, groups))

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
            producer=self._producer,
            namespace=self.namespace,
            polled=polled,
            is_member=is_member,
            budget=self._budget,
        )

    async def _checked_group(self, subscription: Subscription) -> ConsumerGroup:
        self._started()
        group = self._group(subscription)
        self.membership.check_free(group.name)
        await self.run(check_filters(group))
        return group

    def _offsets_of(self, group: str) -> FileOffsets:
        host = self.client_id.partition("@")[0]
        return FileOffsets.of_group(group, host, self.settings)

    async def _send_group(self, group: Group) -> list[SendResult | Exception]:
        async with self._groups_in_flight:
            results = await self.run(self._producer.send_in_order(group.batches, group.queue))
        return self.namespace.own_results(results)

    def _sends(self) -> None:
        self.membership.produce(self.settings.producer_group)


def size_of(message: Message) -> int:
    """Return how much room a message takes; what is no message is refused later, with reasons."""
    body: object = message.body
    return len(body) if isinstance(body, bytes | bytearray | memoryview) else 0
