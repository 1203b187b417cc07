"""An event loop in a thread of its own, for callers that have none.

A thread gives the loop an errand, and waits for its result. A `concurrent.futures.Future` supports
any number of waiters, with a condition and several locks. Here one thread waits, on one lock.
"""

import asyncio
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

import uvloop

from reliable_mq.errors import ForkedClient, UsageError, closed, closed_meanwhile
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.forks import call_in_child, leave_to_parent
from reliable_mq.telemetry import client_events

T = TypeVar("T")

log = limited_log(__name__)

END_SECONDS = 5.0
"""At the end, wait this long for cancelled tasks that do not stop."""


async def on_loop(function: Callable[[], T]) -> T:
    """Call a function that must run on the loop; for `LoopThread.run`."""
    return function()


class ThreadFuture(Generic[T]):
    """A future with one waiting thread and one event loop that completes it.

    C8: it completes once; later results are dropped. `wait` returns only after completion, or
    raises the exception that interrupts the thread.
    """

    __slots__ = ("_error", "_future", "_gate", "_result", "is_given_up", "is_over")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._result: T
        self._error: BaseException | None = None
        self._future: asyncio.Future[Any] | None = None
        #: whether it is complete
        self.is_over = False
        #: whether the thread has stopped waiting
        self.is_given_up = False

    def set_result(self, result: T) -> None:
        """Complete with a result."""
        if not self.is_over:
            self._result = result
            self._end()

    def set_exception(self, error: BaseException) -> None:
        """Complete with an error; `wait` raises it."""
        if not self.is_over:
            self._error = error
            self._end()

    def depend_on(self, future: "asyncio.Future[Any]") -> None:
        """Cancel this future or task of the loop if the thread stops waiting."""
        self._future = future
        if self.is_given_up:
            future.cancel()

    def follow(self, future: "asyncio.Future[T]") -> None:
        """Complete with the outcome of a future or task of the loop."""
        self._future = future
        future.add_done_callback(self._followed)
        if self.is_given_up:
            future.cancel()

    def cancel(self) -> None:
        """Cancel the future it depends on: the thread has stopped waiting. Call it on the loop."""
        self.is_given_up = True
        if self._future is not None:
            self._future.cancel()

    def wait(self) -> T:
        """Return the result, or raise the error. Only one thread may call it, once.

        Raises:
            concurrent.futures.CancelledError: when the future it follows was cancelled.
        """
        self._gate.acquire()
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:  # breaks the reference cycle of the error, its traceback and this frame
            del self._error

    def _followed(self, future: "asyncio.Future[T]") -> None:
        if future.cancelled():
            self.set_exception(CancelledError())
        elif (error := future.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(future.result())

    def _end(self) -> None:
        self.is_over = True
        self._future = None
        self._gate.release()


class LoopThread:
    """Runs coroutines on a uvloop loop in a background thread.

    The thread is a daemon: a program that forgets to close it can still end.

    Args:
        name: the thread's name, as debuggers show it.
    """

    def __init__(self, name: str = "reliable-mq") -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._closed = False
        self._has_stopped = False
        self._ending = threading.RLock()  # errands accepted before the end are cancelled at the end
        self._errands: set[ThreadFuture[Any]] = set()  # errands that a thread waits for
        self._process = os.getpid()
        self._thread.start()
        call_in_child(self._leave_to_parent)

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs; False after `close`, or when an exception has ended its thread."""
        return not self._closed and self._thread.is_alive()

    @property
    def is_closed(self) -> bool:
        """Whether the loop refuses new work: it is closed, or an exception has ended its thread."""
        return self._closed

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork: the thread runs only in the parent."""
        return self._process != os.getpid()

    def answers(self, seconds: float) -> bool:
        """Return whether the loop does a small errand within so many seconds."""
        try:
            self.submit(on_loop(lambda: None)).result(seconds)
        except (TimeoutError, UsageError):
            return False
        return True

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return a future of its result.

        Raises:
            ForkedClient: when this process is a fork of the process that started the thread.
            UsageError: when the loop is closed, when an exception has ended its thread, or when the
                interpreter is ending.
        """
        try:
            self._refuse_foreign()
            self._refuse_ending()
            with self._ending:
                self._refuse_dead()
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except UsageError:
            coroutine.close()
            raise

    def call_soon(self, function: Callable[..., object], *words: object) -> None:
        """Call a function on the loop, after all earlier calls. Its result is dropped.

        Raises:
            ForkedClient: when this process is a fork of the process that started the thread.
            UsageError: when the loop is closed, when an exception has ended its thread, or when the
                interpreter is ending.
        """
        self._refuse_foreign()
        self._refuse_ending()
        with self._ending:
            self._refuse_dead()
            self._loop.call_soon_threadsafe(function, *words)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. An interrupted wait cancels it.

        Raises:
            ForkedClient: when this process is a fork of the process that started the thread.
            UsageError: when the loop is closed, when called on the loop's own thread, or when the
                interpreter is ending.
            ConnectionLost: when the loop is closed meanwhile.
        """

        def begin(errand: "ThreadFuture[T]") -> None:  # quoted: see `_refuse_ending`
            errand.follow(self._loop.create_task(coroutine))

        try:
            return self.ask(begin)
        except UsageError:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # it was never started
                coroutine.close()
            raise

    def check_caller(self) -> None:
        """Check that the calling thread may wait for the loop.

        Raises:
            ForkedClient: when this process is a fork of the process that started the thread.
            UsageError: when the loop is closed, when called on the loop's own thread, or when the
                interpreter is ending.
        """
        if threading.get_ident() == self._thread.ident:
            raise UsageError(
                "a synchronous call on the event loop's own thread would wait for ever: await the "
                "call of AsyncClient instead"
            )
        self._refuse_foreign()
        self._refuse_ending()
        self._refuse_dead()

    def ask(self, begin: Callable[[ThreadFuture[T]], None]) -> T:
        """Have the loop call `begin` with an errand; return the errand's result.

        If the wait is interrupted, the future that the errand depends on is cancelled.

        Raises:
            ForkedClient: when this process is a fork of the process that started the thread.
            UsageError: when the loop is closed, when called on the loop's own thread, or when the
                interpreter is ending.
            ConnectionLost: when the loop is closed meanwhile.
        """
        if (
            self._closed
            or self._process != os.getpid()
            or sys.is_finalizing()
            or threading.get_ident() == self._thread.ident
        ):
            self.check_caller()
        errand: ThreadFuture[T] = ThreadFuture()
        try:  # an interrupt may arrive between the call and the wait
            with self._ending:
                if self._closed:
                    self._refuse_dead()
                self._errands.add(errand)
                self._loop.call_soon_threadsafe(_run_errand, begin, errand)
            return errand.wait()
        except CancelledError:
            if not self._closed:
                raise
            raise closed_meanwhile() from None
        except BaseException:
            self._give_up(errand)
            raise
        finally:
            self._errands.discard(errand)

    def _give_up(self, errand: ThreadFuture[Any]) -> None:
        """Cancel an errand that no thread waits for any more."""
        with self._ending:
            if not (errand.is_over or self._closed):
                self._loop.call_soon_threadsafe(errand.cancel)

    def close(self) -> None:
        """Cancel all tasks, stop the loop and end the thread. A second call waits for that end.

        It does nothing when the thread does not run: in a fork, and when the interpreter ends.
        """
        if self.is_foreign or sys.is_finalizing():
            return
        with self._ending:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _refuse_foreign(self) -> None:
        if self.is_foreign:
            raise ForkedClient(
                f"this client was started in process {self._process} and is used in {os.getpid()}:"
                " make and start a client there, after the fork"
            )

    def _refuse_ending(self) -> None:
        """Raise UsageError when the interpreter is ending.

        Code on the way here must not import. Evaluating a generic type with an argument imports a
        module (CPython 3.13), so annotations of nested functions are quoted.
        """
        if sys.is_finalizing():  # daemon threads do not run any more: a wait would last for ever
            raise UsageError(
                "the interpreter is ending, and the client's thread has ended: close the client"
                " earlier, not in a __del__"
            )

    def _refuse_dead(self) -> None:
        if self._closed:
            raise closed("client")

    def _leave_to_parent(self) -> None:
        """Keep a forked child from closing the loop's descriptors: the parent still uses them."""
        leave_to_parent(self._loop, self._thread)

    def _stop(self) -> None:
        if not self._has_stopped:  # an exception has stopped it a moment before `close`
            self._loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException:  # noqa: BLE001 - SystemExit or KeyboardInterrupt of a task or callback
            client_events.LOOP_ENDED.log(log, traceback_of=True)
        with self._ending:
            self._closed = self._has_stopped = True
        try:
            self._loop.run_until_complete(_end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            for errand in self._errands.copy():  # errands of tasks that ignored their cancellation
                errand.set_exception(CancelledError())


def _run_errand(begin: Callable[[ThreadFuture[T]], None], errand: ThreadFuture[T]) -> None:
    try:
        begin(errand)
    except Exception as error:  # noqa: BLE001 - it is the thread's
        errand.set_exception(error)
    except BaseException as error:
        errand.set_exception(error)
        raise


async def _end_tasks() -> None:
    """Cancel all tasks, including those submitted a moment ago, and wait for their end."""
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, stubborn = await asyncio.wait(tasks, timeout=END_SECONDS)
    for task in ended:
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; the task's owner handles it
    if stubborn:
        client_events.TASKS_LEFT.log(log, tasks=len(stubborn))
