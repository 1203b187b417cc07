"""Syncs on the event loop as long as the medium answers sooner than anybody else could be asked.

On a drive that syncs in 50 us, handing a sync to another thread, or to the kernel's, costs more
than the sync, and on busy processors it waits for its turn. What takes longer belongs elsewhere:
after a few slow syncs in a row the next ones go there, for a second, then for longer if nothing
has become better. One alone says little, the processors may have been busy, unless it is very slow:
of those nobody is to wait for two more.
"""

import time
from collections.abc import Callable, Sequence

from reliable_mq.broker_core.store.disk import DiskFile, is_out_of_descriptors
from reliable_mq.runtime.broken import OnBroken, die
from reliable_mq.runtime.log_writer import Syncs

PROMPT_SECONDS = 0.002  # the loop waits no longer than a turn with many messages takes
SLOW_IN_A_ROW = 3
VERY_SLOW_SECONDS = 0.05  # a disk that turns, or one that is overloaded: one is enough
PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 64.0


class PromptSyncs:
    """Syncs at once, or lets `others` do it.

    Args:
        others: who syncs while the medium is slow; None: the thread of the log writer.
        clock: seconds, never going back.
        on_broken: takes the error of a sync that failed.
    """

    def __init__(
        self,
        others: Syncs | None,
        clock: Callable[[], float] = time.monotonic,
        on_broken: OnBroken = die,
    ) -> None:
        self._others = others
        self._clock = clock
        self._on_broken = on_broken
        self._slow_until = 0.0
        self._slow_in_a_row = 0
        self._pause = PAUSE_SECONDS

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        """Sync `files`; `done` is called before this returns, or later by who was asked.

        False: they must be synced in a thread, which can wait until a file can be opened.
        """
        began = self._clock()
        if began < self._slow_until:
            return self._others is not None and self._others.start(files, done)
        try:
            for file in files:
                file.sync()
        except Exception as error:  # noqa: BLE001 - told there
            if is_out_of_descriptors(error):  # a file cannot be opened: no sync failed
                return False
            self._on_broken(error)
        self._judge(began, self._clock())
        done()
        return True

    def _judge(self, began: float, ended: float) -> None:
        if ended - began <= PROMPT_SECONDS:
            self._slow_in_a_row = 0
            self._pause = PAUSE_SECONDS
            return
        is_very_slow = ended - began > VERY_SLOW_SECONDS
        self._slow_in_a_row = SLOW_IN_A_ROW if is_very_slow else self._slow_in_a_row + 1
        if self._slow_in_a_row >= SLOW_IN_A_ROW:
            self._slow_in_a_row -= 1  # after the pause one more is enough
            self._slow_until = ended + self._pause
            self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    def close(self) -> None:
        """Let go of what the others have taken."""
        if self._others is not None:
            self._others.close()
