"""Sends single messages: the first attempt without a flow, further attempts in a flow.

It receives messages. It gives results to an awaiting task, to a thread's errand, or directly to the
calling thread. The producer's flows take all decisions.
"""

import asyncio
from concurrent.futures import CancelledError
from functools import partial
from typing import Protocol, TypeVar

from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.flow import Flow, Instant
from reliable_mq.client.sending.producer import PendingSend, SendFlows
from reliable_mq.errors import ConnectionLost, ReliableMQError, RequestTimeout
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.runtime.direct_link import DirectLink
from reliable_mq.runtime.link import Link
from reliable_mq.runtime.loop_thread import ThreadFuture
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command

T = TypeVar("T")

Outcome = Command | ReliableMQError
"""The outcome of a first attempt: a reply or an error."""


class SendingEngine(Protocol):
    """What sending needs from the client's engine."""

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""

    def now(self) -> Instant:
        """Return the time."""

    def seconds(self) -> float:
        """Return the time of the clock of `Instant.seconds`."""

    def clear_link(self, address: str) -> Link | None:
        """Return the connection to `address` if a request can be sent on it at once."""

    def direct_link(self, address: str) -> DirectLink | None:
        """Take the direct link to `address` if it is free, and return it."""

    def note_single_thread(self, link: Link) -> None:
        """Note that one thread sends alone on a connection."""


class SingleSends:
    """Sends single messages for one client.

    Args:
        engine: runs the flows, and knows the connections.
        producer: the flows, which take the decisions.
        namespace: translates topic names.
    """

    def __init__(self, engine: SendingEngine, producer: SendFlows, namespace: Namespace) -> None:
        self._engine = engine
        self._producer = producer
        self._namespace = namespace

    def begin(self, message: Message, timeout: float, queue: MessageQueue | None) -> PendingSend:
        """Begin to send a message. Safe from any thread.

        Raises:
            MessageRefused: when the message cannot be sent.
        """
        names = self._namespace
        if names.name:
            message, queue = names.whole_message(message), names.whole_queue(queue)
        return self._producer.begin(message, self._engine.now(), timeout, queue)

    async def send(self, single: PendingSend, *, waits_busily: bool = True) -> SendResult:
        """Send a message and return where it is stored; see `AsyncClient.send`.

        `waits_busily`: whether the loop may poll for the answer; see `BusyWait`.
        """
        asked = self._ask(single, waits_busily=waits_busily)
        if asked is None:
            return await self._continue_send(single, None)
        outcome: Outcome
        try:
            outcome = await asked
        except ReliableMQError as error:
            outcome = error
        return self._result(single, outcome) or await self._continue_send(single, outcome)

    def send_for(
        self, errand: ThreadFuture[SendResult], single: PendingSend, *, alone: bool
    ) -> None:
        """Send a message for a thread, nearly always without a task.

        `note_single_thread`: no other message is in flight.
        """
        asked = self._ask(single, notes=alone)
        if asked is None:
            self.continue_send_for(errand, single, None)
            return
        errand.depend_on(asked)
        asked.add_done_callback(partial(self._tried_for, errand, single))

    def try_directly(self, single: PendingSend) -> SendResult | Outcome | None:
        """Send a message in the calling thread, on a direct link.

        Returns:
            The result; or the outcome of the first attempt, for `continue_send_for`; or None when
            nothing was sent.

        Raises:
            RemoteError: when the broker refuses the message.
            ProtocolError: when the reply cannot be decoded.
        """
        aim = single.aim
        direct = self._engine.direct_link(aim.address) if aim is not None else None
        if aim is None or direct is None:
            return None
        outcome: Outcome
        try:
            render = self._producer.frames.render(single.out, aim.queue, single.begun.epoch_ms)
            outcome = direct.ask(render, RequestCode.SEND_MESSAGE_V2, aim.seconds)
        except (ConnectionLost, RequestTimeout) as error:
            return error
        finally:
            direct.release()
        return self._result(single, outcome) or outcome

    def continue_send_for(
        self, errand: ThreadFuture[SendResult], single: PendingSend, outcome: Outcome | None
    ) -> None:
        """Send a message for a thread in a flow. `outcome` is that of the first attempt, if any."""
        errand.follow(asyncio.ensure_future(self._continue_send(single, outcome)))

    def _tried_for(
        self, errand: ThreadFuture[SendResult], single: PendingSend, asked: asyncio.Future[Command]
    ) -> None:
        if asked.cancelled():
            errand.set_exception(CancelledError())
            return
        error = asked.exception()
        try:
            outcome = error if isinstance(error, ReliableMQError) else asked.result()
            result = self._result(single, outcome)
        except Exception as failure:  # noqa: BLE001 - after any error, the thread must not wait on
            errand.set_exception(failure)
            return
        if result is None:
            self.continue_send_for(errand, single, outcome)
        else:
            errand.set_result(result)

    def _ask(
        self, single: PendingSend, *, notes: bool = False, waits_busily: bool = True
    ) -> asyncio.Future[Command] | None:
        """Return the future of the first attempt's reply, if the request can be sent at once."""
        aim = single.aim
        if aim is None:
            return None
        render = self._producer.frames.render(single.out, aim.queue, single.begun.epoch_ms)
        link = self._engine.clear_link(aim.address)
        if link is None:
            return None
        if notes:
            self._engine.note_single_thread(link)
        code = RequestCode.SEND_MESSAGE_V2
        return link.ask(render, code, aim.seconds, waits_busily=waits_busily)

    def _result(self, single: PendingSend, outcome: Outcome) -> SendResult | None:
        """Return the result, or None when another attempt is due."""
        if single.aim is None or isinstance(outcome, ReliableMQError):
            return None
        result = self._producer.result_of_reply(single, single.aim, outcome, self._engine.seconds())
        if result is None or not self._namespace.name:
            return result
        return self._namespace.own_result(result)

    async def _continue_send(self, single: PendingSend, outcome: Outcome | None) -> SendResult:
        result = await self._engine.run(self._producer.continue_send(single, outcome))
        return self._namespace.own_result(result)
