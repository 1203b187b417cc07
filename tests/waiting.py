"""Waits for a condition, as long as a busy machine may need; what did not come is told.

Every limit is given in seconds of a machine with nothing else to do. On a busy one a second of the
clock uses up only a part of such a second, so a test does not fail because others use the machine.
"""

import asyncio
import inspect
import itertools
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from tempfile import TemporaryFile
from typing import Any, TypeVar

SECONDS_MAX = 60.0
SCENE_SECONDS_MAX = 3 * SECONDS_MAX
LOOK_SECONDS = 0.01
LOOK_SECONDS_MAX = 0.2
LOOK_SHARE = 0.2
"""So much of the time at most is spent with looking: a look may be a new session of a database, and
what is waited for needs the processor."""
LIMIT_LOOK_SECONDS = 1.0  # how often a scene, or a process, is asked whether its limit has passed
WAIT_CLOCK_SECONDS_MAX = 600.0
"""So long one wait takes at any load: it ends before its scene, if it began with it."""
SCENE_CLOCK_SECONDS_MAX = 780.0
"""So long a scene takes at any load: it ends before the `timeout` of pytest in pyproject.toml."""
NEVER_BUSY = {"osPageCacheBusyTimeOutMills": "3600000", "waitTimeMillsInSendQueue": "3600000"}
"""Properties of a broker. Else it refuses sends after its disk or its whole machine was slow."""
TURNS = 20
"""So often a loop is only let go on: most conditions of a loop's own hold after some turns."""

T = TypeVar("T")


class Budget:
    """Seconds of an idle machine, used up by the time that passes; more slowly on a busy machine.

    Invariant: what was used up stays used up, whatever the load becomes.

    Args:
        seconds: how many there are.
        clock_seconds_max: after so many seconds of the clock nothing is left at any load; at least
            `seconds`.
    """

    def __init__(self, seconds: float, clock_seconds_max: float = WAIT_CLOCK_SECONDS_MAX) -> None:
        self._seconds = seconds
        self._clock_seconds_max = max(seconds, clock_seconds_max)
        self._spent = 0.0
        self._begin = self._seen = time.monotonic()

    def is_left(self) -> bool:
        """Use up the time since the last call; return whether anything is left."""
        now = time.monotonic()
        self._spent += (now - self._seen) / _slowness()
        self._seen = now
        return self._spent < self._seconds and now - self._begin < self._clock_seconds_max

    def missed(self) -> str:
        """Return how an error about the wait begins."""
        load = f"load {os.getloadavg()[0]:.0f} on {processors()} processors"
        return f"not within {time.monotonic() - self._begin:.3g} s ({load})"


class NotEnded(subprocess.TimeoutExpired):
    """A process that did not end in time, and was killed; says what it had printed."""

    def __init__(self, late: subprocess.TimeoutExpired, waited: Budget) -> None:
        super().__init__(late.cmd, late.timeout, late.output, late.stderr)
        self._words = f"no end of {late.cmd}, {waited.missed()}"

    def __str__(self) -> str:
        printed = b"\n".join(filter(None, (self.output, self.stderr)))
        return f"{self._words}; it printed:\n{printed[-3000:].decode(errors='replace')}"


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allowed_seconds(seconds: float) -> float:
    """Return how long what takes `seconds` at most on an idle machine may take at the load of now.

    For a limit that is given away, and cannot follow the load any more.
    """
    return max(seconds, min(seconds * _slowness(), WAIT_CLOCK_SECONDS_MAX))


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
        seconds: how long to wait at most on an idle machine; see `Budget`.
        look_seconds: how long to wait before it is asked again.
        possible: tells whether the condition can still come to hold; if not, waiting ends at once.

    Raises:
        AssertionError: when it does not hold in time; names the condition by its source.
    """
    assert not inspect.iscoroutinefunction(condition), "an asynchronous condition: eventually"
    budget = Budget(seconds)
    began = time.monotonic()
    while not condition():
        if not possible():
            came = condition()  # just before
            assert came, f"can no longer come: {_named(condition, seen)}"
            return
        assert budget.is_left(), f"{budget.missed()}: {_named(condition, seen)}"
        time.sleep(_pause(time.monotonic() - began, look_seconds))
        began = time.monotonic()


def looks(goes_on: Callable[[], object], look_seconds: float = LOOK_SECONDS) -> Iterator[None]:
    """Yield again and again as long as `goes_on` holds, with a pause after each time.

    For a loop that has work of its own to do between two looks.

    Args:
        goes_on: ends the loop; holds the limit, for example `Budget.is_left`.
        look_seconds: how long each pause is.
    """
    while goes_on():
        yield
        time.sleep(look_seconds)


async def eventually(
    condition: Callable[[], object],
    seen: Callable[[], object] = str,
    *,
    seconds: float = SECONDS_MAX,
) -> None:
    """Wait as `until` does, and let the loop go on meanwhile; the condition may be asynchronous."""
    budget = Budget(seconds)
    turns = itertools.count()
    with pending(lambda: _named(condition, seen)):
        began = time.monotonic()
        while not await _answer(condition()):
            assert budget.is_left(), f"{budget.missed()}: {_named(condition, seen)}"
            pause = _pause(time.monotonic() - began, LOOK_SECONDS)
            await asyncio.sleep(0 if next(turns) < TURNS else pause)
            began = time.monotonic()


def _pause(look_took: float, seconds: float) -> float:
    """Return how long to wait after a look that took so long, at least `seconds`."""
    return max(seconds, min(look_took * (1 / LOOK_SHARE - 1), LOOK_SECONDS_MAX))


_pending: list[Callable[[], object]] = []


@contextmanager
def pending(words: Callable[[], object]) -> Iterator[None]:
    """Let the error of a scene that takes too long say what this block waits for.

    Args:
        words: tells what is waited for, and how far it came.
    """
    _pending.append(words)
    try:
        yield
    finally:
        _pending.remove(words)


def run_scene(scene: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, and no longer than a scene may take."""
    return asyncio.run(within_limit(scene))


