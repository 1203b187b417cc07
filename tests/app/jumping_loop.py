"""An event loop whose clock jumps to its next timer whenever nothing else is to be done."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Jumps(selectors.SelectSelector):
    """Waits for nothing but timers: there is nobody outside."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "all wait for each other"
        self.now += timeout
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """Runs what takes hours at once; `time` begins at 0."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self._jumps.now


async def pass_time(seconds: float) -> None:
    """Let seconds of the made clock pass; they take no time."""
    assert isinstance(asyncio.get_running_loop(), JumpingLoop)
    await asyncio.sleep(seconds)


def run_jumping(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as `asyncio.run` does, on such a loop."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(scenario)
