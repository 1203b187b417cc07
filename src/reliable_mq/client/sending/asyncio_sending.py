"""The verbs of the asyncio face that send.

Everything that decides lives in the flows; what must not be sent too fast finds its place here.
"""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.checked import check_sending, checked
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import Middleware, Origin
from reliable_mq.client.observing.send_results import of_batch, of_many, of_nothing, of_one
from reliable_mq.client.sending.asyncio_batcher import AsyncBatcher
from reliable_mq.client.sending.asyncio_requests import AsyncRequests
from reliable_mq.client.sending.asyncio_singles import Singles
from reliable_mq.client.sending.asyncio_transactions import AsyncTransactions
from reliable_mq.client.sending.batching import Group, plan_many
from reliable_mq.client.sending.linger import Rows
from reliable_mq.client.sending.outgoing import Sign
from reliable_mq.client.sending.producer import Producer, Single
from reliable_mq.client.sending.request_reply import reply_to
from reliable_mq.client.sending.thread_in_flight import InFlight
from reliable_mq.client.sending.timed import recall
from reliable_mq.client.sending.transaction import TransactionFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, TooManyInFlight
from reliable_mq.message import Message, MessageQueue, ReceivedMessage, SendResult
from reliable_mq.message_checks import size_of
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.recall_handle import decode_recall_handle

LINGER_SECONDS = 0.005


