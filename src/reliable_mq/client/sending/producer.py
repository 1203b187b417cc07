"""Flows that send: they choose a queue, and try the next broker when one fails.

A message with an ordering key has one queue and is retried only there. Other messages use the
queues round-robin. `send_retries` decides when and how a request is retried.
Source: Apache RocketMQ `DefaultMQProducerImpl.sendDefaultImpl`, `tryToCompressMessage`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.connecting.signature import Signing
from reliable_mq.client.flow import Flow, Instant, now, work
from reliable_mq.client.sending.outgoing import (
    PreparedMessage,
    SenderFields,
    SendFrames,
    Sign,
    check_batch,
    prepared_message,
    read_answer,
    read_result,
    same_topic,
)
from reliable_mq.client.sending.queue_choice import queue_of_key
from reliable_mq.client.sending.send_retries import (
    Bind,
    BrokerAnswer,
    Check,
    FirstTry,
    SendRetries,
    SendTarget,
)
from reliable_mq.client.sending.timed import TimerBrokers
from reliable_mq.client.settings import NO_COMPRESSION, ClientSettings
from reliable_mq.errors import MessageRefused, NotSent, ReliableMQError
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.refusals import is_illegal
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.compression import compress, flags_of

_WORK_SIZE_MIN = 64 * 1024
"""Larger bodies are compressed in a thread, so that other work is not blocked."""


class PendingSend(msgspec.Struct, frozen=True, gc=False):
    """A single message that is being sent.

    `aim` is the target of the first attempt; None when a step or a request must come before it.
    """

    out: PreparedMessage
    queue: MessageQueue | None
    timeout: float
    begun: Instant
    aim: SendTarget | None


class SendFlows:
    """The flows that send for one client.

    Args:
        settings: timeouts, retries, the producer group.
        routes: the client's routes.
        random_bytes: returns that many random bytes (message ids, jitter, first queue).
        sign: signs each message; None: nothing is signed.
    """

    def __init__(
        self,
        settings: ClientSettings,
        routes: RouteCache,
        random_bytes: Callable[[int], bytes],
        sign: Sign | None = None,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._random_bytes = random_bytes
        self._sign = sign
        self._tries = SendRetries(settings, routes, random_bytes)
        self._timers = TimerBrokers(settings.request_timeout_seconds)
        self._sender = SenderFields(settings.producer_group, settings.new_topic_queues)
        #: renders the requests of first attempts
        account = settings.credentials
        self.frames = SendFrames(self._sender, Signing(account) if account else None)
        packs = settings.compression != NO_COMPRESSION
        self._pack_from: float = settings.compress_from_bytes if packs else math.inf

    def send(
        self, message: Message, *, timeout: float = 3.0, queue: MessageQueue | None = None
    ) -> Flow[SendResult]:
        """Send one message and return where it is stored.

        Args:
            message: the message to send.
            timeout: seconds for all attempts together.
            queue: the queue to use; by default by ordering key, or else round-robin.

        Raises:
            MessageRefused: when the message cannot be sent.
            RemoteError: when the broker refuses it.
            Unavailable: when no broker accepts it in time. It may be stored nevertheless.
        """
        instant = yield from now()
        return (yield from self.continue_send(self.begin(message, instant, timeout, queue)))

    def begin(
        self, message: Message, instant: Instant, timeout: float, queue: MessageQueue | None
    ) -> PendingSend:
        """Begin to send one message, as `send`; `continue_send` sends it.

        If it has an `aim`, the caller may make the first attempt itself: with the request from
        `frames`, and then `result_of_reply` with the outcome.

        Raises:
            MessageRefused: when the message cannot be sent.
        """
        size_max = self._settings.body_bytes_max
        out = prepared_message(message, instant.epoch_ms, self._random_bytes, size_max, self._sign)
        if queue is not None:
            _check_home(message.topic, queue)
        aim = None
        is_timed = message.delay is not None or message.deliver_at is not None
        if not is_timed and len(message.body) < self._pack_from:
            key = message.ordering_key
            aim = self._tries.aim(message.topic, key, queue, timeout, instant)
        return PendingSend(out, queue, timeout, instant, aim)

    def result_of_reply(
        self, single: PendingSend, aim: SendTarget, reply: Command, seconds: float
    ) -> SendResult | None:
        """Return the result of a send from the reply to its first attempt.

        Returns None when `continue_send` must make another attempt.

        Raises:
            RemoteError: when the broker refuses the message.
            ProtocolError: when the reply cannot be decoded.
        """
        took = seconds - single.begun.seconds
        if not self._tries.is_answer(reply, aim.queue.broker_name, took, seconds):
            return None
        try:  # `SendResult.tries` is 1 by default
            return read_result(reply, single.out.message.message_id, aim.queue)
        except ReliableMQError as error:
            error.tries = 1
            raise

    def continue_send(
        self, single: PendingSend, outcome: Command | ReliableMQError | None = None
    ) -> Flow[SendResult]:
        """Send a begun message. `outcome` is the outcome of the first attempt, if it was made.

        Raises:
            RemoteError, Unavailable, ProtocolError: as `send`.
        """
        out, aim, begun = single.out, single.aim, single.begun
        if aim is None:
            out = yield from self.packed(out)
        first = FirstTry(aim, begun, outcome) if aim is not None else None
        key = out.message.ordering_key
        return (
            yield from self._send_one(
                out, key, single.queue, single.timeout, begun=begun, first=first
            )
        )

    def send_reply(self, message: Message, *, timeout: float) -> Flow[SendResult]:
        """Send the reply to a request. The broker pushes it to the requesting client.

        Raises:
            MessageRefused: when the reply cannot be sent.
            RemoteError: when the requesting client does not wait any more.
            Unavailable: when no broker accepts the reply in time.
        """
        instant = yield from now()
        out = yield from self.packed(self.prepare(message, instant.epoch_ms))
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        return (yield from self._send_one(out, "", None, timeout, code))

    def send_oneway(self, message: Message) -> Flow[int]:
        """Send one message without asking for an answer: it stays unknown whether it is stored.

        Returns the number of attempts until it was sent.

        Raises:
            MessageRefused: when the message cannot be sent.
            Unavailable: when no broker can be reached.
        """
        instant = yield from now()
        out = yield from self.packed(self.prepare(message, instant.epoch_ms))
        bind = partial(self._sender.command, out, oneway=True)
        check = self._check_of(message)
        return (yield from self._tries.post(message.topic, message.ordering_key, bind, check))

    def send_retry(
        self, message: Message, *, reconsume_times: int, max_reconsume_times: int
    ) -> Flow[SendResult]:
        """Send a message to a retry topic, as a broker does for a message that is sent back."""
        instant = yield from now()
        out = yield from self.packed(self.prepare(message, instant.epoch_ms))
        bind = partial(
            self._sender.command,
            out,
            reconsume_times=reconsume_times,
            max_reconsume_times=max_reconsume_times,
        )
        answer = yield from self._tries.call(
            message.topic, "", None, self._settings.request_timeout_seconds, bind
        )
        (result,) = read_answer(answer, [out.message.message_id])
        return result

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
    ) -> Flow[SendResult]:
        """Send messages of one topic to one queue in one request, all or none.

        All ordering keys must select the same queue. The result is that of the first message. Its
        ids are those of all messages, joined by commas, as in Apache's client.

        Raises:
            MessageRefused: when they cannot be sent together.
            RemoteError: when the broker refuses them.
            Unavailable: when no broker accepts them in time.
        """
        topic = same_topic(messages)
        if queue is not None:
            _check_home(topic, queue)
        route = yield from self._routes.to_send(topic)
        keys = {message.ordering_key for message in messages} - {""}
        homes = {self.queue_of(key, route.writable) for key in keys}
        if len(homes) > 1 and queue is None:
            raise MessageRefused("the ordering keys of a batch belong to different queues")
        instant = yield from now()
        batch = [self.prepare(message, instant.epoch_ms) for message in messages]
        results = yield from self.send_prepared(
            batch, queue or next(iter(homes), None), timeout=timeout
        )
        return msgspec.structs.replace(
            results[0],
            message_id=",".join(result.message_id for result in results),
            offset_message_id=",".join(result.offset_message_id for result in results),
        )

    def send_prepared(
        self, batch: Sequence[PreparedMessage], queue: MessageQueue | None, *, timeout: float
    ) -> Flow[list[SendResult]]:
        """Send messages of one topic to `queue`, or to the next queue, in one request.

        Raises:
            MessageRefused: when they are too large together.
            RemoteError, Unavailable, ProtocolError: as `send`.
        """
        if len(batch) == 1:
            out = yield from self.packed(batch[0])
            return [(yield from self._send_one(out, "", queue, timeout))]
        check_batch(batch, self._settings.body_bytes_max)

        def bind(to: MessageQueue, now_ms: int) -> Command:
            return self._sender.batch_command(batch, to, now_ms)

        topic = batch[0].message.topic
        answer = yield from self._tries.call(topic, "", queue, timeout, bind)
        return read_answer(answer, [out.message.message_id for out in batch])

    def send_in_order(
        self, batches: Sequence[Sequence[PreparedMessage]], queue: MessageQueue | None
    ) -> Flow[list[SendResult | Exception]]:
        """Send batches one after another. After a failed batch, no further one is sent.

        The messages of the failed batch carry its error, later messages `NotSent`.
        """
        outcomes: list[SendResult | Exception] = []
        for at, batch in enumerate(batches):
            results = yield from self.send_together(batch, queue)
            outcomes += results
            error = next((each for each in results if isinstance(each, Exception)), None)
            if error is not None:
                outcomes += _unsent(sum(map(len, batches[at + 1 :])), error)
                break
        return outcomes

    def send_together(
        self, batch: Sequence[PreparedMessage], queue: MessageQueue | None
    ) -> Flow[list[SendResult | Exception]]:
        """Send a batch in one request. If a message in it is illegal, send each message alone.

        So an illegal message does not affect the others.
        """
        try:
            stored = yield from self.send_prepared(
                batch, queue, timeout=self._settings.request_timeout_seconds
            )
        except ReliableMQError as error:
            if not is_illegal(error) or len(batch) == 1:
                return [error] * len(batch)
        else:
            return [*stored]
        apart: list[SendResult | Exception] = []
        for at, each in enumerate(batch):
            apart += yield from self.send_together([each], queue)
            last = apart[-1]
            if queue is not None and isinstance(last, Exception):
                apart += _unsent(len(batch) - at - 1, last)
                break
        return apart

    def prepare(self, message: Message, now_ms: int) -> PreparedMessage:
        """Return `message` prepared for sending.

        Raises:
            MessageRefused: when it cannot be sent.
        """
        size_max = self._settings.body_bytes_max
        return prepared_message(message, now_ms, self._random_bytes, size_max, self._sign)

    def queue_of(self, ordering_key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the queue of a topic that an ordering key selects."""
        return queue_of_key(ordering_key, queues, self._settings.key_hash)

    def is_sent_alone(self, out: PreparedMessage) -> bool:
        """Return whether a message cannot be in a batch: it is delayed, or needs compression."""
        return out.message.is_delayed or self._is_to_pack(out)

    def packed(self, out: PreparedMessage) -> Flow[PreparedMessage]:
        """Return a prepared message with its body compressed, if that is wanted and saves bytes."""
        if not self._is_to_pack(out):
            return out
        body, kind = out.message.body, self._settings.compression
        pack = partial(compress, body, kind)
        packed = (yield from work(pack)) if len(body) > _WORK_SIZE_MIN else pack()
        if len(packed) >= len(body):
            return out
        return msgspec.structs.replace(out, packed=packed, packing=flags_of(kind))

    def deliver(
        self,
        topic: str,
        ordering_key: str,
        queue: MessageQueue | None,
        timeout: float,
        bind: Bind,
    ) -> Flow[BrokerAnswer]:
        """Send requests from `bind` until a broker answers; see `SendRetries.call`."""
        return (yield from self._tries.call(topic, ordering_key, queue, timeout, bind))

    def _send_one(
        self,
        out: PreparedMessage,
        ordering_key: str,
        queue: MessageQueue | None,
        timeout: float,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
        begun: Instant | None = None,
        first: FirstTry | None = None,
    ) -> Flow[SendResult]:
        message = out.message
        answer = yield from self._tries.call(
            message.topic,
            ordering_key,
            queue,
            timeout,
            partial(self._sender.command, out, code=code),
            self._check_of(message),
            begun,
            first,
        )
        (result,) = read_answer(answer, [message.message_id])
        return result

    def _is_to_pack(self, out: PreparedMessage) -> bool:
        return out.packed is None and len(out.message.body) >= self._pack_from

    def _check_of(self, message: Message) -> Check | None:
        return self._timers.check if message.is_timed else None


def _check_home(topic: str, queue: MessageQueue) -> None:
    if queue.topic != topic:  # it would be stored there, but no consumer of its topic would get it
        raise MessageRefused(f"a message of topic {topic} cannot go to a queue of {queue.topic}")


def _unsent(count: int, error: Exception) -> list[Exception]:
    return [NotSent(f"an earlier message of its queue was not sent: {error}")] * count
