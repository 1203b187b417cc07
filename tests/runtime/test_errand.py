"""Errands: one thread waits, one loop answers, once."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest

from reliable_mq.runtime.loop_thread import ThreadFuture


class Bad(Exception):
    """One that can be watched."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))


def test_the_thread_waits_until_it_ends_and_gets_the_result() -> None:
    errand: ThreadFuture[str] = ThreadFuture()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(errand.wait)
        assert not waiting.done()
        errand.set_result("done")
        assert waiting.result(60) == "done"


def test_it_ends_once() -> None:
    errand: ThreadFuture[int] = ThreadFuture()
    errand.set_result(1)
    errand.set_result(2)
    errand.set_exception(ValueError("late"))
    assert errand.is_over
    assert errand.wait() == 1


def test_it_ends_as_what_it_follows(loop: asyncio.AbstractEventLoop) -> None:
    well, badly, cancelled = ThreadFuture[int](), ThreadFuture[int](), ThreadFuture[int]()
    futures = [loop.create_future() for _ in range(3)]
    for errand, future in zip((well, badly, cancelled), futures, strict=True):
        errand.follow(future)
    futures[0].set_result(1)
    futures[1].set_exception(ValueError("bad"))
    futures[2].cancel()
    turn(loop)
    assert well.wait() == 1
    with pytest.raises(ValueError, match="bad"):
        badly.wait()
    with pytest.raises(CancelledError):
        cancelled.wait()


@pytest.mark.parametrize("given_up_before", [False, True])
def test_who_gives_up_cancels_what_is_done_for_him(
    loop: asyncio.AbstractEventLoop, given_up_before: bool
) -> None:
    followed, depended_on = loop.create_future(), loop.create_future()
    for future in (followed, depended_on):
        errand: ThreadFuture[Any] = ThreadFuture()
        if given_up_before:
            errand.cancel()
        (errand.follow if future is followed else errand.depend_on)(future)
        errand.cancel()
        assert future.cancelled()


def test_an_error_is_not_kept_alive_by_its_errand() -> None:
    gc.disable()
    try:
        errand: ThreadFuture[int] = ThreadFuture()
        error = Bad("bad")
        gone = weakref.ref(error)
        errand.set_exception(error)
        del error
        with pytest.raises(Bad):
            errand.wait()
        assert gone() is None
    finally:
        gc.enable()


def test_many_threads_wait_for_their_own() -> None:
    errands = [ThreadFuture[int]() for _ in range(20)]
    got: dict[int, int] = {}

    def wait(at: int) -> None:
        got[at] = errands[at].wait()

    threads = [threading.Thread(target=wait, args=(at,)) for at in range(20)]
    for thread in threads:
        thread.start()
    for at in reversed(range(20)):
        errands[at].set_result(at)
    for thread in threads:
        thread.join(60)
    assert got == {at: at for at in range(20)}
