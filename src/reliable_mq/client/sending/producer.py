"""Sending: flows that put messages into queues, at the next broker when one fails.

A message with an ordering key has one queue and is tried again there only; any other goes to the
queues in turn. What a broker may refuse now and take a moment later is tried again; the rest is
raised at once. Source: Apache RocketMQ `DefaultMQProducerImpl.sendDefaultImpl`.
"""

from collections.abc import Callable, Sequence

import msgspec

from reliable_mq.client.connecting.routes import Route, RouteTable
from reliable_mq.client.flow import Flow, Post, Wait, call, now
from reliable_mq.client.sending.outgoing import (
    Letter,
    Sender,
    check_batch,
    letter,
    read_batch_results,
    read_result,
    same_topic,
)
from reliable_mq.client.sending.queue_choice import Turns, queue_of_key
from reliable_mq.client.sending.slow_brokers import BUSY_SECONDS, FAILED_SECONDS, SlowBrokers
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    MessageRefused,
    NotSent,
    ReliableMQError,
    RemoteError,
    RequestTimeout,
    Unavailable,
)
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.remote_faults import remote_error

#: what `DefaultMQProducer.retryResponseCodes` holds, GO_AWAY included, and a quota that is used up
RETRY_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
        ResponseCode.FLOW_CONTROL,
    }
)

_BUSY_CODES = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    }
)

_NOT_WRITABLE = "sending message is forbidden"  # Apache RocketMQ `AbstractSendMessageProcessor`

Bind = Callable[[MessageQueue, int], Command]
"""Makes the command that sends to a queue, given milliseconds since the epoch."""


