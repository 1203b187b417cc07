"""Latencies as counts per bucket, four buckets to each doubling: cheap to add up anywhere. Pure."""

from collections.abc import Mapping

BUCKETS_PER_DOUBLING = 4


def bucket_sql(column: str) -> str:
    """Return SQL for the bucket of a column of milliseconds; null stays null."""
    bucket = f"CAST(floor(log2(greatest({column}, 1)) * {BUCKETS_PER_DOUBLING}) AS INT)"
    return f"CASE WHEN {column} IS NOT NULL THEN {bucket} END"  # greatest() passes over null


def bucket_start_ms(bucket: int) -> float:
    """Return the smallest latency of a bucket, in milliseconds."""
    return float(2 ** (bucket / BUCKETS_PER_DOUBLING))


def quantile_ms(counts: Mapping[int, int], share: float) -> float | None:
    """Return the latency that `share` of the counted ones do not exceed, None without any.

    It is the end of a bucket, at most 19 % above the true value.
    """
    wanted = share * sum(counts.values())
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            return bucket_start_ms(bucket + 1)
    return None
