"""Latencies as counts in buckets, four for each doubling. The counts are easy to add. Pure."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BUCKETS_PER_DOUBLING = 4


def buckets(milliseconds: pa.ChunkedArray) -> pa.Array:
    """Return the bucket of each value of a column of milliseconds. Null stays null."""
    values = np.maximum(pc.fill_null(milliseconds, 1).to_numpy(), 1)
    found = np.floor(np.log2(values) * BUCKETS_PER_DOUBLING).astype(np.int32)
    return pa.array(found, mask=milliseconds.is_null().to_numpy())


def bucket_start_ms(bucket: int) -> float:
    """Return the smallest latency of a bucket, in milliseconds."""
    return float(2 ** (bucket / BUCKETS_PER_DOUBLING))


def quantile_ms(counts: Mapping[int, int], share: float) -> float | None:
    """Return the quantile of the counted latencies for `share` (0 to 1), or None if there are none.

    It is the upper end of a bucket, at most 19 % above the true value.
    """
    wanted = share * sum(counts.values())
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            return bucket_start_ms(bucket + 1)
    return None
