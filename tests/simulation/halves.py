"""The promise of a transaction: a half is unseen until it ends, and ends once."""

from typing import TYPE_CHECKING

from tests.simulation.facts import Entry, Violation

from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC

if TYPE_CHECKING:
    from tests.simulation.model import Model


class Halves:
    """What became of each half, by its log offset."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._commits: dict[int, Entry] = {}
        self._ops: dict[int, Entry] = {}  # the first record that names a half
        self._ended: set[int] = set()

    def is_ended(self, half: Entry) -> bool:
        """Whether somebody said what becomes of a half."""
        return half.log_offset in self._ended

    def end(self, half: Entry) -> None:
        """Note that the broker was told so."""
        self._ended.add(half.log_offset)

    def appended(self, entry: Entry) -> None:
        """Note a record; a half is committed once."""
        if entry.half_offset:
            if entry.half_offset in self._commits:
                raise Violation(f"a half is committed twice, as {entry}")
            self._commits[entry.half_offset] = entry

    def recorded(self, entry: Entry) -> bool:
        """Whether a record names halves that have ended."""
        if entry.topic != OP_TOPIC:
            return False
        halves = self._model.queues[HALF_TOPIC, 0].entries
        for word in entry.body.decode().split(","):
            if word:
                half = halves[int(word)]
                if not self.is_ended(half):
                    raise Violation(f"{half} is said to have ended, nobody ended it")
                self._ops.setdefault(half.log_offset, entry)
        return True

    def safe_number(self, half: Entry) -> int | None:
        """Return the number of the record that keeps a half ended, None when none does."""
        kept = [
            table[half.log_offset].number
            for table in (self._commits, self._ops)
            if half.log_offset in table
        ]
        return min(kept, default=None)

    def forget(self, entry: Entry) -> None:
        """Note that a crash took a record."""
        for table in (self._commits, self._ops):
            for offset in [offset for offset, kept in table.items() if kept is entry]:
                del table[offset]
        self._ended.discard(entry.log_offset)

    def opened(self) -> None:
        """Begin another life: what was said and not stored is forgotten."""
        self._ended = {*self._commits, *self._ops}
