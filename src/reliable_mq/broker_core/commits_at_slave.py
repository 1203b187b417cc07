"""Offsets that consumers have committed at a slave, until its master has them.

Consumers commit at a slave when they cannot reach the master. When the master is back, its table of
offsets would replace theirs, so the slave tells them to the master first: file
`config/commitsAtSlave.json`, which is ours. Apache's slave forgets them.

Invariant O4: an offset stays here until the master has it or a higher one, or has refused it for
ten minutes.
"""

from collections.abc import Mapping

import msgspec

from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken

PATH = "config/commitsAtSlave.json"
TOLD_AT_ONCE = 1_000
"""The most offsets that are told to the master in one round."""
REFUSED_MS = 600_000
"""So long an offset that the master refuses is told again: its group may join there soon."""


class CommittedPlace(msgspec.Struct, frozen=True, array_like=True):
    """A queue as a group reads it."""

    group: str
    topic: str
    queue_id: int


class CommitsAtSlave:
    """Committed offsets by place. `is_dirty` is True from a change until the next dump.

    Attributes:
        is_wanted: whether this broker is a slave; otherwise nothing is noted.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.is_dirty = False
        self._offsets: dict[CommittedPlace, int] = {}
        self._refused_ms: dict[CommittedPlace, int] = {}  # when the master has refused it first

    def __len__(self) -> int:
        return len(self._offsets)

    def invariants(self) -> None:
        """No offset is negative."""
        if any(offset < 0 for offset in self._offsets.values()):
            raise InvariantBroken("O4: a negative offset was committed at a slave")

    def note(self, place: CommittedPlace, offset: int) -> None:
        """Note a commit."""
        if self.is_wanted and self._offsets.get(place) != offset:
            self._offsets[place] = offset
            self.is_dirty = True

    def all(self) -> Mapping[CommittedPlace, int]:
        """Return the offsets, the oldest first."""
        return self._offsets

    def forget(self, place: CommittedPlace, offset: int) -> None:
        """Forget an offset that the master has; one that was committed since stays."""
        if self._offsets.get(place) == offset:
            del self._offsets[place]
            self._refused_ms.pop(place, None)
            self.is_dirty = True

    def refuse(self, place: CommittedPlace, offset: int, now_ms: int) -> None:
        """Note that the master refuses an offset: it does not know the group, or the topic."""
        since = self._refused_ms.setdefault(place, now_ms)
        if not since <= now_ms < since + REFUSED_MS:
            self.forget(place, offset)

    def as_offsets(self) -> OffsetTable:
        """Return the offsets as a table, for a master that comes back."""
        table = OffsetTable()
        for place, offset in self._offsets.items():
            table.commit(place.group, place.topic, place.queue_id, offset)
        return table

    def end(self) -> bool:
        """Forget everything: this broker is a master now; return whether there was something."""
        was_there = bool(self._offsets)
        self._offsets.clear()
        return was_there

    def dump(self) -> str:
        """Return the content of the file, and clear `is_dirty`."""
        self.is_dirty = False
        rows = [_Row(place, offset) for place, offset in self._offsets.items()]
        return msgspec.json.encode(_File(rows)).decode()

    def load(self, text: str) -> None:
        """Load the offsets from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        rows = msgspec.json.decode(text, type=_File).commits
        self._offsets = {row.place: row.offset for row in rows if row.offset >= 0}


@decodable
class _Row(msgspec.Struct):
    place: CommittedPlace
    offset: int


@decodable
class _File(msgspec.Struct):
    commits: list[_Row] = []
