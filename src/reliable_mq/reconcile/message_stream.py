"""Whole messages out of a stream of rows that is sorted by message. Pure."""

from collections.abc import Iterable, Iterator

import pyarrow as pa


def whole_messages(batches: Iterable[pa.RecordBatch], rows_min: int) -> Iterator[pa.Table]:
    """Cut rows that are sorted by `id` into tables of about `rows_min` rows, never in a message.

    Args:
        batches: rows with the column `id`; rows of one id follow one another.
        rows_min: a table is as much larger as the rest of its last batch and message need.
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ids = batch.column("id")
        begin = _last_message(ids)
        is_new = begin > 0 or (bool(held) and not _same(held[-1].column("id")[-1], ids[0]))
        if count + begin >= rows_min and is_new:
            yield pa.Table.from_batches([*held, batch.slice(0, begin)], batch.schema)
            held, count = [batch.slice(begin)], batch.num_rows - begin
        else:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)


def _same(one: pa.Scalar, other: pa.Scalar) -> bool:
    return bool(one.as_py() == other.as_py())


def _last_message(ids: pa.Array) -> int:
    """Return where the rows of the last id of `ids` begin."""
    low, high = 0, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        if _same(ids[middle], ids[-1]):
            high = middle
        else:
            low = middle + 1
    return low
