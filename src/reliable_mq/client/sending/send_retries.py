"""Retries of a send: offers a request to brokers until one gives a final answer, with backoff.

Queues take turns, without those of the broker that failed.

It receives a function that makes the request for a queue, and returns the final answer. It must not
know what is sent. Refusals that may be temporary are retried; every other answer is final.
Source: Apache RocketMQ `DefaultMQProducerImpl.sendDefaultImpl`.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from reliable_mq.client.connecting.routes import MASTER_ID, Route, RouteCache
from reliable_mq.client.flow import NOW, Call, Flow, Instant, Post, Wait
from reliable_mq.client.sending.queue_choice import queue_of_key
from reliable_mq.client.sending.slow_brokers import (
    BUSY_SECONDS,
    FAILED_SECONDS,
    SLOW_SECONDS,
    SlowBrokers,
)
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    BrokerBusy,
    ReliableMQError,
    RemoteError,
    RequestTimeout,
    Unavailable,
)
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.remote_faults import remote_error

#: the codes of `DefaultMQProducer.retryResponseCodes`, plus GO_AWAY and an exceeded quota
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

TOPICS_MAX = 10_000
"""The next queue is remembered for this many topics. Above that, all topics start again."""

_NOT_WRITABLE = "sending message is forbidden"  # Apache RocketMQ `AbstractSendMessageProcessor`

Bind = Callable[[MessageQueue, int], Command]
"""Makes the command for a queue, from the queue and milliseconds since the epoch."""
Check = Callable[[str], Flow[None]]
"""Raises if the broker at an address does not support the request."""


class SendTarget(msgspec.Struct, frozen=True, gc=False):
    """The target of an attempt: the queue, the address of its broker, and the timeout."""

    queue: MessageQueue
    address: str
    seconds: float


class FirstTry(msgspec.Struct, frozen=True, gc=False):
    """The target of a first attempt, the time of its choice, and its outcome if it was made."""

    aim: SendTarget
    begun: Instant
    outcome: Command | ReliableMQError | None = None

    def reply(self, bind: Bind) -> Flow[Command]:
        """Return the broker's reply, or raise the error of the attempt."""
        if isinstance(self.outcome, ReliableMQError):
            raise self.outcome
        if self.outcome is not None:
            return self.outcome
        aim = self.aim
        reply: Command = yield Call(aim.address, bind(aim.queue, self.begun.epoch_ms), aim.seconds)
        return reply


class BrokerAnswer(NamedTuple):
    """A broker's final answer, its queue, and the number of requests that were sent."""

    reply: Command
    queue: MessageQueue
    tries: int


