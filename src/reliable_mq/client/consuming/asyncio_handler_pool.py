"""The worker tasks of one consumer on an event loop: they take messages, call the handler, settle.

Worker tasks loop until no messages are left. `HandlerPool` decides how many run, the group which
messages may run, `HandlerCall` whether a call's outcomes count, and flows what follows from an
outcome. A hung handler call is cancelled; where that is impossible, another worker task replaces
it.
"""

import asyncio
import contextvars
import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.settling import settle
from reliable_mq.client.consuming.subscription import Handler, Subscription
from reliable_mq.client.consuming.thread_handling import (
    AnyHandler,
    HandlerStillRunning,
    Threads,
    is_asynchronous,
)
from reliable_mq.client.flow import Flow
from reliable_mq.errors import error_text
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import (
    Consumed,
    Outcome,
    Retry,
    checked_outcomes,
    is_failure,
    outcomes_of,
    raised_outcomes,
    retry_of_ours,
)
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of, facts_of_many

log = logging.getLogger(__name__)

T = TypeVar("T")

TURN_SECONDS = 0.001
"""A worker task yields the loop after this many seconds, for handlers that never await."""
CHECK_SECONDS_MAX = 60.0
"""Longest interval between two checks for overdue handler calls."""
CANCELLED_SECONDS = 5.0
"""At the end, wait this long for cancelled calls that do not stop."""
HANDED_ON_SECONDS = 10.0
"""Delay before messages of a bypassed call are delivered again (Apache's client: delay level 3)."""


SHORT_SECONDS = 0.05
"""If recent calls took longer per message, there is no series."""
SERIES_SECONDS = 0.4
"""A series is so short that its last message begins about within this time."""
PATIENCE_SECONDS = 0.01
"""How long messages wait for a busy worker task."""
EAGER = 2
"""Number of worker tasks that are used without waiting."""
_WEIGHT = 0.1
"""Weight of the last call in the mean."""

_queue_of = attrgetter("queue")
_properties_of = attrgetter("properties")


