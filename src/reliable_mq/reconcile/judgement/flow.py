"""How messages flowed: from station to station how long, and how many arrived when. Pure.

Receives verdicts, a part at a time; hands on counts that add up in any order. They stay small
however many messages there are: latencies are counted in buckets, arrivals in slots of time that
grow when there are too many of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.reconcile.judgement.latency import BUCKETS_PER_DOUBLING, buckets


class _Way:
    """A column of milliseconds; `is_messages`: it is the message's, the same for all its groups."""

    def __init__(self, column: str, *, is_messages: bool) -> None:
        self.column = column
        self.is_messages = is_messages


# From which station to which, in the order of a message's walk.
WAYS: Mapping[str, _Way] = {
    "commit to broker": _Way("stored_ms", is_messages=True),
    "delay to delivery": _Way("delivered_ms", is_messages=True),
    "broker to effect": _Way("effect_ms", is_messages=False),
    "commit to effect": _Way("consumed_ms", is_messages=False),
}
# What arrives where, and the column of the time.
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

    Invariant: there are at most `SLOTS_MAX` slots of each kind of arrival, unless they last a year.
    `latencies`: (way, topic) -> bucket -> count. `slot_seconds`: how long a slot is; `arrivals`:
    kind -> beginning of a slot in seconds since the epoch -> count.
    """

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self.latencies: dict[tuple[str, str], Counter[int]] = {}
        self.slot_seconds = SLOT_SECONDS[0]
        self.arrivals: dict[str, Counter[int]] = {name: Counter() for name in ARRIVALS}

    def add(self, verdicts: pa.Table) -> None:
        """Count verdicts: rows with `topic`, `is_lead` and `COLUMNS`."""
        verdicts = verdicts.select(["topic", *COLUMNS, "is_lead"])  # what is left out costs a copy
        leads = verdicts.filter(verdicts["is_lead"])
        for name, way in WAYS.items():
            self._add_latencies(name, leads if way.is_messages else verdicts, way.column)
        for name, way in ARRIVALS.items():
            times = (leads if way.is_messages else verdicts)[way.column].drop_null()
            seconds = times.cast(pa.int64()).to_numpy() // _MICROSECONDS
            step, counts = _slots(seconds, self.slot_seconds)
            self._coarsen(step)
            self.arrivals[name].update(counts)
        self._coarsen()

    def _add_latencies(self, name: str, rows: pa.Table, column: str) -> None:
        known = rows.select(["topic", column]).filter(pc.is_valid(rows[column]))
        topic = pc.dictionary_encode(known["topic"]).combine_chunks()
        names = [*pc.fill_null(topic.dictionary, "").to_pylist(), ""]
        codes = topic.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
        counted = np.bincount(codes.astype(np.int64) * _BUCKETS + buckets(known[column]).to_numpy())
        for place in np.flatnonzero(counted).tolist():
            code, bucket = divmod(place, _BUCKETS)
            counts = self.latencies.setdefault((name, names[code]), Counter())
            counts[bucket] += int(counted[place])

    def _coarsen(self, least: int = 0) -> None:
        """Make slots longer until there are few enough of them, or until they are `least` long."""
        while self.slot_seconds < SLOT_SECONDS[-1] and (
            self.slot_seconds < least or max(map(len, self.arrivals.values())) > SLOTS_MAX
        ):
            self.slot_seconds = SLOT_SECONDS[SLOT_SECONDS.index(self.slot_seconds) + 1]
            self.arrivals = {
                name: _merged(counts.items(), self.slot_seconds)
                for name, counts in self.arrivals.items()
            }

    def invariants(self) -> bool:
        """Return whether what the class promises holds."""
        few = all(len(counts) <= SLOTS_MAX for counts in self.arrivals.values())
        return few or self.slot_seconds == SLOT_SECONDS[-1]

    def to_data(self) -> list[Any]:
        """Return the counts as values that JSON knows, which `add_data` reads."""
        latencies = [[*key, list(counts.items())] for key, counts in self.latencies.items()]
        arrivals = [[name, list(counts.items())] for name, counts in self.arrivals.items()]
        return [latencies, self.slot_seconds, arrivals]

    def add_data(self, data: Iterable[Any]) -> None:
        """Add the counts of another flow."""
        latencies, slot_seconds, arrivals = data
        for name, topic, counts in latencies:
            self.latencies.setdefault((name, topic), Counter()).update(dict(counts))
        self._coarsen(slot_seconds)
        for name, counts in arrivals:
            self.arrivals[name].update(_merged(counts, self.slot_seconds))
        self._coarsen()

    def by_topic(self, name: str) -> Iterator[tuple[str, Counter[int]]]:
        """Yield each topic with the latencies of one way, those of all topics first as ""."""
        found = {topic: counts for (way, topic), counts in self.latencies.items() if way == name}
        if found:
            yield "", sum(found.values(), Counter())
        yield from sorted((topic, counts) for topic, counts in found.items() if topic)

    def arrived(self, bars: int) -> tuple[int, dict[str, Counter[int]]]:
        """Return how long a slot is, and the arrivals, in at most `bars` slots from end to end."""
        times = [slot for counts in self.arrivals.values() for slot in counts]
        spread = max(times, default=0) - min(times, default=0)
        step = next(
            (each for each in SLOT_SECONDS if each >= self.slot_seconds and spread / each < bars),
            SLOT_SECONDS[-1],
        )
        return step, {name: _merged(each.items(), step) for name, each in self.arrivals.items()}


def _slots(seconds: np.ndarray, step: int) -> tuple[int, dict[int, int]]:
    """Return the counts of times by slots of at least `step` seconds, and how long the slots are.

    They are made longer here, while they are arrays, when one part alone has too many.
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
