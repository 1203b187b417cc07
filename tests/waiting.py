"""Waits for a condition, as long as a busy machine may need; what did not come is told.

Every limit is given for a machine with nothing else to do. It grows with the load average for each
processor, so that a test does not fail because others use the machine.
"""

import asyncio
import inspect
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

SECONDS_MAX = 60.0
SCENE_SECONDS_MAX = 3 * SECONDS_MAX  # longer than a wait within, which can say what it waits for
LOOK_SECONDS = 0.01
LIMIT_LOOK_SECONDS = 1.0  # how often the limit of a scene is made to follow the load
TEST_SECONDS_MAX = 840.0  # a little less than the `timeout` of pytest in pyproject.toml
TURNS = 20
"""So often a loop is only let go on: most conditions of a loop's own hold after some turns."""

T = TypeVar("T")


def allowed_seconds(seconds: float) -> float:
    """Return how long to wait now for what takes `seconds` at most on an idle machine."""
    wanted = os.getloadavg()[0] / (os.cpu_count() or 1)  # processors, for each that there is
    return max(seconds, min(seconds * wanted, TEST_SECONDS_MAX))


def until(
    condition: Callable[[], object],
    seen: Callable[[], object] = str,
    *,
    seconds: float = SECONDS_MAX,
    look_seconds: float = LOOK_SECONDS,
    possible: Callable[[], object] = lambda: True,
) -> None:
    """Wait until `condition` holds.

    Args:
        condition: is asked again and again; what it raises is raised.
        seen: tells what is there instead, for the error.
        seconds: how long to wait at most on an idle machine; see `allowed_seconds`.
        look_seconds: how long to wait before it is asked again.
        possible: tells whether the condition can still come to hold; if not, waiting ends at once.

    Raises:
        AssertionError: when it does not hold in time; names the condition by its source.
    """
    begin = time.monotonic()
    while not condition():
        if not possible():
            came = condition()  # just before
            assert came, f"can no longer come: {_named(condition, seen)}"
            return
        assert _is_early(begin, seconds), _missed(begin, condition, seen)
        time.sleep(look_seconds)


async def eventually(
    condition: Callable[[], object],
    seen: Callable[[], object] = str,
    *,
    seconds: float = SECONDS_MAX,
) -> None:
    """Wait as `until` does, and let the loop go on meanwhile; the condition may be asynchronous."""
    begin = time.monotonic()
    turns = itertools.count()
    while not await _answer(condition()):
        assert _is_early(begin, seconds), _missed(begin, condition, seen)
        await asyncio.sleep(0 if next(turns) < TURNS else LOOK_SECONDS)


def run_scene(scene: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, and no longer than a test may ever take."""
    return asyncio.run(within_limit(scene))


async def within_limit(scene: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine, and no longer than a test may ever take."""
    async with scene_limit():
        return await scene


@asynccontextmanager
async def scene_limit() -> AsyncIterator[None]:
    """Limit what is done inside to `SCENE_SECONDS_MAX` of an idle machine.

    Raises:
        TimeoutError: when it took longer, and was cancelled.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def follow_load() -> None:
        while not limit.expired():
            limit.reschedule(begin + allowed_seconds(SCENE_SECONDS_MAX))
            await asyncio.sleep(LIMIT_LOOK_SECONDS)

    async with asyncio.timeout_at(begin + SCENE_SECONDS_MAX) as limit:
        following = asyncio.create_task(follow_load())
        try:
            yield
        finally:
            following.cancel()


async def _answer(given: object) -> object:
    return await given if isinstance(given, Awaitable) else given


def _is_early(begin: float, seconds: float) -> bool:
    waited = time.monotonic() - begin
    return waited < seconds or waited < allowed_seconds(seconds)


def _missed(begin: float, condition: Callable[..., object], seen: Callable[[], object]) -> str:
    waited = time.monotonic() - begin
    load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors"
    return f"not within {waited:.3g} s ({load}): {_named(condition, seen)}"


def _named(condition: Callable[..., object], seen: Callable[[], object]) -> str:
    try:
        words = inspect.getsource(condition).strip()
    except (OSError, TypeError):  # a built-in, or the method of one
        words = repr(condition)
    return f"{words}; but {seen()}".removesuffix("; but ")