class Producer:
    """Sends for one client.

    Args:
        settings: time-outs, retries, the producer group.
        routes: the client's routes.
        random_bytes: returns so many random bytes (message ids, where turns begin).
    """

    def __init__(
        self,
        settings: ClientSettings,
        routes: RouteTable,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._random_bytes = random_bytes
        self._slow = SlowBrokers()
        self._turns = Turns(int.from_bytes(random_bytes(2)))
        self._sender = Sender(settings.producer_group, settings.new_topic_queues)

    def send(
        self, message: Message, *, timeout: float = 3.0, queue: MessageQueue | None = None
    ) -> Flow[SendResult]:
        """Send one message and return where it is stored.

        Args:
            message: what to send.
            timeout: seconds for all tries together.
            queue: the queue to use; by default the ordering key or the turn chooses.

        Raises:
            MessageRefused: when the message cannot be sent as it is.
            RemoteError: when the broker refuses it.
            Unavailable: when no broker takes it in time. It may be stored all the same.
        """
        instant = yield from now()
        out = self.prepare(message, instant.epoch_ms)
        message_id = out.message.message_id

        def bind(to: MessageQueue, now_ms: int) -> Command:
            return self._sender.command(out, to, now_ms)

        reply, stored_in = yield from self.deliver(
            message.topic, message.ordering_key, queue, timeout, bind
        )
        return read_result(reply, message_id, stored_in)

    def send_oneway(self, message: Message) -> Flow[None]:
        """Send one message and ask for no answer: nobody will know whether it is stored.

        Raises:
            MessageRefused: when the message cannot be sent as it is.
            Unavailable: when no broker can be reached.
        """
        instant = yield from now()
        out = self.prepare(message, instant.epoch_ms)
        route = yield from self._routes.to_send(message.topic)
        queue = self._choose(route, message.ordering_key, "", instant.seconds)
        command = self._sender.command(out, queue, instant.epoch_ms, oneway=True)
        yield Post(self._address(route, queue), command)

    def send_retry(
        self, message: Message, *, reconsume_times: int, max_reconsume_times: int
    ) -> Flow[SendResult]:
        """Send a message to a retry topic, as a broker would that takes a message back."""
        instant = yield from now()
        out = self.prepare(message, instant.epoch_ms)

        def bind(to: MessageQueue, now_ms: int) -> Command:
            return self._sender.command(
                out,
                to,
                now_ms,
                reconsume_times=reconsume_times,
                max_reconsume_times=max_reconsume_times,
            )

        reply, stored_in = yield from self.deliver(
            message.topic, "", None, self._settings.request_timeout, bind
        )
        return read_result(reply, out.message.message_id, stored_in)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
    ) -> Flow[SendResult]:
        """Send messages of one topic to one queue in one request, all or none.

        With ordering keys they must all belong to one queue. The result is the first message's;
        its ids are those of all, joined by commas, as Apache's client returns them.

        Raises:
            MessageRefused: when they cannot be sent together.
            RemoteError: when the broker refuses them.
            Unavailable: when no broker takes them in time.
        """
        topic = same_topic(messages)
        route = yield from self._routes.to_send(topic)
        keys = {message.ordering_key for message in messages} - {""}
        homes = {queue_of_key(key, route.writable) for key in keys}
        if len(homes) > 1 and queue is None:
            raise MessageRefused("the ordering keys of a batch belong to different queues")
        instant = yield from now()
        batch = [self.prepare(message, instant.epoch_ms) for message in messages]
        results = yield from self.send_letters(
            batch, queue or next(iter(homes), None), timeout=timeout
        )
        return msgspec.structs.replace(
            results[0],
            message_id=",".join(result.message_id for result in results),
            offset_message_id=",".join(result.offset_message_id for result in results),
        )

    def send_letters(
        self, batch: Sequence[Letter], queue: MessageQueue | None, *, timeout: float
    ) -> Flow[list[SendResult]]:
        """Send messages of one topic to `queue`, or to the next one, in one request.

        Raises:
            MessageRefused: when they are too large together.
            RemoteError, Unavailable, ProtocolError: as `send`.
        """
        if len(batch) > 1:
            check_batch(batch, self._settings.body_size_max)
        ids = [out.message.message_id for out in batch]

        def bind(to: MessageQueue, now_ms: int) -> Command:
            if len(batch) == 1:
                return self._sender.command(batch[0], to, now_ms)
            return self._sender.batch_command(batch, to, now_ms)

        topic = batch[0].message.topic
        reply, stored_in = yield from self.deliver(topic, "", queue, timeout, bind)
        return read_batch_results(reply, ids, stored_in)

    def send_in_order(
        self, batches: Sequence[Sequence[Letter]], queue: MessageQueue | None
    ) -> Flow[list[SendResult | Exception]]:
        """Send batches one after the other; after one that failed, none is sent.

        The messages of a failed batch carry its error, later ones `NotSent`.
        """
        outcomes: list[SendResult | Exception] = []
        for at, batch in enumerate(batches):
            results = yield from self._send_together(batch, queue)
            outcomes += results
            error = next((each for each in results if isinstance(each, Exception)), None)
            if error is not None:
                outcomes += _unsent(sum(map(len, batches[at + 1 :])), error)
                break
        return outcomes

    def _send_together(
        self, batch: Sequence[Letter], queue: MessageQueue | None
    ) -> Flow[list[SendResult | Exception]]:
        """Send a batch in one request; one that is illegal, message by message.

        What is wrong with one of them says nothing of the others.
        """
        try:
            stored = yield from self.send_letters(
                batch, queue, timeout=self._settings.request_timeout
            )
        except ReliableMQError as error:
            if not is_illegal(error) or len(batch) == 1:
                return [error] * len(batch)
        else:
            return [*stored]
        apart: list[SendResult | Exception] = []
        for at, each in enumerate(batch):
            apart += yield from self._send_together([each], queue)
            last = apart[-1]
            if queue is not None and isinstance(last, Exception):
                apart += _unsent(len(batch) - at - 1, last)
                break
        return apart

    def prepare(self, message: Message, now_ms: int) -> Letter:
        """Return `message` ready to be sent.

        Raises:
            MessageRefused: when it cannot be sent as it is.
        """
        return letter(message, now_ms, self._random_bytes, self._settings.body_size_max)

    def deliver(
        self,
        topic: str,
        ordering_key: str,
        queue: MessageQueue | None,
        timeout: float,
        bind: Bind,
    ) -> Flow[tuple[Command, MessageQueue]]:
        """Send what `bind` makes for a queue until a broker answers; return answer and queue.

        Raises:
            RemoteError: when the last try was refused by a code that may pass.
            Unavailable: when no broker answers in time.
        """
        instant = yield from now()
        deadline = instant.seconds + timeout
        bound = queue is not None or bool(ordering_key)
        avoid = ""
        failure: ReliableMQError = RequestTimeout(f"no time is left to send to topic {topic}")
        for attempt in range(1 + self._settings.retries):
            if instant.seconds >= deadline:
                break
            tried = ""
            try:
                route = yield from self._routes.to_send(topic)
                chosen = queue or self._choose(route, ordering_key, avoid, instant.seconds)
                avoid = tried = chosen.broker_name
                address = self._address(route, chosen)
                left = self._share(route, chosen, deadline - instant.seconds, attempt, bound=bound)
                reply = yield from call(address, bind(chosen, instant.epoch_ms), left)
                begun, instant = instant.seconds, (yield from now())
                self._note(chosen, reply.code, instant.seconds - begun, instant.seconds)
                if reply.code not in RETRY_CODES:
                    return reply, chosen
                failure = remote_error(reply.code, reply.remark)
                if self._is_about_account(reply):
                    break
            except Unavailable as error:
                failure = error
                instant = yield from now()
                if tried:
                    self._slow.note(tried, FAILED_SECONDS, instant.seconds)
            self._routes.doubt(topic)
            if attempt < self._settings.retries and (
                bound or not self._has_other(topic, avoid, instant.seconds)
            ):
                yield Wait(self._pause(attempt))
                instant = yield from now()
        raise failure

    def _share(
        self, route: Route, queue: MessageQueue, left: float, attempt: int, *, bound: bool
    ) -> float:
        """Return how long a try may take: all there is, when no other broker could do it better."""
        tries = 1 + self._settings.retries - attempt
        if bound or tries == 1 or not _others(route, queue.broker_name):
            return left
        return min(left, max(self._settings.try_timeout, left / tries))

    def _note(self, queue: MessageQueue, code: int, took: float, seconds: float) -> None:
        if code in _BUSY_CODES:
            took = max(took, BUSY_SECONDS)
        self._slow.note(queue.broker_name, took, seconds)

    def _is_about_account(self, reply: Command) -> bool:
        """Whether a refusal is one of access control, which every broker would repeat.

        With the same code a broker says that it, or the topic there, may not be written.
        """
        return (
            self._settings.credentials is not None
            and reply.code == ResponseCode.NO_PERMISSION
            and _NOT_WRITABLE not in (reply.remark or "")
        )

    def _pause(self, attempt: int) -> float:
        chance = int.from_bytes(self._random_bytes(2)) / 0xFFFF
        return self._settings.backoff_seconds * 4.0**attempt * (1 - chance / 2)

    def _choose(self, route: Route, ordering_key: str, avoid: str, seconds: float) -> MessageQueue:
        if ordering_key:
            return queue_of_key(ordering_key, route.writable)
        if not self._settings.avoids_slow_brokers:
            return self._turns.choose(route.writable, avoid)
        return self._turns.choose(
            route.writable, avoid, lambda name: self._slow.rank(name, seconds)
        )

    def _has_other(self, topic: str, failed: str, seconds: float) -> bool:
        """Whether a broker that is not slow is left beside `failed`: then no try need wait."""
        route = self._routes.find(topic)
        return route is not None and any(
            not self._slow.rank(name, seconds) for name in _others(route, failed)
        )

    def _address(self, route: Route, queue: MessageQueue) -> str:
        broker = route.brokers.get(queue.broker_name) or self._routes.broker(queue.broker_name)
        if broker is None or broker.master is None:
            raise Unavailable(f"no master of broker {queue.broker_name} is known")
        return broker.master


def _others(route: Route, broker_name: str) -> set[str]:
    """Return the brokers that could take a message instead of the one so called."""
    return {queue.broker_name for queue in route.writable} - {broker_name}


def _unsent(count: int, error: Exception) -> list[Exception]:
    return [NotSent(f"an earlier message of its queue was not sent: {error}")] * count


def is_illegal(error: object) -> bool:
    """Say whether a broker refused a message, or one of a batch, for what it is."""
    return isinstance(error, RemoteError) and error.code == ResponseCode.MESSAGE_ILLEGAL