class AsyncSending(AsyncEngine):
    """What `AsyncClient` can be asked to send."""

    def __init__(
        self,
        name_servers: str,
        settings: ClientSettings,
        middleware: Sequence[Middleware],
        sign: Sign | None = None,
    ) -> None:
        super().__init__(name_servers, settings)
        origin = Origin(
            client_id=self.client_id,
            producer_group=settings.producer_group,
            namespace=self.namespace.name,
            address_of=self._routes.master_of,
        )
        #: what calls the middleware
        self.hooks = Hooks(middleware, origin)
        settings = self.settings
        self._producer = Producer(settings, self._routes, os.urandom, sign)
        #: sends copies of what was received: they keep the signature that they came with
        self._carrier = self._producer
        if sign is not None:
            self._carrier = Producer(settings, self._routes, os.urandom)
        #: sends single messages
        self.singles = Singles(self, self._producer, self.namespace)
        flows = TransactionFlows(settings, self._routes, self._producer)
        #: half messages: sent, ended, and answered for
        self.transactions = AsyncTransactions(
            flows, self.run, self.membership.produce_everywhere, self.namespace, self.hooks
        )
        self.requests[RequestCode.CHECK_TRANSACTION_STATE] = self.transactions.asked
        be_known = partial(self.membership.produce_everywhere, settings.producer_group)
        self._asking = AsyncRequests(self.client_id, os.urandom, self.run, be_known)
        self.requests[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._asking.answered
        self._groups_in_flight = asyncio.Semaphore(settings.batches_in_flight)
        self._batchers: set[AsyncBatcher] = set()
        #: the messages that are on their way
        self.in_flight = InFlight(settings.in_flight_count_max, settings.in_flight_size_max)

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
        check_sending(timeout, queue)
        size = size_of(message)
        if not self.in_flight.take(size):
            begun = time.monotonic()
            await self.in_flight.wait(size, timeout)
            timeout -= time.monotonic() - begun
        try:
            if self.hooks.sends:
                return await self.send_unbounded(message, timeout=timeout, queue=queue)
            # Not by one more coroutine, which would cost a tenth of the message.
            return await self.singles.send(self._begin(message, timeout, queue))
        finally:
            self.in_flight.give(size)

    async def send_unbounded(
        self, message: Message, *, timeout: float, queue: MessageQueue | None
    ) -> SendResult:
        """Send a message whose caller has a place in `in_flight`, and gives it back."""
        singles = self.singles
        if not self.hooks.sends:
            return await singles.send(self._begin(message, timeout, queue))
        self._sends()

        async def send(sent: Sequence[Message]) -> SendResult:
            return await singles.send(singles.begin(sent[0], timeout, queue))

        return await self.hooks.around_send("send", (message,), send, of_one)

    def begin_for(self, message: Message, timeout: float, queue: MessageQueue | None) -> Single:
        """Begin to send a message for a thread that has a place in `in_flight`; without hooks.

        `singles` sends it. May be called by that thread.

        Raises:
            UsageError: when the client is closed, or a value is of a wrong type.
            MessageRefused: when it cannot be sent as it is.
        """
        check_sending(timeout, queue)
        return self._begin(message, timeout, queue)

    def _begin(self, message: Message, timeout: float, queue: MessageQueue | None) -> Single:
        self._sends()
        return self.singles.begin(message, timeout, queue)

    async def send_oneway(self, message: Message) -> None:
        """Send one message and ask for no answer: nobody will know whether it is stored.

        While no connection can be had it is tried again, `retries` times within `request_timeout`.

        Raises:
            MessageRefused: when the message cannot be sent as it is.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            Unavailable: when no broker can be reached. Nothing was sent.
        """
        self._sends()
        async with self._places([message], self.settings.request_timeout):
            await self.hooks.around_send(
                "send_oneway", (message,), self._send_oneway, of_nothing, posts_of=int
            )

    async def _send_oneway(self, messages: Sequence[Message]) -> int:
        whole = self.namespace.whole_message(messages[0])
        return await self.run(self._producer.send_oneway(whole))

    @checked()
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
            timeout: seconds for the wait for places and all tries together.
            queue: the queue to use; by default the ordering keys or the turn choose.

        Raises:
            MessageRefused: when they cannot be sent together, or are too large together.
            TooManyInFlight: when no places are free in time. Nothing was sent.
            RemoteError: when the broker refuses them.
            Unavailable: when no broker takes them in time. They may be stored all the same.
        """
        self._sends()
        names = self.namespace
        async with self._places(messages, timeout) as left:

            async def send(sent: Sequence[Message]) -> SendResult:
                batch, where = names.whole_messages(sent), names.whole_queue(queue)
                sending = self._producer.send_batch(batch, timeout=left, queue=where)
                return names.own_result(await self.run(sending))

            return await self.hooks.around_send("send_batch", messages, send, of_batch)

    @checked()
    async def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages of any topics in few requests, several on their way at once.

        The order of each ordering key is kept: when a message cannot be sent, later ones of its
        queue are not sent either and carry `NotSent`. Nothing is raised for a single message; its
        place in the result holds the error.
        """
        self._sends()
        return await self.hooks.around_send("send_many", messages, self._send_many, of_many)

    async def _send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        messages = self.namespace.whole_messages(messages)
        plan = await self.run(plan_many(self._producer, self._routes, self.settings, messages))
        outcomes: dict[int, SendResult | Exception] = dict(plan.failures)
        for group, results in zip(
            plan.groups, await asyncio.gather(*map(self._send_group, plan.groups)), strict=True
        ):
            outcomes.update(zip(group.positions, results, strict=True))
        return [outcomes[position] for position in range(len(messages))]

    @checked()
    def batcher(
        self,
        *,
        count: int | None = None,
        size: int | None = None,
        linger: float = LINGER_SECONDS,
    ) -> AsyncBatcher:
        """Return a batcher: single messages that are sent through it leave in few requests.

        Close it, or use it in `async with`; `close` of the client does the same.

        Args:
            count: messages in a batch at most; by default the setting `batch_count_max`.
            size: bytes in a batch at most; by default the setting `batch_size_max`.
            linger: seconds that a message waits for others.

        Raises:
            UsageError: when the client is not started, or a value is of a wrong type.
            ConfigurationError: when one of them cannot work.
        """
        self._started()
        self._sends()
        settings = self.settings
        count = settings.batch_count_max if count is None else count
        size = settings.batch_size_max if size is None else size
        if not (count >= 1 and 0 <= linger < math.inf and 0 < size <= settings.body_size_max):
            raise ConfigurationError(
                f"a batcher of {count} messages, {size} bytes, {linger} s cannot work: count and"
                f" size are positive, size is at most body_size_max ({settings.body_size_max})"
            )
        rows = Rows(
            count_max=count,
            size_max=size,
            linger=linger,
            under_way_max=settings.batches_in_flight,
            goes_alone=self._producer.goes_alone,
        )
        batcher = AsyncBatcher(
            self._producer,
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

    @checked(but=("handle",))
    async def recall(self, handle: str, *, timeout: float = 3.0) -> str:
        """Take a timed message back before its time, and return its message id.

        Args:
            handle: `recall_handle` of the result of its send.
            timeout: seconds to wait for the broker.

        Raises:
            UsageError: when `handle` is none.
            NotPermitted: when its broker takes nothing back (`recallMessageEnable=false`, which is
                what brokers do unless they are told otherwise).
            Refused: when it is too late.
            Unavailable: when the broker does not answer; the message may be taken back all the
                same, and another recall does no harm.
        """
        recalling = self.run(recall(self._routes, self.settings, handle, timeout))
        named = decode_recall_handle(handle) if isinstance(handle, str) else None
        if named is None:
            return await recalling  # it raises
        topic = self.namespace.own(named.topic)
        return await self.hooks.around_recall(topic, named.unique_key, recalling)

    @checked()
    async def request(self, message: Message, *, timeout: float = 3.0) -> ReceivedMessage:
        """Send a message and return the reply of whoever consumes it.

        The reply says nothing of where it is stored: its queue has no broker, its offset is -1.

        Args:
            message: the request; consumers get it like any other message, and answer it by `reply`.
            timeout: seconds for sending it and for the reply together.

        Raises:
            ReplyTimeout: when nobody replied in time. Somebody may have handled it all the same.
            MessageRefused, TooManyInFlight, RemoteError, Unavailable, ProtocolError: as `send`.
        """
        self._sends()

        async def send(asked: Message, left: float) -> SendResult:
            return await self.send(asked, timeout=left)

        return await self._asking.ask(message, timeout, send)

    @checked(but=("request",))
    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,
    ) -> SendResult:
        """Answer a request; returns when whoever asked has the reply.

        Args:
            request: a message that was received and is a request, of any client.
            body: the reply.
            tag: its tag.
            properties: its properties.
            timeout: seconds for all tries together.

        Raises:
            UsageError: when `request` is none.
            MessageRefused: when the reply cannot be sent as it is.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            RemoteError: when whoever asked is there no more, or did not take it.
            Unavailable: when no broker takes it in time.
        """
        self._sends()
        answer = reply_to(request, body, tag, properties or {})
        async with self._places([answer], timeout) as left:
            return await self.hooks.around_send(
                "reply",
                (answer,),
                lambda sent: self.run(self._producer.send_reply(sent[0], timeout=left)),
                of_one,
            )

    async def close_batchers(self) -> None:
        """Send what waits in batchers, and end them."""
        await asyncio.gather(*(batcher.close() for batcher in list(self._batchers)))

    def give_batchers_up(self) -> None:
        """Send nothing more that waits in batchers which could not be closed."""
        for batcher in self._batchers:
            batcher.give_up()

    async def _send_group(self, group: Group) -> list[SendResult | Exception]:
        # One batch of a group is on its way at a time: the largest is what it needs room for.
        count = max(map(len, group.batches))
        size = max(sum(len(out.message.body) for out in batch) for batch in group.batches)
        async with self._groups_in_flight:
            try:
                if not self.in_flight.take(size, count):
                    await self.in_flight.wait(size, self.settings.request_timeout, count)
            except TooManyInFlight as error:
                return [error] * len(group.positions)
            try:
                results = await self.run(self._producer.send_in_order(group.batches, group.queue))
                return self.namespace.own_results(results)
            finally:
                self.in_flight.give(size, count)

    @asynccontextmanager
    async def _places(self, messages: Sequence[Message], timeout: float) -> AsyncIterator[float]:
        """Hold places for messages that leave together; give what is left of `timeout`."""
        size, count = sum(map(size_of, messages)), len(messages)
        begun = time.monotonic()
        if not self.in_flight.take(size, count):
            await self.in_flight.wait(size, timeout, count)
        try:
            yield timeout - (time.monotonic() - begun)
        finally:
            self.in_flight.give(size, count)

    def _sends(self) -> None:
        self._refuse_closed()
        self.membership.produce(self.settings.producer_group)
