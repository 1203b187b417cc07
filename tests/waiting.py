"""Waits for a condition, as long as a busy machine may need; what did not come is told."""

import asyncio
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

SECONDS_MAX = 60.0
SCENE_SECONDS_MAX = 3 * SECONDS_MAX  # longer than a wait within, which can say what it waits for
LOOK_SECONDS = 0.01
TURNS = 20
"""So often a loop is only let go on: most conditions of a loop's own hold after some turns."""

T = TypeVar("T")


def until(
    condition: Callable[[], object],
    seen: Callable[[], object] = str,
    *,
    seconds: float = SECONDS_MAX,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Wait until `condition` holds.

    Args:
        condition: is asked again and again; what it raises is raised.
        seen: tells what is there instead, for the error.
        seconds: how long to wait at most.
        look_seconds: how long to wait before it is asked again.

    Raises:
        AssertionError: when it does not hold in time; names the condition by its source.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, _missed(condition, seen, seconds)
        time.sleep(look_seconds)


async def eventually(
    condition: Callable[[], object],
    seen: Callable[[], object] = str,
    *,
    seconds: float = SECONDS_MAX,
) -> None:
    """Wait as `until` does, and let the loop go on meanwhile; the condition may be asynchronous."""
    deadline = time.monotonic() + seconds
    turns = itertools.count()
    while not await _answer(condition()):
        assert time.monotonic() < deadline, _missed(condition, seen, seconds)
        await asyncio.sleep(0 if next(turns) < TURNS else LOOK_SECONDS)


def run_scene(scene: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, and no longer than a test may ever take."""
    return asyncio.run(asyncio.wait_for(scene, SCENE_SECONDS_MAX))


async def _answer(given: object) -> object:
    return await given if isinstance(given, Awaitable) else given


def _missed(condition: Callable[..., object], seen: Callable[[], object], seconds: float) -> str:
    try:
        words = inspect.getsource(condition).strip()
    except (OSError, TypeError):  # a built-in, or the method of one
        words = repr(condition)
    return f"not within {seconds:g} s: {words}; but {seen()}".removesuffix("; but ")
