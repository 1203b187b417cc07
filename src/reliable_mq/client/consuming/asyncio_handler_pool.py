"""The worker tasks of one consumer on an event loop: they take messages, call the handler, settle.

Worker tasks loop until no messages are left. `HandlerPool` decides how many run; it knows no tasks.
The group decides which messages may run. `CalledHandler` calls the handler, `HandlerCall` decides
whether the outcomes count, and flows decide what follows from them. A hung handler call is
cancelled; where that is impossible, another worker task replaces it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, cast

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.asyncio_handler_call import CalledHandler, HandlerCall
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.settling import settle
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.client.flow import Flow
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Consumed, Outcome, is_failure, retry_of_ours
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
PATIENCE_SECONDS = 0.01
"""How long messages wait for a busy worker task."""


SHORT_SECONDS = 0.05
"""If recent calls took longer per message, there is no series."""
SERIES_SECONDS = 0.4
"""A series is so short that its last message begins about within this time."""
EAGER = 2
"""Number of worker tasks that are used without waiting."""
_WEIGHT = 0.1
"""Weight of the last call in the mean."""


class RunsFlows(Protocol):
    """What the worker tasks need from the client."""

    @property
    def lease_clock(self) -> Callable[[], float]:
        """The clock of locks and leases; it advances while the machine sleeps."""

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""


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
        self._handler = CalledHandler(group, handler)
        self._concurrency = group.subscription.concurrency
        self._limit = group.subscription.handling_seconds
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

    @property
    def accepts(self) -> bool:
        """Whether handler calls may begin; False after the consumer begins to close."""
        return not self._handler.is_closing

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
        if self._handler.is_closing:
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
        if due is not None and not self._handler.is_closing:
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
        return await self._handler.outcome_of(message)

    async def finish(self) -> None:
        """Start no more calls. Wait for running ones, for `close_timeout_seconds` at most."""
        self._handler.is_closing = True
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
                rest=", though their threads cannot be stopped"
                if self._handler.runs_in_threads
                else "",
            )

    async def close(self) -> None:
        """Cancel running calls; leave handlers that ignore the cancellation."""
        self._handler.is_closing = True
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
        self._handler.close()

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
            if self._handler.is_closing or free < 1:
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
            call.hold_unsettled(asyncio.get_running_loop().time())
        self.handled.set()
        if not worker.cancelled() and (bug := worker.exception()) is not None:
            client_events.DELIVERY_BROKEN.log(log, traceback_of=bug, group=self._group.name)
        self.pump(running)

    async def _handle(self, worker: asyncio.Task[None], call: HandlerCall) -> None:
        messages = call.messages
        try:
            outcomes = await self._handler.outcomes(worker, call)
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
        if is_new and not self._handler.runs_in_threads:
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
        reason = self._handler.late_reason
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
