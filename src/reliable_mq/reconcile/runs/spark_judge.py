"""A task of the judgement: a partition of events in; its verdicts, and what was counted, out.

Runs in Spark's Python workers. Events come sorted by message, so that some hundred thousand are in
memory at a time, however large the partition is. Where the workers can reach the output as files of
their own they write it themselves (`FileTask`): Spark would take every verdict apart into values
and put it together again, which costs more than the judgement. A task that Spark does twice writes
two files then; only those count whose tally came back. Everywhere else Spark writes (`RowTask`).
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from reliable_mq.reconcile.brokers.log_roles import FIRST
from reliable_mq.reconcile.brokers.spark_begins import MovingBegins
from reliable_mq.reconcile.databases import sql_ledger
from reliable_mq.reconcile.databases.sql_details import with_details
from reliable_mq.reconcile.databases.sql_events import tables_events
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, bodies_of
from reliable_mq.reconcile.judgement.events import CARRIED, ROLES
from reliable_mq.reconcile.judgement.fold import folded
from reliable_mq.reconcile.judgement.increments import Increment, carried, completed
from reliable_mq.reconcile.judgement.judge import VERDICTS, judge_traces
from reliable_mq.reconcile.judgement.message_stream import whole_messages
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.traces import Traces, traces_of_rows
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.judgement.world import World

EVENTS_AT_ONCE = 200_000
FILES = pa.schema([("file", pa.string()), ("tally", pa.string())])
CARRIED_ROWS = "carried"
# Without dictionaries, which Spark does not know. The last row of a task is its tally alone.
ROWS = pa.schema(
    [
        *(
            field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
            for field in VERDICTS
        ),
        pa.field("tally", pa.string()),
        pa.field(CARRIED_ROWS, pa.binary()),
    ]
)


# Values that hardly repeat are written as they are, and bounds kept of what one looks for.
_WRITING: dict[str, Any] = {
    "use_dictionary": [field.name for field in VERDICTS if pa.types.is_dictionary(field.type)],
    "write_statistics": ["message_id", "message_time", "verdict", "finding"],
}


def _nowhere(_kept: pa.Table) -> None:
    """Carry nothing."""


@dataclass(frozen=True)
class JudgementContext:
    """What every task needs to know; details of findings come from the tables at `urls`."""

    world: World
    urls: tuple[str, ...]
    prefix: str
    events_at_once: int = EVENTS_AT_ONCE
    increment: Increment | None = None
    told_groups: tuple[str, ...] = ()

    def verdicts(
        self,
        batches: Iterable[pa.RecordBatch],
        tally: Tally,
        carry: Callable[[pa.Table], None] = _nowhere,
    ) -> Iterator[pa.Table]:
        """Judge a partition of `EVENT_ROWS`, and count it.

        `carry` is given the events that the next increment will need.
        """
        unseen: dict[bytes, int] = {}

        def fold(rows: pa.Table) -> pa.Table:
            kept, rest = folded(rows)
            _count(rest, tally)
            identity = rows["id"][0].as_py()
            firsts = int(np.count_nonzero(rest["state"] == ROLES.index(FIRST)))
            unseen[identity] = unseen.get(identity, 0) + firsts
            return kept

        for events in whole_messages(batches, self.events_at_once, fold):
            messages = _without_damage(events, tally)
            if messages.num_rows and self.increment is not None:
                messages = completed(messages, self.increment, self._look_up)
            if messages.num_rows:
                verdicts = self._judged(traces_of_rows(messages), unseen)
                unseen.clear()
                tally.add_verdicts(verdicts)
                if self.increment is not None:
                    kept = carried(messages, verdicts, self.increment.next_since)
                    tally.add_carried(kept)
                    carry(kept)
                yield with_details(verdicts, self.urls, self.prefix)

    def _judged(self, traces: Traces, unseen: Mapping[bytes, int]) -> pa.Table:
        """Judge, and once more by what retention has left by now if something looks wrong.

        All ledgers have been read by then: what went meanwhile is neither lost nor missing.
        """
        verdicts = judge_traces(traces, self.world, unseen)
        world = self._world_behind_brokers(self._world_behind_tables(verdicts), verdicts)
        return verdicts if world is self.world else judge_traces(traces, world, unseen)

    def _world_behind_tables(self, verdicts: pa.Table) -> World:
        """Return the world without what may have been removed from a table while it was read.

        An increment reads nothing that old.
        """
        is_increment = self.increment is not None and self.increment.since is not None
        if is_increment or not pc.any(verdicts["finding"]).as_py():
            return self.world
        marks = [sql_ledger.removed_until(url, self.prefix) for url in self.urls]
        known = [each for each in (*marks, self.world.since) if each is not None]
        since = max(known, default=None)
        return self.world if since == self.world.since else replace(self.world, since=since)

    def _world_behind_brokers(self, world: World, verdicts: pa.Table) -> World:
        begins = world.begins
        is_lost = pc.equal(verdicts["verdict"].cast(pa.string()), str(Verdict.LOST))
        if not isinstance(begins, MovingBegins) or not pc.any(is_lost).as_py():
            return world
        topics = set(verdicts["topic"].filter(is_lost).cast(pa.string()).to_pylist()) - {None}
        queues, oldest = begins.asked_again(topics)
        return replace(world, begins=queues, oldest={**world.oldest, **oldest})

    def _look_up(self, ids: pa.Array) -> pa.Table:
        return tables_events(self.urls, self.prefix, ids, self.told_groups)


@dataclass(frozen=True)
class FileTask:
    """Writes a Parquet file into `folder` and yields one row of `FILES`.

    Files of the same name go into `findings` and, if there is such a folder, into `carried`. They
    are hidden until the run knows that they count: a task that nobody waits for may still write.
    """

    judging: JudgementContext
    folder: str
    findings: str
    carried: str | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Judge a partition."""
        tally = Tally()
        name = f"part-{os.urandom(8).hex()}.parquet"
        hidden = hidden_name(name)
        with ExitStack() as files:
            writer = files.enter_context(_writer(self.folder, hidden, VERDICTS))
            finder = files.enter_context(_writer(self.findings, hidden, VERDICTS))
            carry = _nowhere
            if self.carried is not None:
                carry = files.enter_context(_writer(self.carried, hidden, EVENT_ROWS)).write_table
            for verdicts in self.judging.verdicts(batches, tally, carry):
                writer.write_table(verdicts)
                finder.write_table(verdicts.filter(verdicts["finding"]))
        yield pa.record_batch([[name], [tally.to_json()]], schema=FILES)


