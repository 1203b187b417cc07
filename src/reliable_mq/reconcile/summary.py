"""The summary of a run: counts, findings with their proof, latencies. Pure; ready for JSON."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from reliable_mq.reconcile.evidence import evidence_of, sentence
from reliable_mq.reconcile.latency import bucket_start_ms, quantile_ms
from reliable_mq.reconcile.repair import ALL_THAT_IS_SAFE
from reliable_mq.reconcile.verdict import Verdict

FINDINGS_SHOWN_MAX = 1_000
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Group(NamedTuple):
    """Counts of the rows that agree in all that stands before `rows`.

    `stored` and `consumed` are latency buckets (`latency`). `messages` counts each message once,
    at its first consumer group; `copies` the deliveries to the broker beyond the first; `retries`
    the deliveries to a consumer beyond the first.
    """

    verdict: str
    is_finding: bool
    topic: str | None
    consumer_group: str
    stored: int | None
    consumed: int | None
    rows: int
    messages: int
    copies: int
    retries: int


def summarize(
    *,
    run_id: str,
    moment: Mapping[str, Any],
    ledgers: Mapping[str, Any],
    groups: Sequence[Group],
    findings: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the summary; docs/reconciliation.md names its fields."""
    counts = Counter[str]()
    for group in groups:
        counts[group.verdict] += group.rows
    found = sum(group.rows for group in groups if group.is_finding)
    is_clean = found == 0 and ledgers["damaged_stretches"] == 0
    return {
        "run_id": run_id,
        **moment,
        "clean": is_clean,
        "exit_code": 0 if is_clean else 2,
        "ledgers": dict(ledgers),
        "messages": sum(group.messages for group in groups),
        "rows": sum(group.rows for group in groups),
        "verdicts": {str(v): counts[v] for v in Verdict if counts[v]},
        "by_topic": _by_topic(groups),
        "suppressed_copies": sum(group.copies for group in groups),
        "retries": sum(group.retries for group in groups),
        "latency_ms": {
            "commit to broker": _latency(groups, "stored", "messages"),
            "commit to effect": _latency(groups, "consumed", "rows"),
        },
        "findings_total": found,
        "findings": [_finding(row) for row in findings],
    }


def _by_topic(groups: Iterable[Group]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], Counter[str]] = {}
    for group in groups:
        place = rows.setdefault((group.topic or "", group.consumer_group), Counter())
        place[group.verdict] += group.rows
    return [
        {
            "topic": topic,
            "consumer_group": name,
            "verdicts": {str(v): counts[v] for v in Verdict if counts[v]},
        }
        for (topic, name), counts in sorted(rows.items())
    ]


def _latency(groups: Iterable[Group], bucket_of: str, weight_of: str) -> dict[str, Any] | None:
    counts = Counter[int]()
    for group in groups:
        bucket, weight = getattr(group, bucket_of), getattr(group, weight_of)
        if bucket is not None and weight:
            counts[bucket] += weight
    if not counts:
        return None
    quantiles = {
        name: round(quantile_ms(counts, share) or 0.0, 1) for name, share in _SHARES.items()
    }
    buckets = [[round(bucket_start_ms(bucket), 2), counts[bucket]] for bucket in sorted(counts)]
    return {"count": counts.total(), **quantiles, "buckets": buckets}


def _finding(row: Mapping[str, Any]) -> dict[str, Any]:
    action = ALL_THAT_IS_SAFE.action_for(row)
    return {
        "verdict": row["verdict"],
        "message_id": row["message_id"],
        "consumer_group": row["consumer_group"],
        "topic": row["topic"],
        "says": sentence(row),
        "repair": str(action) if action else None,
        "evidence": evidence_of(row),
    }
