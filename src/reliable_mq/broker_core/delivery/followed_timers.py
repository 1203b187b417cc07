"""What a slave knows of its master's timers, so that a promoted slave need not read the whole log.

Receives what the master says of its progress, and where this slave's log ended before it was asked.
A slave has no timer log and no wheel: when it is promoted, it takes the messages up again from
their queue. What it notes here says which of them are delivered, and from where in the log to
search the deliveries of the others.

Invariant L10: timed messages before the queue offset `done_before` that were due at `done_ms` or
earlier are delivered. Deliveries of all others are in the log from `delivered_end` on.

Why it holds. The master delivers a message only after it was taken up. Messages before
`done_before` were taken up when the master was asked the time before, so their slot was known
then. When all slots before `done_ms` are delivered, theirs is, too. While the master has messages
that are late for their slot, it says that it has taken up none. Another message is due at `done_ms`
or later, or is at `done_before` or later. The delivery of the first kind is behind the place where
the slave's log ended before the first question, if its last record there is older than `done_ms`.
One of the second kind may have been delivered by then: a master that restarts takes messages up
again that it has delivered.
So `delivered_end` is where the slave's log ended when it had none of these messages.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.broker_core.store.timer_checkpoint import TimerCheckpoint
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.errors import StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

VERSIONS_AHEAD = 1_000
"""Apache's master takes the progress of its slave over only if its version is not older.

The slave does not know the last versions of the master, so it leaves room for them.
"""
_SAVED_MS = 60_000
_SAVED_SIZE = 64 * 1024 * 1024  # bytes of the log that a promoted slave would search
_ENDS_MAX = 1_000  # a master that takes nothing up for longer is believed later


class OwnLog(NamedTuple):
    """What this slave's log had in its queues before a question: it is asked first."""

    end: int
    last_ms: int
    """Time of its last record."""
    queue_end: int
    """Of the queue of timed messages."""


class _Look(NamedTuple):
    """A question: the slave's log before it, and what the master has taken up."""

    own: OwnLog
    queue_offset: int
    search_from: int | None  # deliveries of what is not taken up are behind this log offset


class FollowedTimers:
    """The progress of a master's timers, as its slave knows it.

    Args:
        files: where it is noted.
        precision_ms: duration of a slot, in milliseconds.
    """

    def __init__(self, files: TimerStore, precision_ms: int) -> None:
        self._files = files
        self._precision_ms = precision_ms
        self._earlier: _Look | None = None
        self._ends: deque[OwnLog] = deque(maxlen=_ENDS_MAX)  # of this log, at former questions
        self._saved = TimerCheckpoint()
        self.known = TimerCheckpoint()
        self._is_ahead = False  # whether the version is newer than the master's

    def take(self, told: TimerCheckpoint, own: OwnLog) -> None:
        """Take what the master says. Everything that it claims must be in this slave's log.

        Args:
            told: the master's progress.
            own: this slave's log before the master was asked.
        """
        self._is_ahead = False
        offset = min(told.queue_offset, told.master_queue_offset)
        earlier, self._earlier = self._earlier, _Look(own, offset, self._search_from(own, offset))
        done_ms = told.read_ms // self._precision_ms * self._precision_ms
        if earlier is None or earlier.search_from is None or earlier.own.last_ms >= done_ms:
            return
        known = self.progress()
        if done_ms <= known.done_ms or not known.done_before <= earlier.queue_offset <= offset:
            return  # a master that has just started takes its messages up again
        self.known = TimerCheckpoint(
            read_ms=done_ms,
            delivered_end=earlier.search_from,
            done_before=earlier.queue_offset,
            done_ms=done_ms,
            counter=told.counter,
        )

    def _search_from(self, own: OwnLog, offset: int) -> int | None:
        """Return where this log ended when its timed messages were all before a queue offset.

        None: it was longer at each question.
        """
        ends = self._ends
        if ends and ends[-1].queue_end == own.queue_end:
            ends.pop()
        ends.append(own)
        while len(ends) > 1 and ends[1].queue_end <= offset:
            ends.popleft()
        return ends[0].end if ends[0].queue_end <= offset else None

    def progress(self) -> TimerCheckpoint:
        """Return what is known, or what was noted before the start."""
        if self.known.done_ms:
            return self.known
        noted = self._files.progress()
        if not noted.queue_offset:
            return noted
        # Files of a time as a master: see `TimerStore`.
        if noted.late_ms > noted.read_ms:  # a message may wait in a later slot than its own
            done = {"done_before": noted.done_before, "done_ms": noted.done_ms}
            return TimerCheckpoint(counter=noted.counter, **done)
        taken_up = min(noted.queue_offset, noted.master_queue_offset)
        return msgspec.structs.replace(noted, done_before=taken_up, done_ms=noted.read_ms)

    def told(self) -> TimerCheckpoint:
        """Return the progress in the form that a master has it."""
        known = self.progress()
        return msgspec.structs.replace(
            known,
            queue_offset=known.done_before,
            master_queue_offset=known.done_before,
        )

    def delivered_elsewhere(self, done_before: int, done_ms: int) -> None:
        """Note what this slave has delivered to other masters; see L10."""
        known = self.progress()
        if done_ms <= known.done_ms or done_before < known.done_before:
            return
        ahead = 0 if known is self.known and self._is_ahead else VERSIONS_AHEAD
        self._is_ahead = True
        self.known = TimerCheckpoint(
            read_ms=done_ms // self._precision_ms * self._precision_ms,
            delivered_end=known.delivered_end,
            done_before=done_before,
            done_ms=done_ms,
            changed_ms=done_ms,
            counter=known.counter + ahead + 1,
        )

    def begin_checkpoint(self) -> Callable[[], None] | None:
        """Return the job that notes the progress; None when the note is new enough.

        The job may run in another thread.
        """
        known, saved = self.known, self._saved
        is_old = (
            known.read_ms - saved.read_ms >= _SAVED_MS
            or known.delivered_end - saved.delivered_end >= _SAVED_SIZE
        )
        return self.save if is_old else None

    def save(self) -> None:
        """Note the progress, if there is any and the disk has room."""
        known = self.known
        if known == self._saved or self._files.is_open:  # open files are those of a master
            return
        try:
            self._files.note_followed(known)
        except (OSError, StoreError) as error:
            if not is_out_of_room(error):
                raise
            broker_events.TIMER_CHECKPOINT_NO_ROOM.log(log, error=error)
            return
        self._saved = known
