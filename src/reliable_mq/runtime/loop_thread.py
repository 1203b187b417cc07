"""An event loop in a thread of its own, for callers that have none."""

import asyncio
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import uvloop

from reliable_mq.errors import ForkedClient, UsageError, closed, closed_meanwhile
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.forks import call_in_child, leave_to_parent
from reliable_mq.runtime.thread_future import ThreadFuture

T = TypeVar("T")

log = limited_log(__name__)

END_SECONDS = 5.0
"""At the end nobody waits longer for a task that was cancelled and goes on."""


async def on_loop(function: Callable[[], T]) -> T:
    """Call a function that must not run beside the loop; for `LoopThread.run`."""
    return function()


class LoopThread:
    """Runs coroutines on a uvloop loop in a background thread.

    The thread is a daemon: it never keeps a program alive that forgot to close it.

    Args:
        name: the thread's name, as debuggers show it.
    """

    def __init__(self, name: str = "reliable-mq") -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._closed = False
        self._has_stopped = False
        self._ending = threading.RLock()  # what was taken before the end is cancelled at the end
        self._errands: set[ThreadFuture[Any]] = set()  # threads wait for them
        self._process = os.getpid()
        self._thread.start()
        call_in_child(self._leave_to_parent)

    @property
    def is_alive(self) -> bool:
        """Whether the loop serves; False after `close`, or when something has ended its thread."""
        return not self._closed and self._thread.is_alive()

    @property
    def is_closed(self) -> bool:
        """Whether the loop takes nothing more: it was closed, or something has ended it."""
        return self._closed

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that started the thread, which is not here."""
        return self._process != os.getpid()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return a future of its result.

        Raises:
            ForkedClient: when another process has started the thread, of which this is a fork.
            UsageError: when the loop is closed, when something has ended its thread, or when the
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
        """Call a function on the loop, behind what was submitted before; nobody hears of its end.

        Raises:
            ForkedClient: when another process has started the thread, of which this is a fork.
            UsageError: when the loop is closed, when something has ended its thread, or when the
                interpreter is ending.
        """
        self._refuse_foreign()
        self._refuse_ending()
        with self._ending:
            self._refuse_dead()
            self._loop.call_soon_threadsafe(function, *words)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result; it is cancelled when the wait is.

        Raises:
            ForkedClient: when another process has started the thread, of which this is a fork.
            UsageError: when the loop is closed, when this is the loop's own thread, which would
                wait for itself, or when the interpreter is ending.
            ConnectionLost: when the loop is closed meanwhile.
        """

        def begin(errand: "ThreadFuture[T]") -> None:  # quoted: see `_refuse_ending`
            errand.follow(self._loop.create_task(coroutine))

        try:
            return self.ask(begin)
        except UsageError:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # it was refused
                coroutine.close()
            raise

    def check_caller(self) -> None:
        """Check that the calling thread may wait for something here.

        Raises:
            ForkedClient: when another process has started the thread, of which this is a fork.
            UsageError: when the loop is closed, when this is the loop's own thread, which would
                wait for itself, or when the interpreter is ending.
        """
        if threading.get_ident() == self._thread.ident:
            raise UsageError("a synchronous call on the event loop's own thread waits for ever")
        self._refuse_foreign()
        self._refuse_ending()
        self._refuse_dead()

    def ask(self, begin: Callable[[ThreadFuture[T]], None]) -> T:
        """Have the loop call `begin` with an errand, and return what that comes to.

        When the wait is interrupted, what the errand depends on is cancelled.

        Raises:
            ForkedClient: when another process has started the thread, of which this is a fork.
            UsageError: when the loop is closed, when this is the loop's own thread, which would
                wait for itself, or when the interpreter is ending.
            ConnectionLost: when the loop is closed meanwhile.
        """
        self.check_caller()
        errand: ThreadFuture[T] = ThreadFuture()
        try:  # from here on: an interrupt can come between the call and the wait
            with self._ending:
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
        """Cancel what nobody waits for any more."""
        with self._ending:
            if not (errand.is_over or self._closed):
                self._loop.call_soon_threadsafe(errand.cancel)

    def close(self) -> None:
        """Cancel what still runs, stop the loop and end the thread; again: wait for that.

        It does nothing where the thread is not, or does not run any more: in a fork, and when the
        interpreter ends.
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
        """Raise when the interpreter is ending.

        On the way here nothing may be imported. A generic type with an argument imports when it is
        evaluated (CPython 3.13), so annotations of functions inside functions are quoted there.
        """
        if sys.is_finalizing():  # daemons do not run any more: who waits for one waits for ever
            raise UsageError(
                "the interpreter is ending, and the client's thread with it: use and close a client"
                " before, not in a __del__ that runs then"
            )

    def _refuse_dead(self) -> None:
        if self._closed:
            raise closed("client")

    def _leave_to_parent(self) -> None:
        """Keep a forked child from closing descriptors of the loop: the parent waits on them."""
        leave_to_parent(self._loop, self._thread)

    def _stop(self) -> None:
        if not self._has_stopped:  # by itself, a moment before it was closed
            self._loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException:  # SystemExit or KeyboardInterrupt of a task or callback
            log.critical("the event loop has ended, nothing is served any more", exc_info=True)
        with self._ending:
            self._closed = self._has_stopped = True
        try:
            self._loop.run_until_complete(_end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            for errand in self._errands.copy():  # tasks that were not cancelled
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
    """Cancel all tasks, also those that were submitted a moment ago, and wait for their end."""
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, stubborn = await asyncio.wait(tasks, timeout=END_SECONDS)
    for task in ended:
        if not task.cancelled():
            task.exception()  # looked at: it is the cancelled one's own affair
    if stubborn:
        log.warning("%d tasks will not be cancelled: they stop where they are", len(stubborn))
