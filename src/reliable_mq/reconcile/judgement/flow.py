"""The flow of messages: latencies between stations, and arrivals over time. Pure.

Receives verdicts in parts. Returns counts that can be added in any order. The counts stay small for
any number of messages: latencies are counted in buckets, and arrivals in time slots. If there are
too many slots, they become longer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.reconcile.judgement.latency import BUCKETS_PER_DOUBLING, buckets


class _Way:
    """A column of times. `is_messages`: its value is the same for all groups of a message."""

    def __init__(self, column: str, *, is_messages: bool) -> None:
        self.column = column
        self.is_messages = is_messages


# Each latency is from one station to another, in the order of a message's life.
WAYS: Mapping[str, _Way] = {
    "commit to broker": _Way("stored_ms", is_messages=True),
    "delay to delivery": _Way("delivered_ms", is_messages=True),
    "broker to effect": _Way("effect_ms", is_messages=False),
    "commit to effect": _Way("consumed_ms", is_messages=False),
}
# Each arrival, with the column of its time.
ARRIVALS: Mapping[str, _Way] = {
    "committed": _Way("stub_create_date", is_messages=True),
    "stored": _Way("record_store_time", is_messages=True),
    "consumed": _Way("log_consume_date", is_messages=False),
}
COLUMNS = tuple(each.column for each in (*WAYS.values(), *ARRIVALS.values()))
SLOT_SECONDS = (1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_419_200, 31_449_600)
SLOTS_MAX = 2_000
_MICROSECONDS = 1_000_000
_BUCKETS = 64 * BUCKETS_PER_DOUBLING  # as many as milliseconds of 64 bits can have


class Flow:
    """Counts of latencies and arrivals.

    Invariant: each kind of arrival has at most `SLOTS_MAX` slots, unless a slot lasts a year.

    Attributes:
        latencies: (way, topic) -> bucket -> count.
        slot_seconds: the length of a slot.
        arrivals: kind -> start of a slot in seconds since the epoch -> count.
    """

    def __init__(self) -> None:
        """Start with empty counts."""
        self.latencies: dict[tuple[str, str], Counter[int]] = {}
        self.slot_seconds = SLOT_SECONDS[0]
        self.arrivals: dict[str, Counter[int]] = {name: Counter() for name in ARRIVALS}

    def add(self, verdicts: pa.Table) -> None:
        """Count verdicts: rows with `topic`, `is_lead` and `COLUMNS`."""
        verdicts = verdicts.select(["topic", *COLUMNS, "is_lead"])  # a filter copies every column
        leads = verdicts.filter(verdicts["is_lead"])
        for name, way in WAYS.items():
            self._add_latencies(name, leads if way.is_messages else verdicts, way.column)
        for name, way in ARRIVALS.items():
            times = (leads if way.is_messages else verdicts)[way.column].drop_null()
            seconds = times.cast(pa.int64()).to_numpy() // _MICROSECONDS
            step, counts = _slots(seconds, self.slot_seconds)
            self._lengthen_slots(step)
            self.arrivals[name].update(counts)
        self._lengthen_slots()

    def _add_latencies(self, name: str, rows: pa.Table, column: str) -> None:
        known = rows.select(["topic", column]).filter(pc.is_valid(rows[column]))
        topic = pc.dictionary_encode(known["topic"]).combine_chunks()
        names = [*pc.fill_null(topic.dictionary, "").to_pylist(), ""]
        codes = topic.indices.fill_null(len(names) - 1).to_numpy()
        counted = np.bincount(codes.astype(np.int64) * _BUCKETS + buckets(known[column]).to_numpy())
        for place in np.flatnonzero(counted).tolist():
            code, bucket = divmod(place, _BUCKETS)
            counts = self.latencies.setdefault((name, names[code]), Counter())
            counts[bucket] += int(counted[place])

    def _lengthen_slots(self, least: int = 0) -> None:
        """Make slots longer, until they last `least` seconds and are at most `SLOTS_MAX`."""
        while self.slot_seconds < SLOT_SECONDS[-1] and (
            self.slot_seconds < least or max(map(len, self.arrivals.values())) > SLOTS_MAX
        ):
            self.slot_seconds = SLOT_SECONDS[SLOT_SECONDS.index(self.slot_seconds) + 1]
            self.arrivals = {
                name: _merged(counts.items(), self.slot_seconds)
                for name, counts in self.arrivals.items()
            }

    def invariants(self) -> bool:
        """Return whether the invariant holds."""
        few = all(len(counts) <= SLOTS_MAX for counts in self.arrivals.values())
        return few or self.slot_seconds == SLOT_SECONDS[-1]

    def to_data(self) -> list[Any]:
        """Return the counts as JSON values, for `add_data`."""
        latencies = [[*key, list(counts.items())] for key, counts in self.latencies.items()]
        arrivals = [[name, list(counts.items())] for name, counts in self.arrivals.items()]
        return [latencies, self.slot_seconds, arrivals]

    def add_data(self, data: Iterable[Any]) -> None:
        """Add the counts of another flow."""
        latencies, slot_seconds, arrivals = data
        for name, topic, counts in latencies:
            self.latencies.setdefault((name, topic), Counter()).update(dict(counts))
        self._lengthen_slots(slot_seconds)
        for name, counts in arrivals:
            self.arrivals[name].update(_merged(counts, self.slot_seconds))
        self._lengthen_slots()

    def by_topic(self, name: str) -> Iterator[tuple[str, Counter[int]]]:
        """Yield each topic with the latencies of one way. First "": the sum of all topics."""
        found = {topic: counts for (way, topic), counts in self.latencies.items() if way == name}
        if found:
            yield "", sum(found.values(), Counter())
        yield from sorted((topic, counts) for topic, counts in found.items() if topic)

    def arrived(self, bars: int) -> tuple[int, dict[str, Counter[int]]]:
        """Return the length of a slot in seconds, and the arrivals in at most `bars` slots."""
        times = [slot for counts in self.arrivals.values() for slot in counts]
        spread = max(times, default=0) - min(times, default=0)
        step = next(
            (each for each in SLOT_SECONDS if each >= self.slot_seconds and spread / each < bars),
            SLOT_SECONDS[-1],
        )
        return step, {name: _merged(each.items(), step) for name, each in self.arrivals.items()}


def _slots(seconds: np.ndarray, step: int) -> tuple[int, dict[int, int]]:
    """Return the length of the slots, at least `step` seconds, and the counts of times by slot.

    If this part alone has too many slots, they are made longer here, where arrays make it fast.
    """
    slots, counts = np.unique(seconds // step * step, return_counts=True)
    while len(slots) > SLOTS_MAX and step < SLOT_SECONDS[-1]:
        step = SLOT_SECONDS[SLOT_SECONDS.index(step) + 1]
        slots, place = np.unique(slots // step * step, return_inverse=True)
        counts = np.bincount(place, weights=counts).astype(counts.dtype)
    return step, dict(zip(slots.tolist(), counts.tolist(), strict=True))


def _merged(counts: Iterable[tuple[int, int]], step: int) -> Counter[int]:
    merged = Counter[int]()
    for slot, count in counts:
        merged[slot // step * step] += count
    return merged
