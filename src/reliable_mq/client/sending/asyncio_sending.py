"""The asyncio client's verbs for sending.

Flows hold all logic; the engine holds what verbs share. These verbs add no coroutine between a
message and its connection, for speed.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Never

from reliable_mq.client.asyncio_client_engine import ClientEngine
from reliable_mq.client.checked import check_sending, check_value, checked
from reliable_mq.client.observing.send_results import of_batch, of_many, of_nothing, of_one
from reliable_mq.client.sending.asyncio_batcher import AsyncBatcher
from reliable_mq.client.sending.batching import QueueBatches, plan_many
from reliable_mq.client.sending.linger import LingerQueues
from reliable_mq.client.sending.request_reply import reply_to
from reliable_mq.client.sending.timed import recall
from reliable_mq.errors import ConfigurationError, ReliableMQError, TooManyInFlight
from reliable_mq.message import Message, MessageQueue, ReceivedMessage, SendResult
from reliable_mq.message_checks import size_of
from reliable_mq.misspelt import check_names
from reliable_mq.wire.recall_handle import decode_recall_handle

LINGER_SECONDS = 0.005
SEND_OPTIONS = ("message", "timeout", "queue")
"""What `send` takes."""


class AsyncSending:
    """The verbs of `AsyncClient` for sending."""

    _engine: ClientEngine

    async def send(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        **misspelt: Never,
    ) -> SendResult:
        """Send one message and return where it is stored.

        Backpressure: it waits for a place while `in_flight_count_max` messages, or
        `in_flight_bytes_max` bytes of bodies, are in flight.

        Args:
            message: the message to send.
            timeout: seconds for the wait and all attempts together.
            queue: the queue to use; by default by ordering key, or else round-robin.

        Raises:
            MessageRefused: when the message cannot be sent. Nothing was sent.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            RemoteError: when the broker refuses it; see `retryable` of its class.
            Unavailable: when no broker accepts it in time. It may be stored nevertheless.
            ProtocolError: when the answer cannot be decoded. It may be stored nevertheless.
        """
        if misspelt:
            check_names("send()", misspelt, SEND_OPTIONS)
        engine = self._engine
        check_sending(timeout, queue)
        size = size_of(message)
        if not engine.in_flight.take_places(size):
            begun = time.monotonic()
            await engine.in_flight.wait(size, timeout)
            timeout -= time.monotonic() - begun
        try:
            if engine.hooks.sends:
                return await engine.send_unbounded(message, timeout=timeout, queue=queue)
            # One more coroutine would add a tenth to the cost of a message.
            return await engine.singles.send(engine.begin(message, timeout, queue))
        finally:
            engine.in_flight.release_places(size)

    async def send_oneway(self, message: Message) -> None:
        """Send one message without asking for an answer: it stays unknown whether it is stored.

        Without a connection, the send is repeated up to `retries` times, within
        `request_timeout_seconds`.

        Raises:
            MessageRefused: when the message cannot be sent.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            Unavailable: when no broker can be reached. Nothing was sent.
        """
        engine = self._engine
        engine.join_producer_group()
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

        The result is that of the first message. Its ids are those of all messages, joined by
        commas.

        Args:
            messages: messages of one topic, without delays; ordering keys must select one queue.
            timeout: seconds for the wait for places and all attempts together.
            queue: the queue to use; by default by ordering key, or else round-robin.

        Raises:
            MessageRefused: when they cannot be sent together, or are too large together.
            TooManyInFlight: when no places are free in time. Nothing was sent.
            RemoteError: when the broker refuses them.
            Unavailable: when no broker accepts them in time. They may be stored nevertheless.
        """
        engine = self._engine
        engine.join_producer_group()
        names = engine.namespace
        async with engine.places(messages, timeout) as left:

            async def send(sent: Sequence[Message]) -> SendResult:
                batch, where = names.whole_messages(sent), names.whole_queue(queue)
                sending = engine.producer.send_batch(batch, timeout=left, queue=where)
                return names.own_result(await engine.run(sending))

            return await engine.hooks.around_send("send_batch", messages, send, of_batch)

    async def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages of any topics in few requests, several in flight at the same time.

        The order of each ordering key is kept: if a message cannot be sent, later messages for its
        queue are not sent, and their result is `NotSent`. An error of a message is not raised: it
        is in the message's position of the result.
        """
        engine = self._engine
        if messages.__class__ is not list:
            check_value("messages", messages, Sequence[Message])
        engine.join_producer_group()
        if engine.hooks.sends:
            return await engine.hooks.around_send("send_many", messages, self._send_many, of_many)
        return await self._send_many([*messages])

    async def _send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        engine = self._engine
        if len(messages) == 1:
            return [await self._send_alone(messages[0])]
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
        """Return a batcher: it sends single messages together, in few requests.

        Close it, or use it in `async with`; `close` of the client closes it too.

        Args:
            count: maximum messages in a batch; by default the setting `batch_count_max`.
            size: maximum bytes in a batch; by default the setting `batch_bytes_max`.
            linger: seconds that a message waits for others.

        Raises:
            UsageError: when the client is not started, or a value has a wrong type.
            ConfigurationError: when a value is invalid.
        """
        engine = self._engine
        engine.refuse_unstarted()
        engine.join_producer_group()
        settings = engine.settings
        count = settings.batch_count_max if count is None else count
        size = settings.batch_bytes_max if size is None else size
        if not (count >= 1 and 0 <= linger < math.inf and 0 < size <= settings.body_bytes_max):
            raise ConfigurationError(
                f"a batcher of {count} messages, {size} bytes, {linger} s: count and size must be "
                f"positive, size at most body_bytes_max ({settings.body_bytes_max}), and linger "
                "not negative"
            )
        rows = LingerQueues(
            count_max=count,
            size_max=size,
            linger=linger,
            under_way_max=settings.batches_in_flight,
            is_sent_alone=engine.producer.is_sent_alone,
        )
        return engine.open_batcher(rows)

    @checked(but=("handle",))
    async def recall(self, handle: str, *, timeout: float = 3.0) -> str:
        """Cancel a timed message before its time, and return its message id.

        Args:
            handle: `recall_handle` of the result of its send.
            timeout: seconds to wait for the broker.

        Raises:
            UsageError: when `handle` is not a recall handle.
            NotPermitted: when the broker allows no recall (`recallMessageEnable=false`, the default
                of brokers).
            Refused: when it is too late.
            Unavailable: when the broker does not answer. The recall may have worked nevertheless; a
                second recall does no harm.
        """
        engine = self._engine
        recalling = engine.run(recall(engine.routes, engine.settings, handle, timeout))
        named = decode_recall_handle(handle) if isinstance(handle, str) else None
        if named is None:
            return await recalling  # raises its error
        topic = engine.namespace.own_name(named.topic)
        return await engine.hooks.around_recall(topic, named.unique_key, recalling)

    @checked()
    async def request(self, message: Message, *, timeout: float = 3.0) -> ReceivedMessage:
        """Send a message and return the reply of the client that consumes it.

        The reply has no place of storage: its queue has no broker, and its offset is -1.

        Args:
            message: the request; consumers get it like any other message, and answer with `reply`.
            timeout: seconds for sending it and for the reply together.

        Raises:
            ReplyTimeout: when no reply arrives in time. A consumer may have handled it
                nevertheless.
            MessageRefused, TooManyInFlight, RemoteError, Unavailable, ProtocolError: as `send`.
        """
        engine = self._engine
        engine.join_producer_group()

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
        """Answer a request. Returns when the requesting client has the reply.

        Args:
            request: a received message that is a request, of any client.
            body: the reply.
            tag: the reply's tag.
            properties: the reply's properties.
            timeout: seconds for all attempts together.

        Raises:
            UsageError: when `request` is not a request.
            MessageRefused: when the reply cannot be sent.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            RemoteError: when the requesting client is gone, or did not accept the reply.
            Unavailable: when no broker accepts the reply in time.
        """
        engine = self._engine
        engine.join_producer_group()
        answer = reply_to(request, body, tag, properties or {})
        async with engine.places([answer], timeout) as left:
            return await engine.hooks.around_send(
                "reply",
                (answer,),
                lambda sent: engine.run(engine.producer.send_reply(sent[0], timeout=left)),
                of_one,
            )

    async def _send_alone(self, message: Message) -> SendResult | Exception:
        """Send the only message of a `send_many`, which needs no plan."""
        engine = self._engine
        engine.refuse_other_loop()
        timeout = engine.settings.request_timeout_seconds
        async with engine.groups_in_flight:
            try:
                single = engine.singles.begin(message, timeout, None)
                if single.aim is None:  # without a route it fails at once, as in a plan
                    await engine.run(engine.routes.to_send(single.out.message.topic))
                size = len(single.out.message.body)
                has_place = engine.in_flight.take_places(size)
                if not has_place:
                    await engine.in_flight.wait(size, timeout)
                try:
                    if not has_place or single.aim is None:  # time has passed
                        single = engine.singles.begin(message, timeout, None)
                    return await engine.singles.send(single, waits_busily=False)
                finally:
                    engine.in_flight.release_places(size)
            except ReliableMQError as error:
                return error

    async def _send_group(self, group: QueueBatches) -> list[SendResult | Exception]:
        engine = self._engine
        # Only one batch of a group is in flight at a time, so the largest batch sets the place's
        # size.
        count = max(map(len, group.batches))
        size = max(sum(len(out.message.body) for out in batch) for batch in group.batches)
        async with engine.groups_in_flight:
            try:
                if not engine.in_flight.take_places(size, count):
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
                engine.in_flight.release_places(size, count)


def engine_of(client: AsyncSending) -> ClientEngine:
    """Return a client's engine, for code within the framework."""
    return client._engine
