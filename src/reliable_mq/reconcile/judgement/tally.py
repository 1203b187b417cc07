"""The counts of a run: verdicts by the keys of the report, and the rows of the ledgers. Pure.

Every partition of the judgement counts its own rows. It returns the counts as data together with
its verdicts. So a partition that Spark runs twice is counted once.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.reconcile.brokers.log_roles import FIRST
from reliable_mq.reconcile.judgement.doubts import Doubts
from reliable_mq.reconcile.judgement.events import LOG, RECORD, ROLES, STUB, TOLD
from reliable_mq.reconcile.judgement.flow import Flow
from reliable_mq.reconcile.judgement.twin_ids import TwinIds
from reliable_mq.reconcile.judgement.unchecked import count_unchecked
from reliable_mq.reconcile.report.summary import SummaryRow

_KEYS = ("verdict", "finding", "topic", "consumer_group")
_MICROSECONDS_OF_DAY = 86_400_000_000
_SUMS = ("rows", "messages", "copies", "retries")
LEDGERS = (
    *("stubs", "consume_logs", "first_deliveries", "other_copies"),
    *("damaged_stretches", "damaged_bytes"),
)


class Tally:
    """Counts that can be added.

    Attributes:
        ledgers: the number of rows of each ledger.
        damaged_from: the lowest log offset of damage. None: no damage.
        flow: latencies and arrivals.
        doubts: effects in doubt.
        skips: messages that a person let a group skip.
        twins: ids of two messages.
        carried: number of messages that are carried to the next increment.
        unchecked: number of messages whose content was not compared with their stubs.
    """

    def __init__(self) -> None:
        """Start with empty counts."""
        self.ledgers = Counter[str]()
        self.damaged_from: int | None = None
        self.flow = Flow()
        self.doubts = Doubts()
        self.skips = Doubts("log_skipped")
        self.twins = TwinIds()
        self.carried = 0
        self.unchecked = 0
        self._groups: dict[tuple[Any, ...], np.ndarray] = {}

    def add_events(self, kinds: np.ndarray, states: np.ndarray) -> None:
        """Count the rows of the ledgers, without damage."""
        records = int(np.count_nonzero(kinds == RECORD))
        firsts = np.count_nonzero((kinds == RECORD) & (states == ROLES.index(FIRST)))
        self.ledgers["stubs"] += int(np.count_nonzero(kinds == STUB))
        self.ledgers["consume_logs"] += int(np.count_nonzero((kinds == LOG) | (kinds == TOLD)))
        self.ledgers["first_deliveries"] += int(firsts)
        self.ledgers["other_copies"] += records - int(firsts)

    def add_damage(self, sizes: np.ndarray, log_offsets: np.ndarray) -> None:
        """Count damaged parts of a log: `sizes` in bytes, and the offsets where they begin."""
        self.ledgers["damaged_stretches"] += len(sizes)
        self.ledgers["damaged_bytes"] += int(sizes.sum())
        self._begin_damage(min(log_offsets.tolist(), default=None))

    def _begin_damage(self, log_offset: int | None) -> None:
        known = [each for each in (self.damaged_from, log_offset) if each is not None]
        self.damaged_from = min(known, default=None)

    def add_verdicts(self, verdicts: pa.Table) -> None:
        """Count rows of `judge.VERDICTS`."""
        is_lead = verdicts["is_lead"].to_numpy()
        copies = np.maximum(verdicts["record_copies"].to_numpy() - 1, 0)
        counts = (  # in the order of `_SUMS`
            np.ones(len(is_lead), np.int64),
            is_lead.astype(np.int64),
            np.where(is_lead, copies, 0).astype(np.int64),
            verdicts["retries"].to_numpy().astype(np.int64),
        )
        keys = {name: verdicts[name] for name in _KEYS}
        times = verdicts["message_time"].cast(pa.int64())
        keys["day"] = pc.divide(times, pa.scalar(_MICROSECONDS_OF_DAY))
        for key, sums in _summed(keys, counts):
            self._groups[key] = self._groups.get(key, np.zeros(len(_SUMS), np.int64)) + sums
        self.flow.add(verdicts)
        self.doubts.add(verdicts)
        self.skips.add(verdicts)
        self.twins.add(verdicts)
        self.unchecked += count_unchecked(verdicts)

    def add_carried(self, rows: pa.Table) -> None:
        """Count the messages that are carried to the next increment."""
        self.carried += pc.count_distinct(rows["id"]).as_py()

    def groups(self) -> list[SummaryRow]:
        """Return the counts of verdicts, by the keys of the report."""
        return [SummaryRow(*key, *map(int, sums)) for key, sums in self._groups.items()]

    def ledger_counts(self) -> dict[str, int | None]:
        """Return the counts of the ledgers' rows, for the summary."""
        return {name: self.ledgers[name] for name in LEDGERS} | {"damaged_from": self.damaged_from}

    def to_json(self) -> str:
        """Return the counts as a JSON text, for `add_json`."""
        groups = [[*key, *map(int, sums)] for key, sums in self._groups.items()]
        told = (self.doubts.to_data(), self.skips.to_data())
        parts = (self.flow.to_data(), told, self.twins.to_data())
        counts = [dict(self.ledgers), self.damaged_from, self.carried, self.unchecked]
        data = [*counts, groups, *parts]
        return json.dumps(data)

    def add_json(self, text: str) -> None:
        """Add the counts of another tally."""
        ledgers, damaged_from, carried, unchecked, groups, flow, told, twins = json.loads(text)
        self.flow.add_data(flow)
        self.doubts.add_data(told[0])
        self.skips.add_data(told[1])
        self.twins.add_data(twins)
        self.ledgers.update(ledgers)
        self.carried += carried
        self.unchecked += unchecked
        self._begin_damage(damaged_from)
        width = len(_SUMS)
        for row in groups:
            key = tuple(row[:-width])
            sums = np.array(row[-width:], np.int64)
            self._groups[key] = self._groups.get(key, np.zeros(width, np.int64)) + sums


def _summed(
    keys: Mapping[str, pa.ChunkedArray | pa.Array], counts: Sequence[np.ndarray]
) -> Iterable[tuple[tuple[Any, ...], np.ndarray]]:
    """Yield each existing combination of keys, with the sums of its rows."""
    place = np.zeros(len(counts[0]), np.int64)
    values = []
    for column in keys.values():
        encoded = pc.dictionary_encode(column)
        chunk = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        codes = chunk.indices.fill_null(-1).to_numpy()
        values.append([*chunk.dictionary.to_pylist(), None])
        place = place * len(values[-1]) + codes % len(values[-1])
    encoded = pa.array(place).dictionary_encode()
    inverse = encoded.indices.to_numpy()
    found = encoded.dictionary.to_pylist()
    sums = [np.bincount(inverse, weights=each, minlength=len(found)) for each in counts]
    for number, combined in enumerate(found):
        key: list[Any] = []
        rest = combined
        for each in reversed(values):
            rest, code = divmod(rest, len(each))
            key.append(each[code])
        yield tuple(reversed(key)), np.array([each[number] for each in sums], np.int64)
