"""The engine of a client, plus everything that its verbs share.

It receives the calls of verbs, consumers and batchers, and runs their flows. It is internal: an
application uses the verbs of `asyncio_client` and `thread_client`.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from reliable_mq.client.asyncio_daemon import attempt
from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.checked import check_sending
from reliable_mq.client.connecting.membership import Member
from reliable_mq.client.consuming.asyncio_answers import ConsumerAnswers
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.file_offsets import FileOffsets
from reliable_mq.client.consuming.filters import check_filters
from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.consuming.popping import check_popping
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity, Middleware
from reliable_mq.client.observing.send_results import of_one
from reliable_mq.client.sending.asyncio_batcher import AsyncBatcher
from reliable_mq.client.sending.asyncio_requests import AsyncRequests
from reliable_mq.client.sending.asyncio_singles import SingleSends
from reliable_mq.client.sending.asyncio_transactions import AsyncTransactions
from reliable_mq.client.sending.linger import LingerQueues
from reliable_mq.client.sending.outgoing import Sign
from reliable_mq.client.sending.producer import PendingSend, SendFlows
from reliable_mq.client.sending.thread_in_flight import InFlight
from reliable_mq.client.sending.transaction import TransactionFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import closed
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.message_checks import size_of
from reliable_mq.runtime.links import Links
from reliable_mq.wire.codes import RequestCode


class ClosableReader(Protocol):
    """A consumer that the client closes when it is closed itself."""

    async def close(self) -> None:
        """Stop reading."""


class ClientEngine(AsyncEngine):
    """Sends and consumes for the clients of both kinds.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: timeouts, limits and intervals.
        middleware: sees messages that are sent and consumed.
        sign: returns a message with its signature.

    Raises:
        ConfigurationError: when `name_servers` cannot be parsed, or an object is no middleware.
    """

    def __init__(
        self,
        name_servers: str,
        settings: ClientSettings,
        middleware: Sequence[Middleware],
        sign: Sign | None = None,
    ) -> None:
        super().__init__(name_servers, settings)
        origin = ClientIdentity(
            client_id=self.client_id,
            producer_group=settings.producer_group,
            namespace=self.namespace.name,
            address_of=self._routes.master_of,
        )
        #: calls the middleware
        self.hooks = Hooks(middleware, origin)
        settings = self.settings
        #: the flows that send
        self.producer = SendFlows(settings, self._routes, os.urandom, sign)
        #: sends copies of received messages, which keep their signature
        self.carrier = self.producer
        if sign is not None:
            self.carrier = SendFlows(settings, self._routes, os.urandom)
        #: sends single messages
        self.singles = SingleSends(self, self.producer, self.namespace)
        flows = TransactionFlows(settings, self._routes, self.producer)
        #: half messages: sends, decisions and check-backs
        self.transactions = AsyncTransactions(
            flows, self.run, self.membership.produce_everywhere, self.namespace, self.hooks
        )
        self.requests[RequestCode.CHECK_TRANSACTION_STATE] = self.transactions.asked
        be_known = partial(self.membership.produce_everywhere, settings.producer_group)
        #: requests that wait for a reply
        self.asking = AsyncRequests(self.client_id, os.urandom, self.run, be_known)
        self.requests[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self.asking.answered
        #: limits the batches of `send_many` in flight
        self.groups_in_flight = asyncio.Semaphore(settings.batches_in_flight)
        #: the messages in flight
        self.in_flight = InFlight(settings.in_flight_count_max, settings.in_flight_bytes_max)
        #: the consumers with a handler, by group
        self.consumers: dict[str, AsyncPushConsumer] = {}
        self.requests |= ConsumerAnswers(self, self.consumers.get).requests()
        self._batchers: set[AsyncBatcher] = set()
        self._readers: set[ClosableReader] = set()
        self._closing: asyncio.Task[None] | None = None
        self._budget = FlowBudget(settings.held_total_bytes_max)

    @property
    def members(self) -> Collection[Member]:
        """The members of consumer groups in this client."""
        return self.membership.members

    async def start(self) -> None:
        """Make the client ready, and start the middleware."""
        await super().start()
        await self.hooks.start(self)

    async def close(self) -> None:
        """End everything; see `AsyncClient.close`."""
        if self.is_foreign or self._is_closed:
            return
        links = self._started()
        self.refuse_other_loop()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(links))
        await asyncio.shield(self._closing)

    async def _close(self, links: Links) -> None:
        readers = [*self.consumers.values(), *self._readers]
        try:  # a failure must not keep the rest open
            await asyncio.gather(*(attempt(each.close, "closing a consumer") for each in readers))
            await attempt(self._close_batchers, "closing batchers")
            await self.hooks.close(self)
            await self.stop_daemons()
            await self.transactions.close()
            await attempt(self.membership.leave_producer_groups, "leaving the producer groups")
        finally:
            self._is_closed = True
            self.abandon_batchers()
            await links.close()

    # sending

    def begin(self, message: Message, timeout: float, queue: MessageQueue | None) -> PendingSend:
        """Begin to send a message that has a place in `in_flight`. `singles` sends it."""
        self.join_producer_group()
        return self.singles.begin(message, timeout, queue)

    def begin_for(
        self, message: Message, timeout: float, queue: MessageQueue | None
    ) -> PendingSend:
        """Begin to send a message for a thread that has a place in `in_flight`; without hooks.

        `singles` sends it. That thread may call this.

        Raises:
            UsageError: when the client is closed, or a value has a wrong type.
            MessageRefused: when the message cannot be sent.
        """
        check_sending(timeout, queue)
        return self.begin(message, timeout, queue)

    async def send_unbounded(
        self, message: Message, *, timeout: float, queue: MessageQueue | None
    ) -> SendResult:
        """Send a message whose caller has a place in `in_flight`, and releases it."""
        singles = self.singles
        if not self.hooks.sends:
            return await singles.send(self.begin(message, timeout, queue))
        self.join_producer_group()

        async def send(sent: Sequence[Message]) -> SendResult:
            return await singles.send(singles.begin(sent[0], timeout, queue))

        return await self.hooks.around_send("send", (message,), send, of_one)

    @asynccontextmanager
    async def places(self, messages: Sequence[Message], timeout: float) -> AsyncIterator[float]:
        """Hold places for messages that are sent together; yield the rest of `timeout`."""
        size, count = sum(map(size_of, messages)), len(messages)
        begun = time.monotonic()
        if not self.in_flight.take_places(size, count):
            await self.in_flight.wait(size, timeout, count)
        try:
            yield timeout - (time.monotonic() - begun)
        finally:
            self.in_flight.release_places(size, count)

    def refuse_unstarted(self) -> None:
        """Refuse to begin before the start.

        Raises:
            UsageError: when the client is not started.
        """
        self._started()

    def open_batcher(self, rows: LingerQueues) -> AsyncBatcher:
        """Return a batcher that is closed together with the client."""
        batcher = AsyncBatcher(
            self.producer,
            self._routes,
            self.run,
            self.in_flight,
            rows,
            self.namespace,
            self._batchers.discard,
            self.hooks,
        )
        self._batchers.add(batcher)
        return batcher

    async def _close_batchers(self) -> None:
        """Send the waiting messages of batchers, and close these."""
        await asyncio.gather(*(batcher.close() for batcher in list(self._batchers)))

    def abandon_batchers(self) -> None:
        """Drop the waiting messages of batchers that could not be closed."""
        for batcher in self._batchers:
            batcher.give_up()

    # consuming

    def refuse_closing(self) -> None:
        """Refuse to open anything that `close` would miss.

        Raises:
            UsageError: when the client is not started, or is closing.
        """
        self._started()
        if self._closing is not None:
            raise closed("client")

    async def checked_group(self, subscription: Subscription) -> ConsumerGroup:
        """Return the state of a group that this client has not joined. Brokers check its filter."""
        self.refuse_closing()
        group = self._group(subscription)
        self.membership.check_free(group.name)
        await self.run(check_filters(group))
        if subscription.by_message:
            await self.run(check_popping(group))
        self.refuse_closing()
        return group

    def polled_group(self, subscription: Subscription, *, is_member: bool) -> ConsumerGroup:
        """Return the state of a group whose consumer the application polls."""
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
            producer=self.carrier,
            namespace=self.namespace,
            polled=polled,
            is_member=is_member,
            budget=self._budget,
        )

    def join(self, member: Member) -> None:
        """Add a consumer to its group. Brokers learn of it with the next heartbeat."""
        self.membership.join(member)

    async def leave_group(self, group: ConsumerGroup) -> None:
        """Unregister an ended consumer from its group at every connected broker."""
        self.consumers.pop(group.name, None)
        if group.local_offsets is not None:
            group.local_offsets.close()
        await self.membership.leave(group.name)

    def reader_opened(self, reader: ClosableReader) -> None:
        """Close this reader together with the client from now on."""
        self._readers.add(reader)

    def reader_closed(self, reader: ClosableReader) -> None:
        """Forget a reader that is closed already."""
        self._readers.discard(reader)

    async def local_offsets(self, group: str) -> FileOffsets:
        """Open the file of a broadcasting group's offsets, in a thread."""
        opening = asyncio.create_task(asyncio.to_thread(self._offsets_of, group))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread continues: the file must be released
            opening.add_done_callback(_let_go)
            raise

    def _offsets_of(self, group: str) -> FileOffsets:
        host = self.client_id.partition("@")[0]
        return FileOffsets.of_group(group, host, self.settings)


def _let_go(opening: asyncio.Task[FileOffsets]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
