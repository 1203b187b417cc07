"""The worker tasks of one consumer on an event loop: they take messages, call the handler, settle.

Worker tasks loop until no messages are left. `HandlerPool` decides how many run, the group which
messages may run, and flows what follows from an outcome. A hung handler call is cancelled; where
that is impossible, another worker task replaces it: see `HandlerCall`.
"""

import asyncio
import contextvars
import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol, TypeVar, cast

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.handler_call import HandlerCall
from reliable_mq.client.consuming.handler_pool import PATIENCE_SECONDS, HandlerPool
from reliable_mq.client.consuming.settling import settle
from reliable_mq.client.consuming.subscription import Handler
from reliable_mq.client.consuming.thread_handling import (
    AnyHandler,
    HandlerStillRunning,
    Threads,
    is_asynchronous,
)
from reliable_mq.client.flow import Flow
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import (
    Consumed,
    Outcome,
    Retry,
    is_failure,
    outcomes_of,
    retry_of_ours,
)

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
        self._patience: asyncio.TimerHandle | None = None
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
            messages = self._group.take(self._lease_clock(), self._share(free))
            if not messages:
                return
            # Not by the loop's factory: an eager task would run before its call is recorded.
            hand = asyncio.Task(self._work(messages), loop=loop)
            self._calls[hand] = HandlerCall(self._group, messages, loop.time())
            hand.add_done_callback(self._hand_ended)
        if self._is_choosy and wanted < self._wanted(0, is_late=True) and self._group.ready:
            self._be_patient()

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
        for hand, call in list(self._calls.items()):
            if not call.is_over(self._limit, now):
                continue
            is_new, call.is_overdue = not call.is_overdue, True
            waiting = "" if call.is_bypassed else self._bypass(hand, call, is_new=is_new)
            if is_new or waiting or self._group.subscription.ordered:
                log.warning(
                    "group %s: a handler call takes longer than %g s, it began %.0f s ago: %s%s",
                    *(self._group.name, self._limit, now - call.begun, call.ids),
                    waiting,
                )

    def begin_apart(self, work: Coroutine[Any, Any, None]) -> None:
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
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        running = [*self._calls, *self._apart]
        if not running:
            return
        timeout = self._group.settings.close_timeout_seconds
        _, late = await asyncio.wait(running, timeout=timeout)
        if late := late - self._apart:
            log.warning(
                "group %s: %d handler calls did not end within %g s; their messages are delivered"
                " again%s",
                *(self._group.name, len(late), timeout),
                "" if self._threads is None else ", though their threads cannot be stopped",
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
                log.warning(
                    "group %s: %d handler calls ignored their cancellation and still run; their"
                    " outcomes do not count",
                    *(self._group.name, len(stubborn)),
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
        if not self._is_choosy or not self.choice.gives_series:
            return None
        return self.choice.share(self._group.ready, free)

    async def _work(self, messages: Sequence[ReceivedMessage]) -> None:
        """Run a worker task: handle `messages`, then more, until no messages are left."""
        loop = asyncio.get_running_loop()
        hand = cast("asyncio.Task[None]", asyncio.current_task())
        turn = time.monotonic()  # the loop's own clock may not advance within one of its turns
        while messages:
            call = self._calls[hand]
            await self._handle(hand, call)
            self.handled.set()
            if time.monotonic() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = time.monotonic()
            free = self._wanted(len(self._calls), is_late=False) - len(self._calls) + 1
            if self._closed or free < 1:
                return
            if len(messages) > 1:
                self.pump()  # after several messages, more than one may be ready now
            messages = self._group.take(self._lease_clock(), self._share(free))
            if messages:
                self._calls[hand] = HandlerCall(self._group, messages, loop.time())

    def _hand_ended(self, hand: asyncio.Task[None]) -> None:
        running = len(self._calls)
        call = self._calls.pop(hand)
        if hand.cancelled() and not call.goes_on:
            self._take_back(call)
        self.handled.set()
        if not hand.cancelled() and (bug := hand.exception()) is not None:
            log.error("group %s: a delivery failed with a bug", self._group.name, exc_info=bug)
        self.pump(running)

    def _take_back(self, call: HandlerCall) -> None:
        """Hold the unsettled messages of a cancelled call: no handler has them any more."""
        now = asyncio.get_running_loop().time()
        for message in call.messages:
            assigned = call.home(message)
            if assigned is not None and assigned.is_running(message.queue_offset):
                assigned.hold(message.queue_offset, now, counts=False)

    async def _handle(self, hand: asyncio.Task[None], call: HandlerCall) -> None:
        messages = call.messages
        try:
            outcomes = await self._outcomes(hand, call)
        finally:
            call.has_ended = True
            if call.is_bypassed:
                self._bypassed -= 1
        now = asyncio.get_running_loop().time()
        seconds = now - call.begun
        self.choice.note(seconds, len(messages))
        if call.handed_on:
            log.warning(
                "group %s: a handler call ended after %.0f s; %d of its messages had been handed"
                " out again, and its outcomes do not count for these",
                *(self._group.name, seconds, call.handed_on),
            )
        rest: list[tuple[ReceivedMessage, Outcome]] = []
        for message, outcome in zip(messages, outcomes, strict=True):
            assigned = call.home(message)
            if assigned is not None and isinstance(outcome, Consumed):
                assigned.finish(message.queue_offset)
            else:
                rest.append((message, outcome))
        if rest:
            call.restore()
        failed = sum(is_failure(outcome) for _, outcome in rest)
        rates = self._group.rates.of(messages[0].queue.topic, call.begun)
        rates.handled(len(messages) - len(rest), failed, seconds, now)
        for message, outcome in rest:  # last, because it may wait for a broker
            assigned = call.home(message)
            if assigned is not None:
                await self._settle(assigned, message, outcome)

    async def _outcomes(self, hand: asyncio.Task[None], call: HandlerCall) -> Sequence[Outcome]:
        call.is_called = True
        try:
            handling = self._handler(call.messages)
            if self._threads is None:
                handling = _in_its_own_context(cast("Coroutine[Any, Any, Any]", handling))
            return await outcomes_of(handling, len(call.messages))
        except asyncio.CancelledError as error:
            if self._closed:
                call.goes_on = isinstance(error, HandlerStillRunning)
                raise
            reason = "the handler was cancelled from within"
            if call.is_overdue:
                reason = f"the handler took longer than {self._limit:g} s"
            log.warning("group %s: %s", self._group.name, reason)
        except (Exception, SystemExit) as error:  # `sys.exit` in a handler must not end the loop
            reason = f"{type(error).__name__}: {error}"
            log.exception("group %s: the handler failed", self._group.name)
        finally:
            while hand.cancelling() and not self._closed:
                hand.uncancel()  # the call was cancelled, not the worker task
        return [Retry(reason=reason)] * len(call.messages)

    async def _settle(
        self, assigned: AssignedQueue, message: ReceivedMessage, outcome: Outcome
    ) -> None:
        try:
            await self._client.run(settle(self._group, assigned, message, outcome))
        except Exception:  # a bug must not leave the message running for ever
            log.exception("group %s: %s was not settled", self._group.name, message.message_id)
            if assigned.is_running(message.queue_offset):
                pause = self._group.settings.settle_retry_seconds
                until = asyncio.get_running_loop().time() + pause
                assigned.hold(message.queue_offset, until, counts=False)
        self.handled.set()
        self.wake()

    def _bypass(self, hand: asyncio.Task[None], call: HandlerCall, *, is_new: bool) -> str:
        """Cancel a call; if that is impossible, bypass it. Return a text for the log."""
        if self._threads is None and is_new:
            hand.cancel()
            return "; it is cancelled"
        call.is_bypassed = True
        self._bypassed += 1
        handed_on = call.hand_on()
        if handed_on:
            task = asyncio.create_task(self._hand_on(handed_on))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
        if self._bypassed >= 2 * self._concurrency:
            log.error("group %s: all its handlers hang, no call can start", self._group.name)
        self.pump()
        kept = len(call.messages) - len(handed_on)
        return f"; {len(handed_on)} are delivered again" + (
            f", {kept} with ordering keys wait for it" if kept else ""
        )

    async def _hand_on(self, taken: Sequence[tuple[AssignedQueue, ReceivedMessage]]) -> None:
        reason = f"the handler took longer than {self._limit:g} s"
        for assigned, message in taken:
            if not assigned.is_given_back:
                wait = self._group.subscription.retry_wait(message.reconsume_times)
                outcome = retry_of_ours(wait or HANDED_ON_SECONDS, reason=reason)
                await self._settle(assigned, message, outcome)

    def _be_patient(self) -> None:
        """Use more worker tasks if none of the running ones becomes free soon."""
        if self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
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
