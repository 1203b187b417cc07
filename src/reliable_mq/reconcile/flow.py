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

from reliable_mq.reconcile.latency import buckets


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
        leads = verdicts.filter(verdicts["is_lead"])
        for name, way in WAYS.items():
            self._add_latencies(name, leads if way.is_messages else verdicts, way.column)
        for name, way in ARRIVALS.items():
            times = (leads if way.is_messages else verdicts)[way.column].drop_null()
            seconds = times.cast(pa.int64()).to_numpy() // _MICROSECONDS
            slots = seconds // self.slot_seconds * self.slot_seconds
            found, counts = np.unique(slots, return_counts=True)
            slots_of = dict(zip(found.tolist(), counts.tolist(), strict=True))
            self.arrivals[name].update(slots_of)
        self._coarsen()

    def _add_latencies(self, name: str, rows: pa.Table, column: str) -> None:
        known = rows.filter(pc.is_valid(rows[column]))
        if not known.num_rows:
            return
        topics = pc.fill_null(known["topic"].cast(pa.string()), "")
        table = pa.table({"topic": topics, "bucket": buckets(known[column])})
        counted = table.group_by(["topic", "bucket"]).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            place = self.latencies.setdefault((name, row["topic"]), Counter())
            place[row["bucket"]] += row["count_all"]

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


def _merged(counts: Iterable[tuple[int, int]], step: int) -> Counter[int]:
    merged = Counter[int]()
    for slot, count in counts:
        merged[slot // step * step] += count
    return merged
