"""Messages that are sent alone: the first try without a flow, the rest by one.

Receives messages; hands on their results, to a task that awaits them or to a thread's errand. What
is decided is the producer's.
"""

import asyncio
from concurrent.futures import CancelledError
from functools import partial
from typing import Protocol, TypeVar

from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.flow import Flow, Instant
from reliable_mq.client.sending.producer import Producer, Single
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.runtime.errand import Errand
from reliable_mq.runtime.link import Link
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command

T = TypeVar("T")

Outcome = Command | ReliableMQError
"""What came of a first try."""


class Engine(Protocol):
    """What sending needs of the engine that drives the client's flows."""

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end."""

    def now(self) -> Instant:
        """Return the time."""

    def clear_link(self, address: str) -> Link | None:
        """Return the connection to `address` if a request can leave on it at once."""


class Singles:
    """Sends single messages for one client.

    Args:
        engine: drives the flows, and knows the connections.
        producer: decides.
        namespace: how topics are called here, and by brokers.
    """

    def __init__(self, engine: Engine, producer: Producer, namespace: Namespace) -> None:
        self._engine = engine
        self._producer = producer
        self._namespace = namespace

    async def send(
        self, message: Message, timeout: float, queue: MessageQueue | None
    ) -> SendResult:
        """Send a message and return where it is stored; see `AsyncClient.send`."""
        single, asked = self._begin(message, timeout, queue)
        if asked is None:
            return await self._go_on(single, None)
        outcome: Outcome
        try:
            outcome = await asked
        except ReliableMQError as error:
            outcome = error
        return self._result(single, outcome) or await self._go_on(single, outcome)

    def send_for(
        self,
        errand: Errand[SendResult],
        message: Message,
        timeout: float,
        queue: MessageQueue | None,
    ) -> None:
        """Send a message for a thread; nearly always without a task.

        Raises:
            MessageRefused: when it cannot be sent as it is.
        """
        single, asked = self._begin(message, timeout, queue)
        if asked is None:
            errand.follow(asyncio.ensure_future(self._go_on(single, None)))
            return
        errand.depend_on(asked)
        asked.add_done_callback(partial(self._tried_for, errand, single))

    def _tried_for(
        self, errand: Errand[SendResult], single: Single, asked: asyncio.Future[Command]
    ) -> None:
        if asked.cancelled():
            errand.set_exception(CancelledError())
            return
        error = asked.exception()
        try:
            outcome = error if isinstance(error, ReliableMQError) else asked.result()
            result = self._result(single, outcome)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the thread must not wait on
            errand.set_exception(failure)
            return
        if result is None:
            errand.follow(asyncio.ensure_future(self._go_on(single, outcome)))
        else:
            errand.set_result(result)

    def _begin(
        self, message: Message, timeout: float, queue: MessageQueue | None
    ) -> tuple[Single, asyncio.Future[Command] | None]:
        """Begin to send; return the future of the first try's reply, if that could be made."""
        names, producer, engine = self._namespace, self._producer, self._engine
        message, queue = names.whole_message(message), names.whole_queue(queue)
        single = producer.begin(message, engine.now(), timeout, queue)
        aim = single.aim
        link = engine.clear_link(aim.address) if aim is not None else None
        if aim is None or link is None:
            return single, None
        render = partial(producer.frame, single, aim)
        return single, link.ask(render, RequestCode.SEND_MESSAGE_V2, aim.seconds)

    def _result(self, single: Single, outcome: Outcome) -> SendResult | None:
        """Return the result, or None when it is to be tried again."""
        if single.aim is None or isinstance(outcome, ReliableMQError):
            return None
        seconds = asyncio.get_running_loop().time()
        result = self._producer.end(single, single.aim, outcome, seconds)
        return None if result is None else self._namespace.own_result(result)

    async def _go_on(self, single: Single, outcome: Outcome | None) -> SendResult:
        result = await self._engine.run(self._producer.go_on(single, outcome))
        return self._namespace.own_result(result)
