"""Notes about popped messages that this broker has just written, so that they need not be read.

The timers take up what is durable in their queue, a moment after it was written. Who has written a
note knows all that the timers need of it.
"""

from collections import deque
from typing import NamedTuple

from reliable_mq.broker_core.store.timer_log import slot_of
from reliable_mq.broker_core.store.timer_store import TimerStore

_NOTES_MAX = 100_000  # what is not known is read


class WrittenNote(NamedTuple):
    """A checkpoint or acknowledgements, as the timers take them up; see `TimedMessage`."""

    queue_offset: int
    place: int
    size: int
    topic: str
    due_ms: int
    out_ms: int

    @property
    def deleted_key(self) -> str:
        """It recalls no message."""
        return ""


class WrittenNotes:
    """The notes that are not taken up yet, in the order of their queue.

    Args:
        precision_ms: duration of a slot, in milliseconds.
    """

    def __init__(self, precision_ms: int) -> None:
        self._precision_ms = precision_ms
        self._notes: deque[WrittenNote] = deque()

    def note(self, written: WrittenNote) -> None:
        """Add the last record of the queue."""
        if len(self._notes) < _NOTES_MAX:
            self._notes.append(written)

    def take(self, queue_offset: int) -> WrittenNote | None:
        """Return the note at a queue offset, and forget those before it; None: it is not known."""
        notes = self._notes
        while notes and notes[0].queue_offset < queue_offset:
            notes.popleft()
        return notes.popleft() if notes and notes[0].queue_offset == queue_offset else None

    def take_run(
        self, files: TimerStore, end: int, taken_ms: int, slots_ms: tuple[int, int]
    ) -> bool:
        """Give the next notes of one slot their entries together, and forget them.

        Return whether there were any: the next message is known, and its slot is a usual one.

        Args:
            files: get the entries, and know which message is the next one.
            end: queue offset behind the last message to take up.
            taken_ms: the slot of now.
            slots_ms: usual slots are between these: they are not loaded yet, and not far away.
        """
        notes, offset = self._notes, files.queue_offset
        while notes and notes[0].queue_offset < offset:
            notes.popleft()
        if not notes or notes[0].queue_offset != offset or files.knows_done(offset):
            return False
        slot_ms = slot_of(notes[0].due_ms, self._precision_ms)
        if not slots_ms[0] < slot_ms < slots_ms[1]:
            return False
        end, end_ms = min(end, offset + files.room_of_run()), slot_ms + self._precision_ms
        run: list[WrittenNote] = []
        while notes and offset < end:
            note = notes[0]
            if note.queue_offset != offset or not slot_ms < note.due_ms <= end_ms:
                break
            run.append(notes.popleft())
            offset += 1
        files.add_run(run, slot_ms, taken_ms)
        files.queue_offset = offset
        return True
