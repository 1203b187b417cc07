"""Cut a stream of rows that is sorted by message into tables of whole messages. Pure.

All rows of a message are in one table. At most about `rows_min` rows are in memory, as long as
messages are small or `fold` makes them small.
"""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

Fold = Callable[[pa.Table], pa.Table]
"""Takes all rows of one message, and returns fewer rows that give the same verdicts."""


def _as_it_is(rows: pa.Table) -> pa.Table:
    return rows


def whole_messages(
    batches: Iterable[pa.RecordBatch], rows_min: int, fold: Fold = _as_it_is
) -> Iterator[pa.Table]:
    """Cut rows that are sorted by `id` into tables of about `rows_min` rows, between messages.

    Args:
        batches: rows with the column `id`. All rows of an id follow one another.
        rows_min: least rows of a table. It has more if its last batch or message needs them.
        fold: called whenever a message has twice as many rows as `rows_min`, or twice as many as
            the last call returned.
    """
    held: list[pa.RecordBatch] = []
    count = last = 0  # rows in `held`, and those of its last message
    fold_at = 2 * rows_min
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ids = batch.column("id")
        begin = _last_message(ids)
        goes_on = begin == 0 and bool(held) and _same(held[-1].column("id")[-1], ids[0])
        if goes_on:
            held.append(batch)
            count, last = count + batch.num_rows, last + batch.num_rows
        else:
            held, before = [*held, batch.slice(0, begin)], count + begin
            if before >= rows_min:
                yield pa.Table.from_batches(held, batch.schema)
                held, before = [], 0
            last, fold_at = batch.num_rows - begin, 2 * rows_min
            held, count = [*held, batch.slice(begin)], before + last
        if last >= fold_at:
            rows = pa.Table.from_batches(held)
            if count > last:
                yield rows.slice(0, count - last)
            held = fold(rows.slice(count - last)).combine_chunks().to_batches()
            count = last = sum(each.num_rows for each in held)
            fold_at = max(2 * rows_min, 2 * last)
    if held:
        yield pa.Table.from_batches(held)


def _same(one: pa.Scalar, other: pa.Scalar) -> bool:
    return bool(one.as_py() == other.as_py())


def _last_message(ids: pa.Array) -> int:
    """Return the index of the first row with the last id of `ids`."""
    low, high = 0, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        if _same(ids[middle], ids[-1]):
            high = middle
        else:
            low = middle + 1
    return low
