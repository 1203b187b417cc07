"""A task of the judgement: a partition of events in; its verdicts, and what was counted, out.

Runs in Spark's Python workers. Events come sorted by message, so that some hundred thousand are in
memory at a time, however large the partition is. Where the workers can reach the output as files of
their own they write it themselves (`FileTask`): Spark would take every verdict apart into values
and put it together again, which costs more than the judgement. A task that Spark does twice writes
two files then; only those count whose tally came back. Everywhere else Spark writes (`RowTask`).
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from reliable_mq.reconcile.event_rows import bodies_of
from reliable_mq.reconcile.events import ROLES
from reliable_mq.reconcile.fold import folded
from reliable_mq.reconcile.judge import VERDICTS, judge_traces
from reliable_mq.reconcile.log_roles import FIRST
from reliable_mq.reconcile.message_stream import whole_messages
from reliable_mq.reconcile.sql_details import with_details
from reliable_mq.reconcile.tally import Tally
from reliable_mq.reconcile.traces import traces_of_rows
from reliable_mq.reconcile.world import World

EVENTS_AT_ONCE = 200_000
FILES = pa.schema([("file", pa.string()), ("tally", pa.string())])
# Without dictionaries, which Spark does not know. The last row of a task is its tally alone.
ROWS = pa.schema(
    [
        *(
            field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
            for field in VERDICTS
        ),
        pa.field("tally", pa.string()),
    ]
)


# Values that hardly repeat are written as they are, and bounds kept of what one looks for.
_WRITING: dict[str, Any] = {
    "use_dictionary": [field.name for field in VERDICTS if pa.types.is_dictionary(field.type)],
    "write_statistics": ["message_id", "message_time", "verdict", "finding"],
}


@dataclass(frozen=True)
class Judging:
    """What every task needs to know; details of findings come from the tables at `urls`."""

    world: World
    urls: tuple[str, ...]
    prefix: str
    events_at_once: int = EVENTS_AT_ONCE

    def verdicts(self, batches: Iterable[pa.RecordBatch], tally: Tally) -> Iterator[pa.Table]:
        """Judge a partition of `EVENT_ROWS`, and count it."""
        unseen: dict[bytes, int] = {}

        def fold(rows: pa.Table) -> pa.Table:
            kept, rest = folded(rows)
            tally.add_events(rest["kind"], rest["state"])
            identity = rows["id"][0].as_py()
            firsts = int(np.count_nonzero(rest["state"] == ROLES.index(FIRST)))
            unseen[identity] = unseen.get(identity, 0) + firsts
            return kept

        for events in whole_messages(batches, self.events_at_once, fold):
            messages = _without_damage(events, tally)
            if messages.num_rows:
                verdicts = judge_traces(traces_of_rows(messages), self.world, unseen)
                unseen.clear()
                tally.add_verdicts(verdicts)
                yield with_details(verdicts, self.urls, self.prefix)


@dataclass(frozen=True)
class FileTask:
    """Writes a Parquet file into `folder` and yields one row of `FILES`."""

    judging: Judging
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Judge a partition."""
        tally = Tally()
        path = Path(self.folder, f"part-{os.urandom(8).hex()}.parquet")
        with parquet.ParquetWriter(path, VERDICTS, store_schema=False, **_WRITING) as writer:
            for verdicts in self.judging.verdicts(batches, tally):
                writer.write_table(verdicts)
        yield pa.record_batch([[path.name], [tally.to_json()]], schema=FILES)


@dataclass(frozen=True)
class RowTask:
    """Yields verdicts as rows of `ROWS`, and last its tally."""

    judging: Judging

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Judge a partition."""
        tally = Tally()
        for verdicts in self.judging.verdicts(batches, tally):
            nothing = pa.nulls(verdicts.num_rows, pa.string())
            yield from verdicts.append_column("tally", nothing).cast(ROWS).to_batches()
        nulls = [pa.nulls(1, field.type) for field in ROWS][:-1]
        yield pa.record_batch([*nulls, pa.array([tally.to_json()])], schema=ROWS)


def _without_damage(events: pa.Table, tally: Tally) -> pa.Table:
    """Count events, and return those that are of messages: damage has no id."""
    is_damage = events["id"].is_null()
    if pc.any(is_damage).as_py():
        damage = bodies_of(events.filter(is_damage)["body"].combine_chunks())
        tally.add_damage(damage["size"], damage["log_offset"])
        events = events.filter(pc.invert(is_damage))
    for chunk in events["body"].chunks:
        body = bodies_of(chunk)
        tally.add_events(body["kind"], body["state"])
    return events