def hidden_name(name: str) -> str:
    """Return what a file is called until it counts; readers of Parquet pass over it."""
    return f".{name}"


def _writer(folder: str, name: str, schema: pa.Schema) -> parquet.ParquetWriter:
    writing = _WRITING if schema is VERDICTS else {}
    return parquet.ParquetWriter(Path(folder, name), schema, store_schema=False, **writing)


@dataclass(frozen=True)
class RowTask:
    """Yields verdicts as rows of `ROWS`, what is carried on behind them, and last its tally."""

    judging: JudgementContext

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Judge a partition."""
        tally = Tally()
        kept: list[pa.Table] = []
        for verdicts in self.judging.verdicts(batches, tally, kept.append):
            count = verdicts.num_rows
            rows = verdicts.append_column("tally", pa.nulls(count, pa.string()))
            rows = rows.append_column(CARRIED_ROWS, pa.nulls(count, pa.binary()))
            yield from rows.cast(ROWS).to_batches()
            while kept:
                yield _row(**{CARRIED_ROWS: stream_of(kept.pop())})
        yield _row(tally=tally.to_json())


def _row(**values: object) -> pa.RecordBatch:
    columns = [
        pa.array([values[field.name]], field.type)
        if field.name in values
        else pa.nulls(1, field.type)
        for field in ROWS
    ]
    return pa.record_batch(columns, schema=ROWS)


def stream_of(rows: pa.Table) -> bytes:
    """Return rows as bytes that `rows_in` reads."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of streams, which stand in the column `CARRIED_ROWS`."""
    for batch in batches:
        for stream in batch.column(CARRIED_ROWS):
            yield from pa.ipc.open_stream(stream.as_buffer())


def _without_damage(events: pa.Table, tally: Tally) -> pa.Table:
    """Count events, and return those that are of messages: damage has no id."""
    is_damage = events["id"].is_null()
    if pc.any(is_damage).as_py():
        damage = bodies_of(events.filter(is_damage)["body"].combine_chunks())
        tally.add_damage(damage["size"], damage["log_offset"])
        events = events.filter(pc.invert(is_damage))
    for chunk in events["body"].chunks:
        _count(bodies_of(chunk), tally)
    return events


def _count(body: np.ndarray, tally: Tally) -> None:
    is_new = body["marks"] & CARRIED == 0  # what was carried was counted when it was read
    tally.add_events(body["kind"][is_new], body["state"][is_new])
