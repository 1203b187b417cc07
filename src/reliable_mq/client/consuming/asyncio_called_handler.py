"""The handler of one consumer, as worker tasks call it: on the event loop, or in threads.

Receives a `HandlerCall`. Returns one outcome for each of its messages, whatever the handler raised.
It must not know what follows from an outcome.
"""

import asyncio
import contextvars
import logging
import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, TypeVar, cast

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.handler_call import HandlerCall
from reliable_mq.client.consuming.subscription import Handler
from reliable_mq.client.consuming.thread_handling import (
    AnyHandler,
    HandlerStillRunning,
    Threads,
    is_asynchronous,
)
from reliable_mq.errors import error_text
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Outcome, Retry, checked_outcomes, outcomes_of, raised_outcomes
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of_many

log = logging.getLogger(__name__)

T = TypeVar("T")


class CalledHandler:
    """Calls a handler, and returns outcomes. A failure of the handler is an outcome, too.

    Args:
        group: the group of the messages.
        handler: gets the messages. A coroutine function runs on the loop, another one in threads.

    Attributes:
        is_closing: whether a cancellation now ends the worker task; before, it ends one call only.
    """

    def __init__(self, group: ConsumerGroup, handler: AnyHandler) -> None:
        self.is_closing = False
        self._group = group
        self._limit = group.subscription.handling_seconds
        self._threads: Threads | None = None
        if is_asynchronous(handler):
            self._handler = cast("Handler", handler)
        else:  # twice as many: each hung call may be bypassed once
            self._threads = Threads(2 * group.subscription.concurrency, f"rmq-{group.name}")
            self._handler = self._threads.wrapped(handler)

    @property
    def runs_in_threads(self) -> bool:
        """Whether calls run in threads, where nothing can cancel them."""
        return self._threads is not None

    @property
    def late_reason(self) -> str:
        """Why a call that took too long is not consumed, for a log."""
        return f"the handler took longer than {self._limit:g} s"

    def close(self) -> None:
        """Begin no more calls in threads."""
        if self._threads is not None:
            self._threads.close()

    async def outcome_of(self, message: ReceivedMessage) -> Outcome:
        """Handle one message outside of all queues.

        Raises:
            Exception: the handler's exception.
        """
        (outcome,) = await outcomes_of(self._handler((message,)), 1)
        return outcome

    async def outcomes(self, worker: asyncio.Task[None], call: HandlerCall) -> Sequence[Outcome]:
        """Handle the messages of a call.

        Args:
            worker: the task that runs this; while the consumer does not close, a cancellation of it
                ends the call, but not the task.
            call: has the messages.

        Raises:
            CancelledError: when the consumer closes.
        """
        call.is_called = True
        try:
            handling = self._handler(call.messages)
            if self._threads is None:
                handling = _in_its_own_context(cast("Coroutine[Any, Any, Any]", handling))
            return checked_outcomes(await handling, len(call.messages))
        except asyncio.CancelledError as error:
            if self.is_closing:
                call.goes_on = isinstance(error, HandlerStillRunning)
                raise
            reason = "the handler was cancelled from within"
            if call.is_overdue:
                reason = self.late_reason
            client_events.HANDLER_CANCELLED.log(
                log, group=self._group.name, **facts_of_many(call.messages), reason=reason
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - `sys.exit` in a handler must not end the loop
            said = raised_outcomes(error, len(call.messages))
            if said is not None:
                return said
            reason = error_text(error)
            if self._are_given_up(call.messages):  # the line of the dead letter has the error
                last = Retry()
                last.__cause__ = error
                return [last] * len(call.messages)
            client_events.HANDLER_FAILED.log(
                log,
                traceback_of=True,
                group=self._group.name,
                **facts_of_many(call.messages),
                error=reason,
            )
        finally:
            while worker.cancelling() and not self.is_closing:
                worker.uncancel()  # the call was cancelled, not the worker task
        return [Retry(reason=reason)] * len(call.messages)

    def _are_given_up(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Whether a failure of these messages is their last one."""
        most = self._group.subscription.max_attempts
        return all(message.reconsume_times + 1 >= most for message in messages)


@types.coroutine
def _in_its_own_context(handling: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a handler's coroutine in its own context: its changes of context variables are dropped.

    A separate task would do the same, but it costs more than the rest of a message's handling.
    """
    run = contextvars.copy_context().run
    try:
        waited = run(handling.send, None)
        while True:
            try:
                answer = yield waited
            except BaseException as error:  # noqa: BLE001 - the handler may catch it
                waited = run(handling.throw, error)
            else:
                waited = run(handling.send, answer)
    except StopIteration as end:
        result: T = end.value
        return result