class RoundRobin:
    """Selects the queues of each topic round-robin.

    Args:
        start: number of the first queue; it should differ between clients that start together.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._next: dict[str, int] = {}

    def choose(
        self,
        queues: Sequence[MessageQueue],
        avoid_broker: str = "",
        rank: Callable[[str], float] | None = None,
    ) -> MessageQueue:
        """Return the next queue, of another broker than `avoid_broker` if possible.

        Args:
            queues: the queues of one topic, at least one.
            avoid_broker: the name of the broker that has just failed.
            rank: returns how slow a broker is; 0 is good. The queues of the best brokers are used.
        """
        topic = queues[0].topic
        turn = self._next.get(topic)
        if turn is None:
            turn = self._start
            if len(self._next) >= TOPICS_MAX:
                self._next.clear()
        if rank is None and not avoid_broker:
            self._next[topic] = turn + 1
            return queues[turn % len(queues)]
        best, best_rank = 0, math.inf
        for step in range(len(queues)):
            name = queues[(turn + step) % len(queues)].broker_name
            if name == avoid_broker:
                continue
            badness = rank(name) if rank is not None else 0.0
            if badness < best_rank:
                best, best_rank = step, badness
            if not badness:
                break
        self._next[topic] = turn + best + 1
        return queues[(turn + best) % len(queues)]


class SendRetries:
    """Sends the requests of one client with retries.

    Args:
        settings: retries and backoff.
        routes: the client's routes.
        random_bytes: returns that many random bytes (jitter, first queue).
    """

    def __init__(
        self,
        settings: ClientSettings,
        routes: RouteCache,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._random_bytes = random_bytes
        self._slow = SlowBrokers()
        self._turns = RoundRobin(int.from_bytes(random_bytes(2)))

    def call(
        self,
        topic: str,
        ordering_key: str,
        queue: MessageQueue | None,
        timeout: float,
        bind: Bind,
        check: Check | None = None,
        begun: Instant | None = None,
        first: FirstTry | None = None,
    ) -> Flow[BrokerAnswer]:
        """Send a request from `bind` until a broker gives a final answer, and return that.

        `begun` is the current time, if the caller knows it. `first` is the first attempt, if the
        caller has chosen its target.

        Raises:
            RemoteError: when the last attempt was refused with a temporary code.
            Unavailable: when no broker answers in time.
        """
        instant: Instant = first.begun if first is not None else begun or (yield NOW)
        deadline = instant.seconds + timeout
        bound = queue is not None or bool(ordering_key)
        avoid = ""
        failure: ReliableMQError = RequestTimeout(f"no time is left to send to topic {topic}")
        requests = 0
        for attempt in range(1 + self._settings.retries):
            if instant.seconds >= deadline:
                break
            tried = ""
            try:
                if first is not None:
                    made, first = first, None
                    chosen = made.aim.queue
                    avoid = tried = chosen.broker_name
                    requests += 1
                    reply = yield from made.reply(bind)
                else:
                    route = self._routes.fresh(topic, instant.seconds)
                    if route is None:
                        route = yield from self._routes.to_send(topic)
                    chosen = queue or self._choose(route, ordering_key, avoid, instant.seconds)
                    avoid = tried = chosen.broker_name
                    address = self._address(route, chosen)
                    if check is not None:
                        yield from check(address)
                    left = deadline - instant.seconds
                    left = self._share(route, chosen, left, attempt, bound=bound)
                    requests += 1
                    reply = yield Call(address, bind(chosen, instant.epoch_ms), left)
                sent, instant = instant.seconds, (yield NOW)
                if self.is_answer(reply, tried, instant.seconds - sent, instant.seconds):
                    return BrokerAnswer(reply, chosen, requests)
                failure = remote_error(reply.code, reply.remark, reply.ext_fields)
                self._note_refusal(tried, failure, instant.seconds - sent, instant.seconds)
                if self._is_about_account(reply):
                    break
            except Unavailable as error:
                failure = error
                instant = yield NOW
                if tried:
                    self._slow.note_latency(tried, FAILED_SECONDS, instant.seconds)
            self._routes.mark_stale(topic)
            if bound or not self._has_other(topic, avoid, instant.seconds):
                if not (yield from self._back_off(attempt, failure, deadline - instant.seconds)):
                    break
                instant = yield NOW
        failure.tries = requests
        raise failure

    def aim(
        self,
        topic: str,
        ordering_key: str,
        queue: MessageQueue | None,
        timeout: float,
        instant: Instant,
    ) -> SendTarget | None:
        """Return the target of the first attempt; None when the route must be looked up first.

        Pass the reply to `is_answer`. If that returns False, continue with `call`.
        """
        route = self._routes.fresh(topic, instant.seconds)
        if route is None or timeout <= 0:
            return None
        chosen = queue or self._choose(route, ordering_key, "", instant.seconds)
        try:
            address = self._address(route, chosen)
        except Unavailable:
            return None
        bound = queue is not None or bool(ordering_key)
        return SendTarget(chosen, address, self._share(route, chosen, timeout, 0, bound=bound))

    def is_answer(self, reply: Command, broker_name: str, took: float, seconds: float) -> bool:
        """Return whether a reply is final; otherwise the request is retried.

        Args:
            reply: the reply to an attempt.
            broker_name: the name of the broker that replied.
            took: the seconds that the attempt took.
            seconds: the current time in seconds.
        """
        if reply.code in RETRY_CODES:
            return False
        if took >= SLOW_SECONDS or self._slow.until:
            self._slow.note_latency(broker_name, took, seconds)
        return True

    def post(
        self, topic: str, ordering_key: str, bind: Bind, check: Check | None = None
    ) -> Flow[int]:
        """Send a one-way request from `bind`; return the number of attempts.

        If it does not leave this process, it is retried: without a connection, or when the peer
            reads
        nothing. That cannot store it twice.

        Raises:
            Unavailable: when no broker can be reached.
        """
        instant: Instant = yield NOW
        deadline = instant.seconds + self._settings.request_timeout_seconds
        avoid = ""
        requests = 0
        for attempt in range(1 + self._settings.retries):
            route = yield from self._routes.to_send(topic)
            chosen = self._choose(route, ordering_key, avoid, instant.seconds)
            avoid = chosen.broker_name
            try:
                address = self._address(route, chosen)
                if check is not None:
                    yield from check(address)
                requests += 1
                yield Post(address, bind(chosen, instant.epoch_ms))
            except Unavailable as error:
                failure = error
            else:
                return requests
            instant = yield NOW
            self._slow.note_latency(avoid, FAILED_SECONDS, instant.seconds)
            self._routes.mark_stale(topic)
            left = deadline - instant.seconds
            if ordering_key or not self._has_other(topic, avoid, instant.seconds):
                if not (yield from self._back_off(attempt, failure, left)):
                    break
            elif left <= 0:
                break
        failure.tries = requests
        raise failure

    def _back_off(self, attempt: int, failure: ReliableMQError, left: float) -> Flow[bool]:
        """Wait for the backoff before the same broker is tried again; return whether to retry.

        After "busy", the pause is random between zero and the backoff: many clients have met the
        same busy broker, and must not return together. A broker that says how long gets that pause,
        or up to half of it more.
        """
        if attempt == self._settings.retries:
            return False
        settings = self._settings
        longest = min(settings.backoff_seconds * 4.0**attempt, settings.backoff_seconds_max)
        chance = int.from_bytes(self._random_bytes(2)) / 0xFFFF
        asked = failure.pause_seconds if isinstance(failure, RemoteError) else 0.0
        if asked:
            pause = asked * (1 + chance / 2)
        else:
            pause = longest * (chance if isinstance(failure, BrokerBusy) else 1 - chance / 2)
        if pause >= left:
            return False
        yield Wait(pause)
        return True

    def _share(
        self, route: Route, queue: MessageQueue, left: float, attempt: int, *, bound: bool
    ) -> float:
        """Return the timeout of an attempt: all time left if no other broker could be tried."""
        tries = 1 + self._settings.retries - attempt
        if bound or tries == 1 or not _has_others(route, queue.broker_name):
            return left
        return min(left, max(self._settings.try_timeout_seconds, left / tries))

    def _note_refusal(
        self, broker_name: str, failure: ReliableMQError, took: float, seconds: float
    ) -> None:
        if isinstance(failure, BrokerBusy):
            took = max(took, BUSY_SECONDS)
        self._slow.note_latency(broker_name, took, seconds)

    def _is_about_account(self, reply: Command) -> bool:
        """Whether a refusal comes from access control. Every broker would repeat it.

        The same code also means that the broker, or the topic on it, is not writable.
        """
        return (
            self._settings.credentials is not None
            and reply.code == ResponseCode.NO_PERMISSION
            and _NOT_WRITABLE not in (reply.remark or "")
        )

    def _choose(self, route: Route, ordering_key: str, avoid: str, seconds: float) -> MessageQueue:
        if ordering_key:
            return queue_of_key(ordering_key, route.writable, self._settings.key_hash)
        if not self._settings.avoids_slow_brokers or not self._slow.until:
            return self._turns.choose(route.writable, avoid)
        return self._turns.choose(
            route.writable, avoid, lambda name: self._slow.rank(name, seconds)
        )

    def _has_other(self, topic: str, failed: str, seconds: float) -> bool:
        """Whether another broker than `failed` is not slow: then an attempt needs no backoff."""
        route = self._routes.find(topic)
        return route is not None and any(
            not self._slow.rank(name, seconds) for name in _others(route, failed)
        )

    def _address(self, route: Route, queue: MessageQueue) -> str:
        broker = route.brokers.get(queue.broker_name) or self._routes.broker(queue.broker_name)
        master = broker.addresses.get(MASTER_ID) if broker is not None else None
        if master is None:
            raise Unavailable(f"no master of broker {queue.broker_name} is known")
        return master


def _others(route: Route, broker_name: str) -> set[str]:
    """Return the other brokers that could take a message."""
    return {queue.broker_name for queue in route.writable} - {broker_name}


def _has_others(route: Route, broker_name: str) -> bool:
    """Whether there are other brokers. Queues are sorted, so the first and the last are enough."""
    queues = route.writable
    return not queues[0].broker_name == broker_name == queues[-1].broker_name
