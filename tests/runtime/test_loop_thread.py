"""A loop in a thread: results and errors come back, misuse is named, closing ends it."""

import asyncio
import contextlib
import contextvars
import inspect
import signal
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.waiting import TURNS, eventually

from reliable_mq.errors import ConnectionLost, UsageError
from reliable_mq.runtime import loop_thread
from reliable_mq.runtime.loop_thread import LoopThread, ThreadFuture


async def where() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise ValueError("from the loop")


def test_a_coroutine_runs_in_the_thread_and_its_result_comes_back() -> None:
    thread = LoopThread("a-loop")
    assert thread.run(where()) == "a-loop"
    with pytest.raises(ValueError, match="from the loop"):
        thread.run(fail())
    thread.close()


def test_closing_cancels_what_runs_and_is_done_once() -> None:
    thread = LoopThread()
    future = thread.submit(asyncio.Event().wait())
    thread.close()
    thread.close()
    assert future.cancelled()
    with pytest.raises(UsageError, match="closed"):
        thread.run(where())


def test_who_waits_while_it_is_closed_is_told_that_and_not_that_he_cancelled() -> None:
    thread = LoopThread()
    began = threading.Event()

    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: thread.run(hang()))
        began.wait(60)
        thread.close()
        with pytest.raises(ConnectionLost, match="closed meanwhile"):
            waiting.result(60)


def test_a_synchronous_call_on_the_loops_own_thread_is_refused_instead_of_hanging() -> None:
    thread = LoopThread()

    async def waits_for_itself() -> None:
        thread.run(where())

    with pytest.raises(UsageError, match="own thread"):
        thread.run(waits_for_itself())
    thread.close()


def test_a_task_that_ends_the_thread_leaves_a_loop_that_says_so_and_can_be_closed() -> None:
    async def ends() -> None:
        raise SystemExit(3)

    thread = LoopThread()
    waiting = thread.submit(asyncio.Event().wait())
    thread.submit(ends())
    with pytest.raises(CancelledError):
        waiting.result(60)
    thread._thread.join(60)

    assert not thread.is_alive
    with pytest.raises(UsageError, match="closed"):
        thread.run(where())
    thread.close()


def test_what_is_submitted_while_the_loop_is_closed_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look whether it is open and the hand-over another thread may close it."""
    thread = LoopThread()
    looked, may_go = threading.Event(), threading.Event()
    look = thread._refuse_dead

    def look_and_dawdle() -> None:
        look()
        looked.set()
        may_go.wait(60)

    monkeypatch.setattr(thread, "_refuse_dead", look_and_dawdle)
    with ThreadPoolExecutor() as pool:
        submitted = pool.submit(thread.submit, asyncio.Event().wait())
        assert looked.wait(60)
        closing = pool.submit(thread.close)
        with contextlib.suppress(TimeoutError):
            closing.result(0.05)  # it is over before, if it does not wait
        may_go.set()
        future = submitted.result(60)
        with pytest.raises(CancelledError):
            future.result(60)
        closing.result(60)


def test_a_task_that_will_not_be_cancelled_does_not_keep_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_thread, "END_SECONDS", 0.02)
    may_end = threading.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    thread = LoopThread()
    thread.submit(stubborn())
    closing = threading.Thread(target=thread.close, daemon=True)
    closing.start()
    closing.join(60)
    may_end.set()
    assert not thread._thread.is_alive()
    assert "1 tasks do not end after their cancellation" in caplog.text


def test_an_errand_is_begun_on_the_loop_and_its_end_lets_the_thread_go() -> None:
    thread = LoopThread("a-loop")

    def tells(errand: ThreadFuture[str]) -> None:
        errand.set_result(threading.current_thread().name)

    def fails(_: ThreadFuture[str]) -> None:
        raise ValueError("while it begins")

    assert thread.ask(tells) == "a-loop"

    with pytest.raises(ValueError, match="while it begins"):
        thread.ask(fails)
    thread.close()
    with pytest.raises(UsageError, match="closed"):
        thread.ask(tells)


def test_an_errand_that_nobody_ends_ends_with_the_loop() -> None:
    thread = LoopThread()
    began = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(thread.ask, lambda _: began.set())
        assert began.wait(60)
        thread.close()
        with pytest.raises(ConnectionLost, match="closed meanwhile"):
            waiting.result(60)


def test_an_interrupted_wait_cancels_what_runs_on_the_loop() -> None:
    thread = LoopThread()
    cancelled = threading.Event()
    waiting = threading.get_ident()
    state = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def is_asleep() -> bool:
        in_wait = sys._current_frames()[waiting].f_code is ThreadFuture.wait.__code__
        return in_wait and state.read_text().rpartition(")")[2].split()[0] == "S"

    async def hang() -> None:
        try:
            # A signal that comes just before the thread begins to sleep would not wake it up.
            # The first looks could find it waiting for the interpreter: the loop lets that go
            # after `TURNS` looks only.
            asleep = 0

            def is_asleep_for_good() -> bool:
                nonlocal asleep
                asleep = asleep + 1 if is_asleep() else 0
                return asleep > TURNS + 1

            await eventually(is_asleep_for_good)
            signal.pthread_kill(waiting, signal.SIGINT)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        thread.run(hang())
    assert cancelled.wait(60)
    assert not thread._errands
    thread.close()


def test_an_interrupt_between_the_call_and_the_wait_cancels_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(contextlib.AbstractContextManager[None]):
        """A lock whose holder is interrupted when it lets go."""

        def __exit__(self, *_: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

    thread = LoopThread()
    cancelled = threading.Event()

    def begin(errand: ThreadFuture[None]) -> None:
        future = thread._loop.create_future()
        future.add_done_callback(lambda _: cancelled.set())
        errand.follow(future)

    monkeypatch.setattr(thread, "_ending", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        thread.ask(begin)
    assert cancelled.wait(60)
    assert not thread._errands
    thread.close()


def test_variables_of_the_calling_thread_are_seen_by_what_it_runs() -> None:
    thread = LoopThread()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("the caller's")

    async def see() -> str:
        return variable.get()

    assert thread.run(see()) == "the caller's"
    thread.close()


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_is_refused_is_not_left_waiting() -> None:
    thread = LoopThread()
    thread.close()
    refused = where()
    with pytest.raises(UsageError, match="closed"):
        thread.run(refused)
    assert inspect.getcoroutinestate(refused) == inspect.CORO_CLOSED
