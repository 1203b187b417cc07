"""The hands of one consumer on an event loop: they take messages, call the handler and settle.

A hand is a task that goes on as long as it finds messages. How many there are is said by
`HandlerPool`, which messages may run by the group, what becomes of them by flows. A handler call
that takes too long is ended, or bypassed where that cannot be: see `HandlerCall`.
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
"""A hand lets others have the loop after so long; handlers that never wait would keep it."""
CHECK_SECONDS_MAX = 60.0
"""Handler calls that take too long are looked for at least so often."""
CANCELLED_SECONDS = 5.0
"""At the end nobody waits longer for a call that was cancelled and goes on."""
HANDED_ON_SECONDS = 10.0
"""So late comes again what was handed on (Apache's client: delay level 3)."""


class RunsFlows(Protocol):
    """What the hands need of the client."""

    @property
    def lease_clock(self) -> Callable[[], float]:
        """Tells the time by which locks and leases age; it goes on while the machine sleeps."""

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end."""


class AsyncHandlerPool:
    """Handles the messages of one consumer group.

    Invariant: of a message that runs exactly one call has the say, or its settling.

    Args:
        client: runs the flows.
        group: where messages are taken.
        handler: gets the messages; a coroutine function runs on the loop, another one in threads.
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
        else:  # twice as many: each call that hangs may be bypassed once
            self._threads = Threads(2 * self._concurrency, f"rmq-{group.name}")
            self._handler = self._threads.wrapped(handler)
        self.choice = HandlerPool(group.subscription)
        self._is_choosy = group.subscription.series > 1
        #: set whenever a call has ended
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
        """Whether handler calls may begin; when the consumer closes, none may any more."""
        return not self._closed

    @property
    def calls(self) -> list[HandlerCall]:
        """The calls that run now."""
        return list(self._calls.values())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The hands that are at work now."""
        return list(self._calls)

    @property
    def check_seconds(self) -> float:
        """How often `check` should be called."""
        return min(CHECK_SECONDS_MAX, self._limit / 10)

    def pump(self, running: int | None = None, *, is_late: bool = False) -> None:
        """Start handler calls while there are messages and hands for them.

        Args:
            running: how many calls ran a moment ago; None: as many as now.
            is_late: messages waited for a hand long enough.
        """
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        wanted = self._wanted(len(self._calls) if running is None else running, is_late=is_late)
        while (free := wanted - len(self._calls)) > 0:
            messages = self._group.take(self._lease_clock(), self._share(free))
            if not messages:
                return
            # Not by the loop's factory: an eager task would look for its call before it is there.
            hand = asyncio.Task(self._work(messages), loop=loop)
            self._calls[hand] = HandlerCall(self._group, messages, loop.time())
            hand.add_done_callback(self._hand_ended)
        if self._is_choosy and wanted < self._wanted(0, is_late=True) and self._group.ready:
            self._be_patient()

    def wake(self) -> None:
        """Make held messages ready that are due, and come back when the next one is."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._group.wake(loop.time())
        if due is not None and not self._closed:
            self._timer = loop.call_at(due, self.wake)
        self.pump()

    async def check(self) -> None:
        """Look for handler calls that take too long: end them, or go on without them."""
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
        """Begin what calls `handle_apart`; the end waits for it as for other handler calls."""
        task = asyncio.create_task(work)
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)

    async def handle_apart(self, message: ReceivedMessage) -> Outcome:
        """Have one message handled now, apart from all queues, and return what comes of it.

        Raises:
            Exception: what the handler raises.
        """
        (outcome,) = await outcomes_of(self._handler((message,)), 1)
        return outcome

    async def finish(self) -> None:
        """Start nothing more, and wait for what runs, at most for the setting `close_timeout`."""
        self._closed = True
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        running = [*self._calls, *self._apart]
        if not running:
            return
        timeout = self._group.settings.close_timeout
        _, late = await asyncio.wait(running, timeout=timeout)
        if late := late - self._apart:
            log.warning(
                "group %s: %d handler calls did not end within %g s; their messages are delivered"
                " again%s",
                *(self._group.name, len(late), timeout),
                "" if self._threads is None else ", though their threads cannot be stopped",
            )

    async def close(self) -> None:
        """Cancel what still runs; a handler that will not be cancelled is left alone."""
        self._closed = True
        tasks = [*self._calls, *self._settling, *self._apart]
        for task in tasks:
            task.cancel()
        if tasks:
            patience = min(CANCELLED_SECONDS, self._group.settings.close_timeout)
            _, stubborn = await asyncio.wait(tasks, timeout=patience)
            if stubborn:
                log.warning(
                    "group %s: %d handler calls were cancelled and go on all the same; what they"
                    " come to counts for nothing",
                    *(self._group.name, len(stubborn)),
                )
        if self._threads is not None:
            self._threads.close()

    def _wanted(self, running: int, *, is_late: bool) -> int:
        """Return how many calls may run, with one more for each that is bypassed, up to twice."""
        wanted = self._concurrency
        if self._is_choosy:
            wanted = self.choice.wanted(max(running - self._bypassed, 0), is_late=is_late)
        return wanted + min(self._bypassed, self._concurrency)

    def _share(self, free: int) -> int | None:
        if not self._is_choosy or not self.choice.gives_series:
            return None
        return self.choice.share(self._group.ready, free)

    async def _work(self, messages: Sequence[ReceivedMessage]) -> None:
        """Be a hand: handle `messages`, then more, as long as there are any."""
        loop = asyncio.get_running_loop()
        hand = cast("asyncio.Task[None]", asyncio.current_task())
        turn = time.monotonic()  # the loop's own clock may stand still until its next turn
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
                self.pump()  # behind several there may be more than one that is ready now
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
            log.error("group %s: a delivery ended badly", self._group.name, exc_info=bug)
        self.pump(running)

    def _take_back(self, call: HandlerCall) -> None:
        """Hold again what a call that was cancelled has not settled: nobody handles it now."""
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
                " out again, its word counts for nothing there",
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
        for message, outcome in rest:  # last, because a broker may keep us waiting
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
        except (Exception, SystemExit) as error:  # `sys.exit` of a handler is no end of the loop
            reason = f"{type(error).__name__}: {error}"
            log.exception("group %s: the handler failed", self._group.name)
        finally:
            while hand.cancelling() and not self._closed:
                hand.uncancel()  # the call was, not the hand
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
        """Cancel a call; when that does not help, go on without it. Return what is to be told."""
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
            log.error("group %s: all its handlers hang, it starts nothing more", self._group.name)
        self.pump()
        kept = len(call.messages) - len(handed_on)
        return f"; {len(handed_on)} are handed out again" + (
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
        """Use the other hands, too, when none of these is free in a moment."""
        if self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        self.pump(is_late=True)


@types.coroutine
def _in_its_own_context(handling: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a handler's coroutine so that the context variables it sets are gone with it.

    A task of its own would do the same and cost more than all else that is done for a message.
    """
    run = contextvars.copy_context().run
    try:
        waited = run(handling.send, None)
        while True:
            try:
                answer = yield waited
            except BaseException as error:  # noqa: BLE001 - it is the handler's to catch
                waited = run(handling.throw, error)
            else:
                waited = run(handling.send, answer)
    except StopIteration as end:
        result: T = end.value
        return result
