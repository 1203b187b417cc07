"""Notes about popped messages that this broker has just written, so that they need not be read.

The timers take up what is durable in their queue, a moment after it was written. Who has written a
note knows all that the timers need of it.
"""

from collections import deque
from typing import NamedTuple

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
    """The notes that are not taken up yet, in the order of their queue."""

    def __init__(self) -> None:
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
