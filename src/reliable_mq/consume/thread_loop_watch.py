"""Says when an event loop stands still: an `async def` handler blocks it.

Receives a loop, and what runs on it; writes a log line from a thread of its own. The loop itself
can neither write it nor answer anybody meanwhile.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
STILL_LOOKS = 5
"""So many looks in a row find the loop where it was. Looks are counted instead of seconds: a
process that the system has stopped does not look."""
AGAIN_LOOKS = 60
"""A line is written again after so many looks."""
_NO_HANDLER = "none: something else blocks it"


class LoopWatch:
    """Looks every second whether a loop still runs; call `start` on that loop.

    Invariant: at most one line is written for `AGAIN_LOOKS` looks.

    Args:
        running: returns the handlers that may block the loop now.
        codes: the code of all handlers: the log names the line of one that is running.
        look_seconds: the time between two looks.
    """

    def __init__(
        self,
        running: Callable[[], Sequence[str]],
        codes: Collection[object] = (),
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._running = running
        self._codes = codes
        self._look_seconds = look_seconds
        self._ended = threading.Event()
        self._ran = False
        self._still = 0
        self._quiet = 0

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._of_loop = threading.get_ident()
        threading.Thread(target=self._watch, name="reliable-mq-loop-watch", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._ended.set()

    def look(self) -> None:
        """Note whether the loop has run since the last look; write a line if it stands still."""
        self._quiet = max(0, self._quiet - 1)
        if self._ran:
            self._still = 0
            self._ask()
            return
        self._still += 1
        if self._still >= STILL_LOOKS and not self._quiet:
            self._quiet = AGAIN_LOOKS
            application_events.LOOP_BLOCKED.log(
                log,
                seconds=self._still * self._look_seconds,
                handlers=", ".join(self._running()) or _NO_HANDLER,
                place=self._place(),
            )

    def _watch(self) -> None:
        try:
            self._ask()
            while not self._ended.wait(self._look_seconds):
                self.look()
        except RuntimeError:  # the loop is closed
            return

    def _ask(self) -> None:
        self._ran = False
        self._loop.call_soon_threadsafe(self._note)

    def _note(self) -> None:
        self._ran = True

    def _place(self) -> str:
        """Return the line of the handler, else of what the thread of the loop does: file:line."""
        innermost = sys._current_frames().get(self._of_loop)
        frame = innermost
        while frame is not None and frame.f_code not in self._codes:
            frame = frame.f_back
        frame = frame or innermost
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "?"
