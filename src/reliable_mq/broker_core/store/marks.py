"""Marks: moments of a store that a checkpoint notes later, when their queues are written.

A store that never rests always has unwritten queues. A checkpoint of one moment needs only those
that waited then, and they are written a few at a time while others grow.
"""

import msgspec


class Dispatched(msgspec.Struct, frozen=True):
    """The last dispatched record: its end, its begin and its store time."""

    end: int = 0
    last_record: int = -1
    time_ms: int = 0


class StoreMark(msgspec.Struct, frozen=True):
    """What was dispatched at a moment.

    Attributes:
        dispatched: the last record.
        waiting: how many queues waited for a write: those that `QueueUpkeep.flush_some` writes
            first.
        lacks: `QueueUpkeep.lacks`. If it is the same when all of them had their turn, they are
            written.
    """

    dispatched: Dispatched
    waiting: int
    lacks: int
