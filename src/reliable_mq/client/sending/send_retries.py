"""Tries: a request is offered to brokers until one takes it, with pauses that grow.

Receives what a request is for a queue; hands on the answer that counts. Refuses to know what is
sent. What a broker may refuse now and take a moment later is tried again; the rest is the answer.
Source: Apache RocketMQ `DefaultMQProducerImpl.sendDefaultImpl`.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from reliable_mq.client.connecting.routes import Route, RouteCache
from reliable_mq.client.flow import Flow, Instant, Post, Wait, call, now
from reliable_mq.client.sending.queue_choice import RoundRobin, queue_of_key
from reliable_mq.client.sending.slow_brokers import BUSY_SECONDS, FAILED_SECONDS, SlowBrokers
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import BrokerBusy, ReliableMQError, RequestTimeout, Unavailable
from reliable_mq.message import MessageQueue
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

_NOT_WRITABLE = "sending message is forbidden"  # Apache RocketMQ `AbstractSendMessageProcessor`

Bind = Callable[[MessageQueue, int], Command]
"""Makes the command that sends to a queue, given milliseconds since the epoch."""
Check = Callable[[str], Flow[None]]
"""Refuses a broker, by its address, that cannot do what is asked of it."""


class SendTarget(msgspec.Struct, frozen=True, gc=False):
    """Where a try goes: the queue, the address of its broker, and how long it may take."""

    queue: MessageQueue
    address: str
    seconds: float


class FirstTry(msgspec.Struct, frozen=True, gc=False):
    """Where the first try goes, chosen at an instant; and what it came to, if it was made."""

    aim: SendTarget
    begun: Instant
    outcome: Command | ReliableMQError | None = None

    def reply(self, bind: Bind) -> Flow[Command]:
        """Return the broker's reply; raise what came instead."""
        if isinstance(self.outcome, ReliableMQError):
            raise self.outcome
        if self.outcome is not None:
            return self.outcome
        aim = self.aim
        return (yield from call(aim.address, bind(aim.queue, self.begun.epoch_ms), aim.seconds))


class BrokerAnswer(NamedTuple):
    """A broker's last word, for which queue it is, and after how many requests it came."""

    reply: Command
    queue: MessageQueue
    tries: int


class SendRetries:
    """Offers the requests of one client to brokers.

    Args:
        settings: retries and pauses.
        routes: the client's routes.
        random_bytes: returns so many random bytes (pauses, where turns begin).
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
        """Send what `bind` makes for a queue until a broker gives its last word; return that.

        `begun` is the time, for a caller who has just asked for it; `first` is the first try, for
        one who has chosen it.

        Raises:
            RemoteError: when the last try was refused by a code that may pass.
            Unavailable: when no broker answers in time.
        """
        instant = first.begun if first is not None else begun or (yield from now())
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
                    reply = yield from call(address, bind(chosen, instant.epoch_ms), left)
                sent, instant = instant.seconds, (yield from now())
                if self.is_answer(reply, tried, instant.seconds - sent, instant.seconds):
                    return BrokerAnswer(reply, chosen, requests)
                failure = remote_error(reply.code, reply.remark)
                self._note_refusal(tried, failure, instant.seconds - sent, instant.seconds)
                if self._is_about_account(reply):
                    break
            except Unavailable as error:
                failure = error
                instant = yield from now()
                if tried:
                    self._slow.note(tried, FAILED_SECONDS, instant.seconds)
            self._routes.doubt(topic)
            if bound or not self._has_other(topic, avoid, instant.seconds):
                if not (yield from self._rest(attempt, failure, deadline - instant.seconds)):
                    break
                instant = yield from now()
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
        """Return where the first try goes; None when somebody has to be asked for the route.

        What comes of it is given to `is_answer`, and to `call` when that says no.
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
        """Say whether a reply is the broker's last word, and not to be tried again.

        Args:
            reply: of a try that took so many seconds.
            broker_name: who replied.
            took: seconds.
            seconds: the time now.
        """
        if reply.code in RETRY_CODES:
            return False
        self._slow.note(broker_name, took, seconds)
        return True

    def post(
        self, topic: str, ordering_key: str, bind: Bind, check: Check | None = None
    ) -> Flow[int]:
        """Send what `bind` makes for a queue, and want no answer; return how many tries it took.

        What does not leave this process, for want of a connection or because the peer reads
        nothing, is tried again: nothing can be there twice.

        Raises:
            Unavailable: when no broker can be reached.
        """
        instant = yield from now()
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
            instant = yield from now()
            self._slow.note(avoid, FAILED_SECONDS, instant.seconds)
            self._routes.doubt(topic)
            left = deadline - instant.seconds
            if ordering_key or not self._has_other(topic, avoid, instant.seconds):
                if not (yield from self._rest(attempt, failure, left)):
                    break
            elif left <= 0:
                break
        failure.tries = requests
        raise failure

    def _rest(self, attempt: int, failure: ReliableMQError, left: float) -> Flow[bool]:
        """Wait before the same broker is tried again; return whether it will be.

        Whoever met a busy broker together with many others comes back at any time up to the
        longest: with the same pause they would all meet it busy again.
        """
        if attempt == self._settings.retries:
            return False
        settings = self._settings
        longest = min(settings.backoff_seconds * 4.0**attempt, settings.backoff_seconds_max)
        chance = int.from_bytes(self._random_bytes(2)) / 0xFFFF
        pause = longest * (chance if isinstance(failure, BrokerBusy) else 1 - chance / 2)
        if pause >= left:
            return False
        yield Wait(pause)
        return True

    def _share(
        self, route: Route, queue: MessageQueue, left: float, attempt: int, *, bound: bool
    ) -> float:
        """Return how long a try may take: all there is, when no other broker could do it better."""
        tries = 1 + self._settings.retries - attempt
        if bound or tries == 1 or not _has_others(route, queue.broker_name):
            return left
        return min(left, max(self._settings.try_timeout_seconds, left / tries))

    def _note_refusal(
        self, broker_name: str, failure: ReliableMQError, took: float, seconds: float
    ) -> None:
        if isinstance(failure, BrokerBusy):
            took = max(took, BUSY_SECONDS)
        self._slow.note(broker_name, took, seconds)

    def _is_about_account(self, reply: Command) -> bool:
        """Whether a refusal is one of access control, which every broker would repeat.

        With the same code a broker says that it, or the topic there, may not be written.
        """
        return (
            self._settings.credentials is not None
            and reply.code == ResponseCode.NO_PERMISSION
            and _NOT_WRITABLE not in (reply.remark or "")
        )

    def _choose(self, route: Route, ordering_key: str, avoid: str, seconds: float) -> MessageQueue:
        if ordering_key:
            return queue_of_key(ordering_key, route.writable, self._settings.key_hash)
        if not self._settings.avoids_slow_brokers or not self._slow.is_any:
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


def _has_others(route: Route, broker_name: str) -> bool:
    """Say the same of whether there are any; queues are sorted, so the ends tell."""
    queues = route.writable
    return not queues[0].broker_name == broker_name == queues[-1].broker_name
