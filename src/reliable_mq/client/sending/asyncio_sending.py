"""The verbs of the asyncio face that send.

Everything that decides lives in the flows; what they share is the engine's. Refuses to be one more
coroutine between a message and its connection.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence

from reliable_mq.client.asyncio_client_engine import ClientEngine
from reliable_mq.client.checked import check_sending, checked
from reliable_mq.client.observing.send_results import of_batch, of_many, of_nothing, of_one
from reliable_mq.client.sending.asyncio_batcher import AsyncBatcher
from reliable_mq.client.sending.batching import QueueBatches, plan_many
from reliable_mq.client.sending.linger import LingerQueues
from reliable_mq.client.sending.request_reply import reply_to
from reliable_mq.client.sending.timed import recall
from reliable_mq.errors import ConfigurationError, TooManyInFlight
from reliable_mq.message import Message, MessageQueue, ReceivedMessage, SendResult
from reliable_mq.message_checks import size_of
from reliable_mq.wire.recall_handle import decode_recall_handle

LINGER_SECONDS = 0.005


class AsyncSending:
    """What `AsyncClient` can be asked to send."""

    _engine: ClientEngine

    async def send(
        self, message: Message, *, timeout: float = 3.0, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send one message and return where it is stored.

        It waits for a place while `in_flight_count_max` messages are on their way, or
        `in_flight_bytes_max` bytes of bodies.

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
        engine = self._engine
        check_sending(timeout, queue)
        size = size_of(message)
        if not engine.in_flight.take(size):
            begun = time.monotonic()
            await engine.in_flight.wait(size, timeout)
            timeout -= time.monotonic() - begun
        try:
            if engine.hooks.sends:
                return await engine.send_unbounded(message, timeout=timeout, queue=queue)
            # Not by one more coroutine, which would cost a tenth of the message.
            return await engine.singles.send(engine.begin(message, timeout, queue))
        finally:
            engine.in_flight.give(size)

    async def send_oneway(self, message: Message) -> None:
        """Send one message and ask for no answer: nobody will know whether it is stored.

        While no connection can be had it is tried again, `retries` times within
        `request_timeout_seconds`.

        Raises:
            MessageRefused: when the message cannot be sent as it is.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            Unavailable: when no broker can be reached. Nothing was sent.
        """
        engine = self._engine
        engine.be_producer()
        async with engine.places([message], engine.settings.request_timeout_seconds):
            await engine.hooks.around_send(
                "send_oneway", (message,), self._send_oneway, of_nothing, posts_of=int
            )

    async def _send_oneway(self, messages: Sequence[Message]) -> int:
        engine = self._engine
        whole = engine.namespace.whole_message(messages[0])
        return await engine.run(engine.producer.send_oneway(whole))

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
        engine = self._engine
        engine.be_producer()
        names = engine.namespace
        async with engine.places(messages, timeout) as left:

            async def send(sent: Sequence[Message]) -> SendResult:
                batch, where = names.whole_messages(sent), names.whole_queue(queue)
                sending = engine.producer.send_batch(batch, timeout=left, queue=where)
                return names.own_result(await engine.run(sending))

            return await engine.hooks.around_send("send_batch", messages, send, of_batch)

    @checked()
    async def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages of any topics in few requests, several on their way at once.

        The order of each ordering key is kept: when a message cannot be sent, later ones of its
        queue are not sent either and carry `NotSent`. Nothing is raised for a single message; its
        place in the result holds the error.
        """
        engine = self._engine
        engine.be_producer()
        return await engine.hooks.around_send("send_many", messages, self._send_many, of_many)

    async def _send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        engine = self._engine
        messages = engine.namespace.whole_messages(messages)
        plan = await engine.run(
            plan_many(engine.producer, engine.routes, engine.settings, messages)
        )
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
            size: bytes in a batch at most; by default the setting `batch_bytes_max`.
            linger: seconds that a message waits for others.

        Raises:
            UsageError: when the client is not started, or a value is of a wrong type.
            ConfigurationError: when one of them cannot work.
        """
        engine = self._engine
        engine.refuse_unstarted()
        engine.be_producer()
        settings = engine.settings
        count = settings.batch_count_max if count is None else count
        size = settings.batch_bytes_max if size is None else size
        if not (count >= 1 and 0 <= linger < math.inf and 0 < size <= settings.body_bytes_max):
            raise ConfigurationError(
                f"a batcher of {count} messages, {size} bytes, {linger} s cannot work: count and"
                f" size are positive, size is at most body_bytes_max ({settings.body_bytes_max})"
            )
        rows = LingerQueues(
            count_max=count,
            size_max=size,
            linger=linger,
            under_way_max=settings.batches_in_flight,
            goes_alone=engine.producer.goes_alone,
        )
        return engine.open_batcher(rows)

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
        engine = self._engine
        recalling = engine.run(recall(engine.routes, engine.settings, handle, timeout))
        named = decode_recall_handle(handle) if isinstance(handle, str) else None
        if named is None:
            return await recalling  # it raises
        topic = engine.namespace.own(named.topic)
        return await engine.hooks.around_recall(topic, named.unique_key, recalling)

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
        engine = self._engine
        engine.be_producer()

        async def send(asked: Message, left: float) -> SendResult:
            return await self.send(asked, timeout=left)

        return await engine.asking.ask(message, timeout, send)

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
        engine = self._engine
        engine.be_producer()
        answer = reply_to(request, body, tag, properties or {})
        async with engine.places([answer], timeout) as left:
            return await engine.hooks.around_send(
                "reply",
                (answer,),
                lambda sent: engine.run(engine.producer.send_reply(sent[0], timeout=left)),
                of_one,
            )

    async def _send_group(self, group: QueueBatches) -> list[SendResult | Exception]:
        engine = self._engine
        # One batch of a group is on its way at a time: the largest is what it needs room for.
        count = max(map(len, group.batches))
        size = max(sum(len(out.message.body) for out in batch) for batch in group.batches)
        async with engine.groups_in_flight:
            try:
                if not engine.in_flight.take(size, count):
                    await engine.in_flight.wait(
                        size, engine.settings.request_timeout_seconds, count
                    )
            except TooManyInFlight as error:
                return [error] * len(group.positions)
            try:
                results = await engine.run(
                    engine.producer.send_in_order(group.batches, group.queue)
                )
                return engine.namespace.own_results(results)
            finally:
                engine.in_flight.give(size, count)


def engine_of(client: AsyncSending) -> ClientEngine:
    """Return what a client stands on, for code that is part of the framework."""
    return client._engine
