"""The task of the judgement: judges one partition of events, and returns verdicts and counts.

It runs in Spark's Python workers. Events are sorted by message, so only some hundred thousand are
in memory, for any size of the partition. If the output is on local files, the workers write it
themselves (`FileTask`). Otherwise Spark would convert every value of every verdict, at a higher
cost than the judgement. If Spark runs such a task twice, it writes two files; only the file whose
tally came back counts. For all other outputs Spark writes the verdicts (`RowTask`).
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
# Without dictionaries, which Spark does not support. The last row of a task has only its tally.
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


# Dictionaries only for values that repeat, and statistics only for columns that people search.
_WRITING: dict[str, Any] = {
    "use_dictionary": [field.name for field in VERDICTS if pa.types.is_dictionary(field.type)],
    "write_statistics": ["message_id", "message_time", "verdict", "finding"],
}


def _carry_nothing(_kept: pa.Table) -> None:
    """Carry nothing."""


@dataclass(frozen=True)
class JudgementContext:
    """The input that every task needs. Details of findings come from the tables at `urls`."""

    world: World
    urls: tuple[str, ...] = field(repr=False)
    prefix: str
    events_at_once: int = EVENTS_AT_ONCE
    increment: Increment | None = None
    groups_with_notices: tuple[str, ...] = ()

    def verdicts(
        self,
        batches: Iterable[pa.RecordBatch],
        tally: Tally,
        carry: Callable[[pa.Table], None] = _carry_nothing,
    ) -> Iterator[pa.Table]:
        """Judge a partition of `EVENT_ROWS`, and add its counts to `tally`.

        `carry` is called with the events that the next increment needs.
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
        """Judge. If there are findings, judge again with what retention has left by now.

        All ledgers have been read before. So rows and messages that retention removed meanwhile do
        not count as lost or missing.
        """
        verdicts = judge_traces(traces, self.world, unseen)
        world = self._world_behind_brokers(self._world_behind_tables(verdicts), verdicts)
        return verdicts if world is self.world else judge_traces(traces, world, unseen)

    def _world_behind_tables(self, verdicts: pa.Table) -> World:
        """Return the world without the time from which retention may have removed rows meanwhile.

        An increment does not read rows that old.
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
        return tables_events(self.urls, self.prefix, ids, self.groups_with_notices)


@dataclass(frozen=True)
class FileTask:
    """Writes a Parquet file to `folder`, and yields one row of `FILES`.

    Files with the same name go to `findings` and, if it is given, to `carried`. The files are
    hidden until the run knows that they count, because an abandoned task may still write.
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
            carry = _carry_nothing
            if self.carried is not None:
                carry = files.enter_context(_writer(self.carried, hidden, EVENT_ROWS)).write_table
            for verdicts in self.judging.verdicts(batches, tally, carry):
                writer.write_table(verdicts)
                finder.write_table(verdicts.filter(verdicts["finding"]))
        yield pa.record_batch([[name], [tally.to_json()]], schema=FILES)


def hidden_name(name: str) -> str:
    """Return the name of a file until it counts. Readers of Parquet ignore such names."""
    return f".{name}"


def _writer(folder: str, name: str, schema: pa.Schema) -> parquet.ParquetWriter:
    writing = _WRITING if schema is VERDICTS else {}
    return parquet.ParquetWriter(Path(folder, name), schema, store_schema=False, **writing)


@dataclass(frozen=True)
class RowTask:
    """Yields verdicts as rows of `ROWS`, then the carried events, and last its tally."""

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
    """Return rows as bytes, for `rows_in`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the streams in the column `CARRIED_ROWS`."""
    for batch in batches:
        for stream in batch.column(CARRIED_ROWS):
            yield from pa.ipc.open_stream(stream.as_buffer())


def _without_damage(events: pa.Table, tally: Tally) -> pa.Table:
    """Count events, and return those of messages. Damage has no id and is only counted."""
    is_damage = events["id"].is_null()
    if pc.any(is_damage).as_py():
        damage = bodies_of(events.filter(is_damage)["body"].combine_chunks())
        tally.add_damage(damage["size"], damage["log_offset"])
        events = events.filter(pc.invert(is_damage))
    for chunk in events["body"].chunks:
        _count(bodies_of(chunk), tally)
    return events


def _count(body: np.ndarray, tally: Tally) -> None:
    is_new = body["marks"] & CARRIED == 0  # carried events were counted when they were read
    tally.add_events(body["kind"][is_new], body["state"][is_new])
