"""Merge sorted streams of rows into one sorted stream, with whole columns at a time. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc


def merged(streams: Sequence[Iterable[pa.RecordBatch]], order: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of all streams in order. One batch of each stream is in memory at a time.

    If a stream is not sorted, its rows come out of order, but none is lost.

    Args:
        streams: each is sorted by the first column of `order`, which is never null.
        order: the columns to sort by. In columns after the first, null is after every value.
    """
    waiting = [(batch for batch in stream if batch.num_rows) for stream in streams]
    held: list[pa.Table | None] = [None] * len(waiting)
    while True:
        for place, stream in enumerate(waiting):
            if held[place] is None and (batch := next(stream, None)) is not None:
                held[place] = pa.Table.from_batches([batch])
        rows = [table for table in held if table is not None]
        if not rows:
            return
        # Later batches of a stream are not before the rows of it that are held.
        bound = min(pc.max(table[order[0]]).as_py() for table in rows)
        ready = []
        for place, table in enumerate(held):
            if table is not None:
                is_ready = pc.less_equal(table[order[0]], bound)
                ready.append(table.filter(is_ready))
                rest = table.filter(pc.invert(is_ready))
                held[place] = rest if rest.num_rows else None
        found = pa.concat_tables(ready)
        yield found.sort_by([(name, "ascending") for name in order])
