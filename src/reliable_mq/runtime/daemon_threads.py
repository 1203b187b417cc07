"""A pool of threads that keeps no process alive: a call that hangs there hangs alone.

Receives calls; hands back futures of their ends. A `ThreadPoolExecutor` is not enough: at its end
the interpreter waits for each thread of one, shut down or not, so that a worker with a handler that
never returned did not end.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Call:
    """A function to be called, and the future of what it comes to."""

    def __init__(self, future: Future[Any], function: Callable[[], Any]) -> None:
        self.future = future
        self._function = function

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - it belongs to who asked
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


_Calls = SimpleQueue[_Call | None]  # None: there is nothing more to do


class DaemonThreads(Executor):
    """Runs calls in at most `count` threads, which are made when they are needed.

    After `shutdown(wait=False)` nobody waits for what still runs, nor does the end of the process.
    A pool that nobody has shut down finishes what it has before the interpreter ends.

    Args:
        count: how many calls run at once; further ones wait.
        name: leads the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: _Calls = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()
        weakref.finalize(self, self._calls.put, None).atexit = False  # a lost pool's threads end
        _open_pools.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a function called in a thread, and return a future of what it returns or raises.

        Raises:
            RuntimeError: when the pool is shut down.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this pool of threads is shut down")
            self._calls.put(_Call(future, lambda: fn(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                self._begin_thread()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; each thread ends when what it runs has ended.

        Args:
            wait: return when all have.
            cancel_futures: cancel what has not begun.
        """
        if self._process != os.getpid():  # the threads are the parent's
            return
        with self._lock:
            self._is_closed = True
            _open_pools.discard(self)
            if cancel_futures:
                self._cancel_calls()
            self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _cancel_calls(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                return
            if call is not None:
                call.future.cancel()

    def _begin_thread(self) -> None:
        words = (self._calls, self._idle)  # and not the pool, which may be lost
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_serve, args=words, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


def _serve(calls: _Calls, idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call  # while the thread waits for the next one, the last one's words are not kept
        idle.release()
    calls.put(None)  # for the next thread


_open_pools: weakref.WeakSet[DaemonThreads] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    for pool in list(_open_pools):
        pool.shutdown()
