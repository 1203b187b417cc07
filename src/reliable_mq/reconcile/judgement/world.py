"""The input of the judgement beside the events: the moment, and the state of the cluster. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from reliable_mq.reconcile.judgement.events import NO_TIME
from reliable_mq.reconcile.judgement.traces import NameColumn

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUEUE_BITS = 32

Progress = Mapping[tuple[str, str, str], Mapping[int, int]]
Begins = Mapping[tuple[str, str], Mapping[int, int]]


def microseconds(moment: datetime) -> int:
    """Return a moment as microseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True)
class World:
    """The values by which all messages of a run are judged.

    Attributes:
        as_of: the moment of the judgement.
        grace: messages that are younger are in flight.
        moving_since: messages that changed since this moment are in flight.
        managed: the topics for which a stub was ever written.
        progress: (broker, group, topic) -> queue id -> the group's committed offset.
        begins: (broker, topic) -> queue id -> the first message that the queue still has.
        oldest: broker -> store time of the first record that its log still has.
        brokers: the names of the brokers whose logs were read. "": a broker without a known name;
            all names that are not in this set count as this broker.
        missing: the brokers whose logs were not reached.
        since: judge only messages of this moment or later. None: no limit.
        until: judge only messages before this moment. None: no limit.
        slack: how much the clocks of the ledgers may differ from the clock of `as_of`.
    """

    as_of: datetime
    grace: timedelta
    moving_since: datetime
    managed: frozenset[str]
    progress: Progress = field(default_factory=dict)
    begins: Begins = field(default_factory=dict)
    oldest: Mapping[str, datetime] = field(default_factory=dict)
    brokers: frozenset[str] = frozenset({""})
    missing: frozenset[str] = frozenset()
    since: datetime | None = None
    until: datetime | None = None
    slack: timedelta = timedelta(0)

    @property
    def late(self) -> int:
        """Messages after this moment are in flight. Microseconds since the epoch."""
        return microseconds(self.as_of - self.grace - self.slack)

    @property
    def past(self) -> int:
        """A moment before this is in the past by every clock. Microseconds since the epoch."""
        return microseconds(self.as_of - self.slack)

    def stores(self, brokers: NameColumn) -> NameColumn:
        """Return, for a column of brokers, the name under which each log was read."""
        known = [name if name in self.brokers else "" for name in brokers.values]
        values = tuple(sorted({*known, ""}))
        new = np.array([*(values.index(name) for name in known), values.index("")], np.int64)
        return NameColumn(new[brokers.codes], values)

    def oldest_in(self, stores: NameColumn) -> np.ndarray:
        """Return the store time of the first record of each store. `NO_TIME`: unknown."""
        known = (self.oldest.get(name) for name in stores.values)
        return np.array([NO_TIME if each is None else microseconds(each) for each in known])


class QueueOffsets:
    """Looks offsets up by names and queue id, for whole columns."""

    def __init__(self, offsets: Progress | Begins) -> None:
        self._places: dict[tuple[str, ...], int] = {
            names: place for place, names in enumerate(offsets)
        }
        rows = sorted(
            (place << _QUEUE_BITS | queue, offset)
            for place, queues in enumerate(offsets.values())
            for queue, offset in queues.items()
            if queue >= 0
        )
        self._keys = np.array([*(key for key, _ in rows), -1], np.int64)
        self._offsets = np.array([*(offset for _, offset in rows), NO_TIME], np.int64)

    def of(self, names: list[tuple[NameColumn, np.ndarray]], queues: np.ndarray) -> np.ndarray:
        """Return the offset of each row, or `NO_TIME` if none is known.

        Args:
            names: for each part of the key, its values and one code for each row.
            queues: the queue id of each row.
        """
        combined = np.zeros(len(queues), np.int64)
        for part, codes in names:
            combined = combined * (len(part.values) + 1) + codes + 1
        encoded = pa.array(combined).dictionary_encode()
        inverse = encoded.indices.to_numpy()
        places = np.array(
            [self._place(names, int(each)) for each in encoded.dictionary.to_pylist()], np.int64
        )
        wanted = (places[inverse] if len(places) else combined) << _QUEUE_BITS
        wanted = np.where(queues >= 0, wanted | queues.astype(np.int64), -2)
        at = np.minimum(np.searchsorted(self._keys[:-1], wanted), len(self._keys) - 1)
        return np.where(self._keys[at] == wanted, self._offsets[at], NO_TIME)

    def _place(self, names: list[tuple[NameColumn, np.ndarray]], combined: int) -> int:
        values: list[str] = []
        for part, _ in reversed(names):
            combined, code = divmod(combined, len(part.values) + 1)
            values.append(part.values[code - 1] if code else "")
        return self._places.get(tuple(reversed(values)), -1)
