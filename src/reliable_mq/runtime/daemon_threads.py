"""A pool of daemon threads: a call that hangs does not keep the process alive.

It receives calls and returns their futures. A `ThreadPoolExecutor` is not enough: at its end the
interpreter joins each of its threads, even after `shutdown`. So a worker with a hung handler never
ended.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Call(NamedTuple):
    """A function to call, what with, and the future of its result."""

    future: Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    names: dict[str, Any]


_Calls = SimpleQueue[_Call | None]  # None: no more calls


class DaemonThreads(Executor):
    """Runs calls in at most `count` threads. Threads are started when they are needed.

    After `shutdown(wait=False)`, neither the caller nor the end of the process waits for running
    calls. A pool without a shutdown finishes its calls before the interpreter ends.

    Args:
        count: how many calls run at the same time; further calls wait.
        name: prefix of the threads' names.
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
        weakref.finalize(self, self._calls.put, None).atexit = False  # ends threads of a lost pool
        _open_pools.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in a thread; return the future of its result or exception.

        Raises:
            RuntimeError: when the pool is shut down.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this pool of threads is shut down")
            self._calls.put(_Call(future, fn, args, kwargs))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                self._begin_thread()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new calls. Each thread ends after its current calls.

        Args:
            wait: return only after all threads have ended.
            cancel_futures: cancel calls that have not begun.
        """
        if self._process != os.getpid():  # the threads run only in the parent
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
        words = (self._calls, self._idle)  # not the pool itself, so that it can be garbage
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_serve, args=words, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


def _run(call: _Call) -> None:
    if not call.future.set_running_or_notify_cancel():
        return
    try:
        result = call.function(*call.args, **call.names)
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        call.future.set_exception(error)
    else:
        call.future.set_result(result)


def _serve(calls: _Calls, idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        _run(call)
        del call  # do not keep the last call's arguments during the wait
        idle.release()
    calls.put(None)  # ends the next thread too


_open_pools: weakref.WeakSet[DaemonThreads] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    for pool in list(_open_pools):
        pool.shutdown()