async def within_limit(scene: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine, and no longer than a scene may take."""
    async with scene_limit():
        return await scene


@asynccontextmanager
async def scene_limit() -> AsyncIterator[None]:
    """Limit what is done inside to `SCENE_SECONDS_MAX` of an idle machine.

    Raises:
        TimeoutError: when it took longer, and was cancelled; names what was waited for.
    """
    budget = Budget(SCENE_SECONDS_MAX, SCENE_CLOCK_SECONDS_MAX)
    waited_for: list[str] = []

    async def follow_load() -> None:
        while budget.is_left():
            await asyncio.sleep(LIMIT_LOOK_SECONDS)
        waited_for.extend(str(words()) for words in _pending)
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as limit:
            following = asyncio.create_task(follow_load())
            try:
                yield
            finally:
                following.cancel()
    except TimeoutError as ended:
        if not limit.expired():
            raise
        words = "; ".join(waited_for) or "nothing that has a name"
        raise TimeoutError(f"the scene has no end, {budget.missed()}; pending: {words}") from ended


def run_process(
    command: Sequence[str], *, timeout: float, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, as `subprocess.run` does with the same arguments and text.

    Args:
        timeout: seconds on an idle machine; see `Budget`.

    Raises:
        NotEnded: when it takes longer; it is killed before.
    """
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ExitStack() as stack:
        given = options.pop("input", None)
        if (
            given is not None
        ):  # not by a pipe: Python's `communicate` feeds it in its first call only
            options["stdin"] = stdin = stack.enter_context(TemporaryFile("w+"))
            stdin.write(given)
            stdin.seek(0)
        process = stack.enter_context(subprocess.Popen(command, **{"text": True, **options}))
        output, errors = communicate(process, timeout=timeout)
    ended = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        ended.check_returncode()
    return ended


def communicate(process: subprocess.Popen[str], *, timeout: float) -> tuple[str, str]:
    """Return what a process prints, and its errors, until it ends.

    Args:
        process: its input is no pipe, or is not needed any more.
        timeout: seconds on an idle machine; see `Budget`.

    Raises:
        NotEnded: when it takes longer; it is killed before.
    """
    budget = Budget(timeout)
    while True:
        try:
            return process.communicate(timeout=LIMIT_LOOK_SECONDS)
        except subprocess.TimeoutExpired as late:
            if not budget.is_left():
                process.kill()
                process.wait()
                raise NotEnded(late, budget) from None
        except BaseException:
            process.kill()
            raise


async def _answer(given: object) -> object:
    return await given if isinstance(given, Awaitable) else given


def _slowness() -> float:
    """Return how many processes there are for each processor; at least one."""
    return max(1.0, os.getloadavg()[0] / processors())


def _named(condition: Callable[..., object], seen: Callable[[], object]) -> str:
    try:
        words = inspect.getsource(condition).strip()
    except (OSError, TypeError):  # a built-in, or the method of one
        words = repr(condition)
    return f"{words}; but {seen()}".removesuffix("; but ")
