"""Syncs files on the event loop while the disk is fast, and elsewhere while it is slow.

On a drive that syncs in 50 us, a handover to another thread or to the kernel costs more than the
sync. On busy processors, that thread must also wait for its turn.
After a few slow syncs in a row, the next syncs go to `others` for a second. If the disk stays slow,
the time doubles. One slow sync proves little, because the processors may have been busy. But one
very slow sync is enough: no client should wait for two more of these.
"""

import time
from collections.abc import Callable, Sequence

from reliable_mq.broker_core.store.disk import DiskFile, is_out_of_descriptors
from reliable_mq.runtime.broken import OnBroken, die
from reliable_mq.runtime.log_writer import Syncs

PROMPT_SECONDS = 0.002  # as long as a turn with many messages takes
SLOW_IN_A_ROW = 3
VERY_SLOW_SECONDS = 0.05  # a spinning or overloaded disk: one such sync is enough
PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 64.0


class PromptSyncs:
    """Syncs on the loop, or passes the sync to `others`.

    Args:
        others: does the syncs while the disk is slow; None: the thread of the log writer.
        clock: a monotonic clock, in seconds.
        on_broken: takes the error of a failed sync.
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
        """Sync `files`. `done` is called before this returns, or later by `others`.

        Returns:
            False when a thread must do the sync, which can wait until a file can be opened.
        """
        began = self._clock()
        if began < self._slow_until:
            return self._others is not None and self._others.start(files, done)
        try:
            for file in files:
                file.sync()
        except Exception as error:  # noqa: BLE001 - on_broken handles it
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
            self._slow_in_a_row -= 1  # after the pause, one more slow sync is enough
            self._slow_until = ended + self._pause
            self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    def close(self) -> None:
        """Release the resources of `others`."""
        if self._others is not None:
            self._others.close()