class HandlerPool:
    """Decides how many handler calls run, and how many messages each gets. Pure.

    Handing over a message has a fixed cost: the round trip of a claim, a wake-up of the handler's
    thread and one of the loop. Together that costs more than a short handler. So while calls are
    short, only two run, and new messages wait a moment until one of these is free. That one takes
    several of them (a series) and handles them one after another. If none becomes free, all worker
    tasks are used. A long call would delay the rest of its series: then each message gets a worker
    task of its own.

    Args:
        subscription: has the concurrency, batch and series.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._concurrency = subscription.concurrency
        self._batch = subscription.batch
        self._series = subscription.series
        self._seconds = 1.0  # mean time of a message, recent calls first; long at the start

    def note_call(self, seconds: float, messages: int) -> None:
        """Note the time of a call and its number of messages."""
        self._seconds += (seconds / messages - self._seconds) * _WEIGHT

    @property
    def mean_seconds(self) -> float:
        """The mean time of a message, recent calls first; a second at the start."""
        return self._seconds

    @property
    def may_take_series(self) -> bool:
        """Whether a call may get a series of messages now."""
        return self._series > 1 and self._seconds <= SHORT_SECONDS

    def wanted(self, running: int, *, is_late: bool) -> int:
        """Return how many calls may run: at least `running`; all if messages waited too long."""
        if is_late or not self.may_take_series:
            return self._concurrency
        return min(self._concurrency, max(EAGER, running))

    def share(self, ready: int, free: int) -> int:
        """Return how many of `ready` messages one of the `free` worker tasks gets."""
        if not self.may_take_series:
            return self._batch
        return max(1, min(self._series_max, -(-ready // free)))

    @property
    def _series_max(self) -> int:
        if self._series * self._seconds <= SERIES_SECONDS:
            return self._series
        return int(SERIES_SECONDS / self._seconds)


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


class RunsFlows(Protocol):
    """What the worker tasks need from the client."""

    @property
    def lease_clock(self) -> Callable[[], float]:
        """The clock of locks and leases; it advances while the machine sleeps."""

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""


class AsyncHandlerPool:
    """Handles the messages of one consumer group.

    Invariant: exactly one call, or its settling, decides about a running message.

    Args:
        client: runs the flows.
        group: provides the messages.
        handler: gets the messages. A coroutine function runs on the loop, another one in threads.
    """

    def __init__(self, client: RunsFlows, group: ConsumerGroup, handler: AnyHandler) -> None:
        self._client = client
        self._lease_clock = client.lease_clock
        self._group = group
        self._threads: Threads | None = None
        self._concurrency = group.subscription.concurrency
        self._limit = group.subscription.handling_seconds
        if is_asynchronous(handler):
            self._handler = cast("Handler", handler)
        else:  # twice as many: each hung call may be bypassed once
            self._threads = Threads(2 * self._concurrency, f"rmq-{group.name}")
            self._handler = self._threads.wrapped(handler)
        self.choice = HandlerPool(group.subscription)
        self._is_choosy = group.subscription.series > 1
        #: set after each call
        self.handled = asyncio.Event()
        self._calls: dict[asyncio.Task[None], HandlerCall] = {}
        self._bypassed = 0
        self._settling: set[asyncio.Task[None]] = set()
        self._apart: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._more_tasks_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def accepts(self) -> bool:
        """Whether handler calls may begin; False after the consumer begins to close."""
        return not self._closed

    @property
    def calls(self) -> list[HandlerCall]:
        """The running calls."""
        return list(self._calls.values())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The running worker tasks."""
        return list(self._calls)

    @property
    def check_seconds(self) -> float:
        """Seconds between two calls of `check`."""
        return min(CHECK_SECONDS_MAX, self._limit / 10)

    def pump(self, running: int | None = None, *, is_late: bool = False) -> None:
        """Start worker tasks while there are messages and free slots.

        Args:
            running: number of running calls a moment ago; None: as many as now.
            is_late: whether messages have waited for a slot long enough.
        """
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        wanted = self._wanted(len(self._calls) if running is None else running, is_late=is_late)
        while (free := wanted - len(self._calls)) > 0:
            messages = self._group.take_ready(self._lease_clock(), self._share(free))
            if not messages:
                return
            # Not by the loop's factory: an eager task would run before its call is recorded.
            worker = asyncio.Task(self._work(messages), loop=loop)
            self._calls[worker] = HandlerCall(self._group, messages, loop.time())
            worker.add_done_callback(self._worker_ended)
        if self._is_choosy and wanted < self._wanted(0, is_late=True) and self._group.ready:
            self._plan_more_tasks()

    def wake(self) -> None:
        """Make due messages ready, and set a timer for the next held one."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._group.wake(loop.time())
        if due is not None and not self._closed:
            self._timer = loop.call_at(due, self.wake)
        self.pump()

    async def check(self) -> None:
        """Find overdue handler calls, and cancel or bypass them."""
        now = asyncio.get_running_loop().time()
        for worker, call in list(self._calls.items()):
            if not call.is_over(self._limit, now):
                continue
            is_new, call.is_overdue = not call.is_overdue, True
            waiting = "" if call.is_bypassed else self._bypass(worker, call, is_new=is_new)
            if is_new or waiting or self._group.subscription.ordered:
                client_events.HANDLER_OVERDUE.log(
                    log,
                    group=self._group.name,
                    limit_seconds=self._limit,
                    seconds=now - call.begun,
                    **facts_of_many(call.messages),
                    consequence=waiting,
                )

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that calls `handle_apart`; closing waits for it as for handler calls."""
        task = asyncio.create_task(work)
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)

    async def handle_apart(self, message: ReceivedMessage) -> Outcome:
        """Handle one message now, outside of all queues, and return the outcome.

        Raises:
            Exception: the handler's exception.
        """
        (outcome,) = await outcomes_of(self._handler((message,)), 1)
        return outcome

    async def finish(self) -> None:
        """Start no more calls. Wait for running ones, for `close_timeout_seconds` at most."""
        self._closed = True
        for timer in (self._timer, self._more_tasks_timer):
            if timer is not None:
                timer.cancel()
        running = [*self._calls, *self._apart]
        if not running:
            return
        timeout = self._group.settings.close_timeout_seconds
        _, late = await asyncio.wait(running, timeout=timeout)
        if late := late - self._apart:
            client_events.HANDLERS_CUT_OFF.log(
                log,
                group=self._group.name,
                calls=len(late),
                seconds=timeout,
                rest="" if self._threads is None else ", though their threads cannot be stopped",
            )

    async def close(self) -> None:
        """Cancel running calls; leave handlers that ignore the cancellation."""
        self._closed = True
        tasks = [*self._calls, *self._settling, *self._apart]
        for task in tasks:
            task.cancel()
        if tasks:
            patience = min(CANCELLED_SECONDS, self._group.settings.close_timeout_seconds)
            _, stubborn = await asyncio.wait(tasks, timeout=patience)
            if stubborn:
                client_events.HANDLERS_IGNORE_CANCEL.log(
                    log, group=self._group.name, calls=len(stubborn)
                )
        if self._threads is not None:
            self._threads.close()

    def _wanted(self, running: int, *, is_late: bool) -> int:
        """Return how many calls may run: one more per bypassed call, up to double concurrency."""
        wanted = self._concurrency
        if self._is_choosy:
            wanted = self.choice.wanted(max(running - self._bypassed, 0), is_late=is_late)
        return wanted + min(self._bypassed, self._concurrency)

    def _share(self, free: int) -> int | None:
        if not self._is_choosy or not self.choice.may_take_series:
            return None
        return self.choice.share(self._group.ready, free)

    async def _work(self, messages: Sequence[ReceivedMessage]) -> None:
        """Run a worker task: handle `messages`, then more, until no messages are left."""
        loop = asyncio.get_running_loop()
        worker = cast("asyncio.Task[None]", asyncio.current_task())
        turn = time.monotonic()  # the loop's own clock may not advance within one of its turns
        while messages:
            call = self._calls[worker]
            await self._handle(worker, call)
            self.handled.set()
            if time.monotonic() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = time.monotonic()
            free = self._wanted(len(self._calls), is_late=False) - len(self._calls) + 1
            if self._closed or free < 1:
                return
            if len(messages) > 1:
                self.pump()  # after several messages, more than one may be ready now
            messages = self._group.take_ready(self._lease_clock(), self._share(free))
            if messages:
                self._calls[worker] = HandlerCall(self._group, messages, loop.time())

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        running = len(self._calls)
        call = self._calls.pop(worker)
        if worker.cancelled() and not call.goes_on:
            self._take_back(call)
        self.handled.set()
        if not worker.cancelled() and (bug := worker.exception()) is not None:
            client_events.DELIVERY_BROKEN.log(log, traceback_of=bug, group=self._group.name)
        self.pump(running)

    def _take_back(self, call: HandlerCall) -> None:
        """Hold the unsettled messages of a cancelled call: no handler has them any more."""
        now = asyncio.get_running_loop().time()
        for message in call.messages:
            assigned = call.queue_of(message)
            if assigned is not None and assigned.is_running(message.queue_offset):
                assigned.postpone(message.queue_offset, now, counts=False)

    async def _handle(self, worker: asyncio.Task[None], call: HandlerCall) -> None:
        messages = call.messages
        try:
            outcomes = await self._outcomes(worker, call)
        finally:
            call.has_ended = True
            if call.is_bypassed:
                self._bypassed -= 1
        now = asyncio.get_running_loop().time()
        seconds = now - call.begun
        self.choice.note_call(seconds, len(messages))
        if call.released_count:
            client_events.HANDLER_ENDED_LATE.log(
                log,
                group=self._group.name,
                seconds=seconds,
                **facts_of_many(messages),
                released=call.released_count,
            )
        rest: list[tuple[ReceivedMessage, Outcome]] = []
        for message, outcome in zip(messages, outcomes, strict=True):
            assigned = call.queue_of(message)
            if assigned is not None and isinstance(outcome, Consumed):
                assigned.finish(message.queue_offset)
            else:
                rest.append((message, outcome))
        if rest:
            call.restore()
        failed = sum(is_failure(outcome) for _, outcome in rest)
        rates = self._group.rates_of(messages[0].queue.topic, call.begun)
        rates.handled(len(messages) - len(rest), failed, seconds, now)
        for message, outcome in rest:  # last, because it may wait for a broker
            assigned = call.queue_of(message)
            if assigned is not None:
                await self._settle(assigned, message, outcome)

    async def _outcomes(self, worker: asyncio.Task[None], call: HandlerCall) -> Sequence[Outcome]:
        call.is_called = True
        try:
            handling = self._handler(call.messages)
            if self._threads is None:
                handling = _in_its_own_context(cast("Coroutine[Any, Any, Any]", handling))
            return checked_outcomes(await handling, len(call.messages))
        except asyncio.CancelledError as error:
            if self._closed:
                call.goes_on = isinstance(error, HandlerStillRunning)
                raise
            reason = "the handler was cancelled from within"
            if call.is_overdue:
                reason = f"the handler took longer than {self._limit:g} s"
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
            while worker.cancelling() and not self._closed:
                worker.uncancel()  # the call was cancelled, not the worker task
        return [Retry(reason=reason)] * len(call.messages)

    def _are_given_up(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Whether a failure of these messages is their last one."""
        most = self._group.subscription.max_attempts
        return all(message.reconsume_times + 1 >= most for message in messages)

    async def _settle(
        self, assigned: AssignedQueue, message: ReceivedMessage, outcome: Outcome
    ) -> None:
        try:
            await self._client.run(settle(self._group, assigned, message, outcome))
        except Exception:  # noqa: BLE001 - a bug must not leave the message running for ever
            client_events.MESSAGE_NOT_SETTLED.log(
                log, traceback_of=True, group=self._group.name, **facts_of(message)
            )
            if assigned.is_running(message.queue_offset):
                pause = self._group.settings.settle_retry_seconds
                until = asyncio.get_running_loop().time() + pause
                assigned.postpone(message.queue_offset, until, counts=False)
        self.handled.set()
        self.wake()

    def _bypass(self, worker: asyncio.Task[None], call: HandlerCall, *, is_new: bool) -> str:
        """Cancel a call; if that is impossible, bypass it. Return a text for the log."""
        if self._threads is None and is_new:
            worker.cancel()
            return "; it is cancelled"
        call.is_bypassed = True
        self._bypassed += 1
        handed_on = call.release_unfinished()
        if handed_on:
            task = asyncio.create_task(self._retry_released(handed_on))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
        if self._bypassed >= 2 * self._concurrency:
            client_events.HANDLERS_ALL_HANG.log(log, group=self._group.name)
        self.pump()
        kept = len(call.messages) - len(handed_on)
        return f"; {len(handed_on)} are delivered again" + (
            f", {kept} with ordering keys wait for it" if kept else ""
        )

    async def _retry_released(self, taken: Sequence[tuple[AssignedQueue, ReceivedMessage]]) -> None:
        reason = f"the handler took longer than {self._limit:g} s"
        for assigned, message in taken:
            if not assigned.is_given_back:
                wait = self._group.subscription.retry_wait(message.reconsume_times)
                outcome = retry_of_ours(wait or HANDED_ON_SECONDS, reason=reason)
                await self._settle(assigned, message, outcome)

    def _plan_more_tasks(self) -> None:
        """Use more worker tasks if none of the running ones becomes free soon."""
        if self._more_tasks_timer is None:
            loop = asyncio.get_running_loop()
            self._more_tasks_timer = loop.call_later(PATIENCE_SECONDS, self._add_tasks)

    def _add_tasks(self) -> None:
        self._more_tasks_timer = None
        self.pump(is_late=True)


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
