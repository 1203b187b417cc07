"""Sends a single message for a thread: in the thread itself if possible, otherwise on the loop.

It receives messages that have a place in flight, and returns their results. For a single sender,
two thread switches cost more than the rest of a send.
"""

from reliable_mq.client.asyncio_client_engine import ClientEngine
from reliable_mq.client.sending.asyncio_singles import Outcome
from reliable_mq.errors import UsageError, closed_meanwhile
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.runtime.loop_thread import LoopThread, ThreadFuture


def send_single(
    engine: ClientEngine,
    thread: LoopThread,
    message: Message,
    timeout: float,
    queue: MessageQueue | None,
) -> SendResult:
    """Send a message that has a place in the engine's `in_flight`; return where it is stored.

    The order of messages is kept: a thread sends by itself only while the client has no other
    message in flight.
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
        return thread.ask(lambda errand: singles.continue_send_for(errand, single, outcome))
    except UsageError:
        raise closed_meanwhile() from None
