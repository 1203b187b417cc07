"""One call of a handler, as worker tasks make it: its messages, and the outcome of each.

`CalledHandler` calls the handler, on the event loop or in threads. It returns one outcome for each
message, whatever the handler raised. `HandlerCall` says whether these outcomes count, also after
the call hung. Neither knows what follows from an outcome.
"""

import asyncio
import contextvars
import logging
import types
from collections.abc import Coroutine, Generator, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.subscription import Handler
from reliable_mq.client.consuming.thread_handling import (
    AnyHandler,
    HandlerStillRunning,
    Threads,
    is_asynchronous,
)
from reliable_mq.errors import error_text
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import Outcome, Retry, checked_outcomes, outcomes_of, raised_outcomes
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of_many

log = logging.getLogger(__name__)

T = TypeVar("T")

_queue_of = attrgetter("queue")
_properties_of = attrgetter("properties")


class HandlerCall:
    """The messages of one handler call. It decides whether its outcomes count, also after it hung.

    RUNNING --limit--> OVERDUE --cannot be stopped--> BYPASSED
       |                  |                              |
       +------ends--------+----ends: its outcomes count--+----ends: its outcomes do not count for
                                                              messages that were handed on meanwhile

    It must not know tasks and threads.
    K6: a message is settled by the call that took it, or handed on to another call, but not both.

    Args:
        group: the group of the messages.
        messages: the messages that the handler gets.
        begun: when they were taken, in seconds of a monotonic clock.
    """

    __slots__ = (
        *("_handed_on", "_homes", "begun", "has_ended", "is_bypassed", "is_overdue"),
        *("_properties", "goes_on", "is_called", "messages"),
    )

    def __init__(
        self, group: ConsumerGroup, messages: Sequence[ReceivedMessage], begun: float
    ) -> None:
        self.messages = tuple(messages)  # a tuple: the handler may change its own list
        self.begun = begun
        self.is_overdue = False  # it takes longer than its limit
        self.is_bypassed = False  # no task waits for it any more: another worker task replaces it
        self.is_called = False  # the handler is called, after a wait for a loop turn
        self.has_ended = False  # the handler has ended; its messages may still be unsettled
        self.goes_on = False  # it was cancelled, but a thread is still in the handler
        self._homes: dict[MessageQueue, AssignedQueue | None] = {}
        for queue in map(_queue_of, messages):
            if queue not in self._homes:
                self._homes[queue] = group.find(queue)
        self._handed_on: set[tuple[MessageQueue, int]] | None = None
        self._properties: list[dict[str, str]] = list(map(dict.copy, map(_properties_of, messages)))

    @property
    def released_count(self) -> int:
        """Number of messages that were handed on because the call took too long."""
        return len(self._handed_on or ())

    @property
    def ids(self) -> str:
        """The first ids of the messages, for a log."""
        ids = [message.message_id for message in self.messages[:3]]
        return ", ".join(ids) + (" …" if len(self.messages) > len(ids) else "")

    def queue_of(self, message: ReceivedMessage) -> AssignedQueue | None:
        """Return the queue of a message; None when the call's outcome does not count for it.

        It does not count after the message was handed on, or its queue given back. That queue may
        have been assigned again since, with the same message. Also then the outcome does not count.
        """
        if self._handed_on and (message.queue, message.queue_offset) in self._handed_on:
            return None
        assigned = self._homes[message.queue]
        return None if assigned is None or assigned.is_given_back else assigned

    def restore(self) -> None:
        """Restore the messages' original properties.

        Changes by the handler must not appear in another attempt or in a dead letter.
        """
        for message, properties in zip(self.messages, self._properties, strict=True):
            if message.properties != properties:
                message.properties.clear()
                message.properties.update(properties)

    def is_over(self, limit: float, now: float) -> bool:
        """Return whether the handler has run for `limit` seconds or longer."""
        return self.is_called and not self.has_ended and now - self.begun >= limit

    def hold_unsettled(self, now: float) -> None:
        """Hold the unsettled messages of a cancelled call: no handler has them any more."""
        for message in self.messages:
            assigned = self.queue_of(message)
            if assigned is not None and assigned.is_running(message.queue_offset):
                assigned.postpone(message.queue_offset, now, counts=False)

    def release_unfinished(self) -> list[tuple[AssignedQueue, ReceivedMessage]]:
        """Remove the messages that may run twice from the call, and return them, to be settled.

        Messages with an ordering key stay: no other handler may start their key meanwhile.
        """
        taken = []
        for message in self.messages:
            assigned = self.queue_of(message)
            if assigned is not None and assigned.may_run_twice(message.queue_offset):
                taken.append((assigned, message))
        self._handed_on = (self._handed_on or set()) | {
            (message.queue, message.queue_offset) for _, message in taken
        }
        return taken


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
