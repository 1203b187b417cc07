"""Messages that a thread sends alone: by itself, if it may, or by the loop.

Receives messages that have a place among those on their way; hands back their results. Two threads
between which each message goes to and fro cost a lone sender more than the message.
"""

from reliable_mq.client.asyncio_client_engine import ClientEngine
from reliable_mq.client.sending.asyncio_singles import Outcome
from reliable_mq.errors import UsageError, closed_meanwhile
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.runtime.thread_future import ThreadFuture


def send_single(
    engine: ClientEngine,
    thread: LoopThread,
    message: Message,
    timeout: float,
    queue: MessageQueue | None,
) -> SendResult:
    """Send a message that has a place in the engine's `in_flight`, and return where it is stored.

    Nothing overtakes anything: a thread sends by itself only while no other message of the client
    is on its way.
    """
    alone = engine.in_flight.count == 1
    if not (alone and engine.has_direct_links):

        def send(errand: "ThreadFuture[SendResult]") -> None:  # quoted: `LoopThread._refuse_ending`
            single = engine.begin_for(message, timeout, queue)
            engine.singles.send_for(errand, single, alone=alone)

        return thread.ask(send)
    thread.check_caller()
    singles, single = engine.singles, engine.begin_for(message, timeout, queue)
    came = singles.try_directly(single)
    if isinstance(came, SendResult):
        return came
    if came is None:
        return thread.ask(lambda errand: singles.send_for(errand, single, alone=True))
    outcome: Outcome = came
    try:
        return thread.ask(lambda errand: singles.go_on_for(errand, single, outcome))
    except UsageError:
        raise closed_meanwhile() from None
