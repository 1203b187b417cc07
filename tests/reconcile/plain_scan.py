"""Commit logs as rows: bytes read record by record, and partitions as the product reads them."""

from collections.abc import Iterator

import pyarrow as pa

from reliable_mq.reconcile.brokers.file_store import LogPartition, read_batches
from reliable_mq.reconcile.brokers.log_roles import USUAL, RecordContext
from reliable_mq.reconcile.brokers.log_scan import LogRow, ScanEnd, read_row, record_starts
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA


def scan(
    buffer: bytes, log_offset: int, *, check_body: bool, customs: RecordContext = USUAL
) -> tuple[list[LogRow], int, ScanEnd]:
    """Read the records that lie one after another from the beginning of `buffer`, one by one.

    Returns:
        The rows, how many bytes they took, and why the scan ended.
    """
    rows: list[LogRow] = []
    starts, used, end = record_starts(buffer)
    for at in starts:
        row = read_row(buffer, at, log_offset + at, check_body=check_body, context=customs)
        if row is None:
            return rows, at, ScanEnd.INVALID
        rows.append(row)
    return rows, used, end


def rows_of(partition: LogPartition, *, check_body: bool) -> Iterator[LogRow]:
    """Yield what the product reads of a partition, times in milliseconds."""
    for batch in read_batches(partition, LOG_SCHEMA, check_body=check_body):
        columns = [_plain(column) for column in batch.columns]
        yield from map(LogRow._make, zip(*columns, strict=True))


def _plain(column: pa.Array) -> list[object]:
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    times: list[int | None] = column.cast(pa.int64()).to_pylist()
    return [time if time is None else time // 1000 for time in times]
