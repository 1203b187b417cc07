"""Batches of a synchronous master that are written together: while an earlier one is on its way.

A batch is on its way until the master's disk and enough slaves have it. The next ones would have to
wait for it anyway, because replies leave in the order of the log. Together they cost both brokers
one write, one sync, one transfer and one report.

When a batch has arrived, most of its senders send again at once. So what is gathered waits for them
a moment: else two groups of senders take turns, and each batch has half of the messages. Where
senders do not come back soon, this waiting pauses.

If a batch is on its way for long, usually or this time, because the slave is far away or its disk
is slow, this waiting would cost more than it saves. Then batches are written as they come.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.store.commit_log import LogBatch, SegmentWrite
from reliable_mq.errors import InvariantBroken

USUAL_SECONDS_MAX = 0.003
"""Batches are gathered while one is usually on its way for no longer than this."""
HELD_SECONDS_MAX = 0.02
"""So long a batch waits for an earlier one, if a slave does not answer as usual."""
_SIZE_MAX = 128 * 1024  # bytes; what is larger takes so long that it should begin
_WEIGHT = 0.125  # of the newest batch in the usual time
BACK_SECONDS = 0.001
"""So long a batch waits for senders that have their answers: the least time of the loop."""
_BACK_SHARE = 0.8  # of the senders; the last ones would keep all others waiting
_PAUSE_MAX = 256  # batches


class GatheredBatches:
    """The batches that wait for an earlier one.

    Invariant L14: they are behind what is written, and fewer than `_SIZE_MAX` bytes and one more
    batch.

    Args:
        answers: know what has left, and whether slaves are waited for.
        go_on: has what is gathered written; called when it has waited long.
        clock: a monotonic clock, in seconds; None: the system's.
    """

    def __init__(
        self,
        answers: ReplicatedAnswers,
        go_on: Callable[[], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._answers = answers
        self._go_on = go_on
        self._clock = clock or time.monotonic
        self._loop = asyncio.get_running_loop()
        self._end = 0  # of what is written
        self._mark = 0  # the end of a batch that is timed
        self._marked = -1.0  # when it was written; -1.0: none is timed
        self._arrived = 0.0  # when that was seen to have arrived
        self._usual = 0.0  # seconds that a batch is on its way
        self._batches: list[LogBatch] = []
        self._held_since = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._most = 0  # replies that have waited at once since the last write
        self._wanted = 0  # so many must wait before the next write; 0: it is not held for them
        self._late: asyncio.TimerHandle | None = None
        self._pause = self._rest = 0  # batches that are not held, in all and from now on

    def invariants(self) -> None:
        """L14; see above."""
        size = size_of(self._batches[:-1])
        if size >= _SIZE_MAX or any(each.end <= self._end for each in self._batches):
            ends = [each.end for each in self._batches]
            raise InvariantBroken(f"L14: {size} bytes wait up to {ends}, {self._end} is written")

    def keep(self, batch: LogBatch) -> bool:
        """Keep a batch until the one on its way has arrived; return False: write it now."""
        is_awaiting = self._is_awaiting()
        if not (is_awaiting or self._batches or self._is_held_for_senders()):
            return False
        if not self._batches:
            self._held_since = self._clock()
            if self._later is None:
                self._later = self._loop.call_later(HELD_SECONDS_MAX, self._look)
        self._batches.append(batch)
        waiting = self._answers.waiting
        if waiting > self._most:  # noqa: PLR1730 - a call of max() costs more than the rest
            self._most = waiting
        is_held = is_awaiting or waiting < self._wanted
        if not is_held or size_of(self._batches) >= _SIZE_MAX:
            if self._late is not None:  # they came in time
                self._pause = max(0, self._pause - 1)
            self._go_on()
        return True

    def wrote(self, end: int) -> None:
        """Note that the log is written up to `end`, and goes to the slaves now."""
        self._end, self._most = end, self._answers.waiting
        if self._marked < 0 and self._answers.has_slaves:
            self._mark, self._marked = end, self._clock()

    def take_due(self) -> LogBatch | None:
        """Return what is to be written now that more has arrived; None: nothing is."""
        if self._is_awaiting() or not self._batches or self._is_held_for_senders():
            return None
        return self.take()

    def _is_held_for_senders(self) -> bool:
        """Whether to wait for more of those that have their answers."""
        wanted, is_near = self._most * _BACK_SHARE, self._usual <= USUAL_SECONDS_MAX
        if self._answers.waiting >= wanted or not (self._answers.has_slaves and is_near):
            return False
        if self._late is not None:
            return True
        if self._clock() - self._arrived > BACK_SECONDS:
            return False
        if self._rest:
            self._rest -= 1
            return False
        self._wanted = math.ceil(wanted)
        self._late = self._loop.call_later(BACK_SECONDS, self._are_late)
        return True

    def _are_late(self) -> None:
        """Wait no longer for senders, and not at all for some batches."""
        self._late = None
        self._pause = self._rest = min(2 * self._pause + 1, _PAUSE_MAX)
        self._go_on()

    def take(self) -> LogBatch | None:
        """Return what is gathered, as one batch; None: nothing is."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._wanted = 0
        batches, self._batches = self._batches, []
        return join_batches(batches) if batches else None

    def _is_awaiting(self) -> bool:
        """Whether to wait for what is on its way."""
        released, seconds = self._answers.released, self._usual
        if self._marked >= 0:
            took = self._clock() - self._marked
            if released >= self._mark:
                self._usual += (took - self._usual) * _WEIGHT
                self._arrived, self._marked = self._marked + took, -1.0
            seconds = max(took, self._usual)
        is_near = seconds <= USUAL_SECONDS_MAX
        return released < self._end and self._answers.has_slaves and is_near

    def _look(self) -> None:
        """Let go of what has waited long; look again later."""
        self._later = None
        if not self._batches:
            return
        rest = self._held_since + HELD_SECONDS_MAX - self._clock()
        if rest > 0:
            self._later = self._loop.call_later(rest, self._look)
        else:
            self._go_on()

    def close(self) -> None:
        """Look no more."""
        for timer in (self._later, self._late):
            if timer is not None:
                timer.cancel()


def size_of(batches: Sequence[LogBatch]) -> int:
    """Return the bytes of batches."""
    return sum(len(part) for batch in batches for write in batch.writes for part in write.parts)


def join_batches(batches: Sequence[LogBatch]) -> LogBatch:
    """Return contiguous batches as one, with one write for each segment."""
    if len(batches) == 1:
        return batches[0]
    writes: list[SegmentWrite] = []
    for batch in batches:
        for write in batch.writes:
            if writes and writes[-1].segment is write.segment:
                writes[-1].parts.extend(write.parts)
            else:
                writes.append(SegmentWrite(write.segment, write.at, list(write.parts)))
    return LogBatch(writes, batches[-1].end)
