"""What the product's `LogWriter` stands on, made of events: a loop, a thread for jobs, a kernel.

Whatever takes time takes the world's time, and between any two steps everything else may happen.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from tests.simulation.wires import Make, Wires
from tests.simulation.world import World

from reliable_mq.broker_core.store.disk import DiskFile

Step = Callable[[], None]
Guard = Callable[[Step], None]


class _Handle(asyncio.TimerHandle):
    """A callback that may be cancelled; what it raises is not swallowed."""

    def __init__(self, loop: "WorldLoop", when: float, callback: Callable[..., object], *args: Any):
        super().__init__(when, callback, args, loop.loop)
        self._act: Step = lambda: cast("None", callback(*args))

    def run(self) -> None:
        if not self.cancelled():
            self._act()


class WorldLoop:
    """One life's event loop.

    Args:
        world: the clock.
        guard: runs a step unless the machine is dead, and notices when it dies in it.
        wires: carry its connections to other machines; None: it has none.
    """

    def __init__(self, world: World, guard: Guard, wires: Wires | None = None) -> None:
        self._world = world
        self.guard = guard
        self.wires = wires
        self._woken_ms = 0.0
        self._works: list[Coroutine[Any, Any, Any]] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """This, as whoever needs a loop sees it: it does what futures and tasks need."""
        return cast("asyncio.AbstractEventLoop", self)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let this be the running loop of what is done meanwhile."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def _at(self, delay_ms: float, callback: Callable[..., object], args: Any) -> _Handle:
        when = (self._world.time_ms + delay_ms) / 1000
        handle = _Handle(self, when, callback, *args)
        self._world.later(delay_ms, lambda: self.guard(handle.run))
        return handle

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self._at(0, callback, args)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self._at(delay * 1000, callback, args)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self._at(max(0.0, when * 1000 - self._world.time_ms), callback, args)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> _Handle:
        """Call it when the loop notices: a little later, in the order of the calls."""
        world = self._world
        delay_ms = world.random.choice((0.0, 0.0, world.around(world.plan.disk_ms)))
        self._woken_ms = max(self._woken_ms, world.time_ms + delay_ms)
        return self._at(self._woken_ms - world.time_ms, callback, args)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.loop)

    def create_task(
        self, work: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        self._works = [begun for begun in self._works if not _is_done(begun)]
        self._works.append(work)
        return asyncio.Task(work, loop=self.loop, name=name)

    async def create_connection(
        self, make: Make, _host: str, _port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert not options.get("ssl")
        assert self.wires is not None
        return await self.wires.connect(self, make)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave the event in the world's heap; it does nothing."""

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return self._world.time_ms / 1000

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tasks of a machine that died are never done: nobody wants to know."""

    def carry_out(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let a coroutine run; what it raises is raised out of an event."""
        task = self.create_task(work)
        task.add_done_callback(lambda done: None if done.cancelled() else done.result())
        return task

    def stop(self) -> None:
        """Let nothing begin any more, and nothing go on."""
        works, self._works = self._works, []
        with self.running():
            for work in works:
                if inspect.getcoroutinestate(work) != inspect.CORO_RUNNING:
                    work.close()


def broken(error: Exception) -> NoReturn:
    """Raise an error after which a broker can promise nothing."""
    raise error


def _is_done(work: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


class WorldJobs:
    """A thread: one job after another, each when the disk has come to it."""

    def __init__(self, world: World, guard: Guard) -> None:
        self._world = world
        self._guard = guard
        self._jobs: deque[Callable[[], object]] = deque()
        self._is_working = False

    def put(self, job: Callable[[], object]) -> None:
        """Do a job when those before it are done."""
        self._jobs.append(job)
        if not self._is_working:
            self._is_working = True
            self._work_later()

    def _work_later(self) -> None:
        delay_ms = self._world.around(self._world.plan.disk_ms)
        self._world.later(delay_ms, lambda: self._guard(self._work))

    def _work(self) -> None:
        if self._jobs:
            self._jobs.popleft()()
        self._is_working = bool(self._jobs)
        if self._is_working:
            self._work_later()

    def close(self) -> None:
        """Do all that was put."""
        while self._jobs:
            self._jobs.popleft()()


class WorldSyncs:
    """A kernel that syncs one file at a time, and now and then refuses.

    The medium may have the file long before anybody is told, or only just then.
    """

    def __init__(self, world: World, guard: Guard) -> None:
        self._world = world
        self._guard = guard

    def start(self, files: Sequence[DiskFile], done: Step) -> bool:
        """Begin to sync `files`; False: it cannot be done here."""
        random = self._world.random
        if len(files) != 1 or random.random() < 0.3:
            return False
        (file,) = files
        is_early = random.random() < 0.5
        if is_early:
            file.sync()

        def end() -> None:
            if not is_early:
                file.sync()
            done()

        self._world.later(self._world.around(self._world.plan.disk_ms), lambda: self._guard(end))
        return True

    def close(self) -> None:
        """Let go of nothing."""
