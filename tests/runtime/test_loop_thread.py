"""A loop in a thread: results and errors come back, misuse is named, closing ends it."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from reliable_mq.errors import UsageError
from reliable_mq.runtime.loop_thread import LoopThread


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
    future = thread.submit(asyncio.sleep(3600))
    thread.close()
    thread.close()
    assert future.cancelled()
    with pytest.raises(UsageError, match="closed"):
        thread.run(where())


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
    waiting = thread.submit(asyncio.sleep(3600))
    thread.submit(ends())
    with pytest.raises(CancelledError):
        waiting.result(10)
    thread._thread.join(10)

    assert not thread.is_alive
    with pytest.raises(UsageError, match="closed"):
        thread.run(where())
    thread.close()
