"""The summary of a run: counts, findings with their proof, how messages flowed. Pure; for JSON."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from reliable_mq.reconcile.judgement.evidence import evidence_of, sentence
from reliable_mq.reconcile.judgement.flow import WAYS, Flow
from reliable_mq.reconcile.judgement.latency import bucket_start_ms, quantile_ms
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.repairs.repair import ALL_THAT_IS_SAFE

FINDINGS_SHOWN_MAX = 1_000
SLOTS_SHOWN_MAX = 96
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_EPOCH = date(1970, 1, 1)
LOG, MESSAGE_IDS, CONTENTS = "broker log", "message ids", "message contents"
OLD_STUBS, MANAGED = "old stubs", "managed topics"


class SummaryRow(NamedTuple):
    """Counts of the rows that agree in all that stands before `rows`.

    `day` is that of the message's time, UTC, in days since the epoch; None: no ledger knows it.
    `messages` counts each message once, at its first consumer group; `copies` the deliveries to the
    broker beyond the first; `retries` the deliveries to a consumer beyond the first.
    """

    verdict: str
    is_finding: bool
    topic: str | None
    consumer_group: str
    day: int | None
    rows: int
    messages: int
    copies: int
    retries: int


def summarize(
    *,
    run_id: str,
    moment: Mapping[str, Any],
    ledgers: Mapping[str, Any],
    groups: Sequence[SummaryRow],
    findings: Iterable[Mapping[str, Any]],
    flow: Flow,
    whole: Mapping[str, str | None],
    read_topics: Collection[str] | None,
) -> dict[str, Any]:
    """Return the summary; docs/explanation/reconciliation.md names its fields.

    Args:
        run_id: of the run.
        moment: when the ledgers were read, and which messages were judged.
        ledgers: rows that were read of each, and what is damaged.
        groups: the counts of verdicts.
        findings: the first of them.
        flow: latencies and arrivals.
        whole: what is missing of each ledger, None: nothing.
        read_topics: topics of which a consumer group has committed an offset; None: not known.
    """
    found = sum(group.rows for group in groups if group.is_finding)
    told = dict(whole)
    if ledgers["damaged_stretches"]:
        told[LOG] = _damage(ledgers)
    is_clean = found == 0 and not any(told.values())
    return {
        "run_id": run_id,
        **moment,
        "clean": is_clean,
        "exit_code": 0 if is_clean else 2,
        "ledgers": dict(ledgers),
        "whole": told,
        "messages": sum(group.messages for group in groups),
        "rows": sum(group.rows for group in groups),
        "verdicts": verdict_counts(groups),
        "by_topic": _by_topic(groups),
        "unread_topics": _unread_topics(groups, read_topics),
        "by_day": _by_day(groups),
        "suppressed_copies": sum(group.copies for group in groups),
        "retries": sum(group.retries for group in groups),
        "latency_ms": _latencies(flow),
        "stations": _stations(flow),
        "throughput": _throughput(flow),
        "findings_total": found,
        "findings": [_finding(row) for row in findings],
    }


def _damage(ledgers: Mapping[str, Any]) -> str:
    if ledgers["damaged_stretches"] == 1:
        return (
            f"{ledgers['damaged_bytes']:,} bytes from log offset {ledgers['damaged_from']} on are"
            " no records"
        )
    return (
        f"{ledgers['damaged_stretches']} stretches, together {ledgers['damaged_bytes']:,} bytes,"
        f" are no records; the first begins at log offset {ledgers['damaged_from']}"
    )


def verdict_counts(groups: Iterable[SummaryRow]) -> dict[str, int]:
    """Return how many rows have each verdict, of those that any has."""
    counts = Counter[str]()
    for group in groups:
        counts[group.verdict] += group.rows
    return {str(v): counts[v] for v in Verdict if counts[v]}


def _by_topic(groups: Iterable[SummaryRow]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], list[SummaryRow]] = {}
    for group in groups:
        rows.setdefault((group.topic or "", group.consumer_group), []).append(group)
    return [
        {"topic": topic, "consumer_group": name, "verdicts": verdict_counts(those)}
        for (topic, name), those in sorted(rows.items())
    ]


def _unread_topics(
    groups: Iterable[SummaryRow], read_topics: Collection[str] | None
) -> list[dict[str, Any]]:
    """Return the topics that nobody is known to read, with their settled messages.

    Such a message is settled because the broker stored it. No row of the topic has a consumer
    group, so no stub waits for one, and no group has consumed a message.
    """
    if read_topics is None:
        return []
    settled = Counter[str]()
    awaited = set(read_topics)
    for group in groups:
        if group.consumer_group:
            awaited.add(group.topic or "")
        elif group.verdict == Verdict.SETTLED:
            settled[group.topic or ""] += group.messages
    return [
        {"topic": topic, "messages": settled[topic]} for topic in sorted(settled.keys() - awaited)
    ]


def unread_sentence(unread: Mapping[str, Any]) -> str:
    """Return an item of `unread_topics` as a sentence for people."""
    count = unread["messages"]
    messages = "1 message of it counts" if count == 1 else f"{count:,} messages of it count"
    return (
        f"nobody is known to read topic {unread['topic']}: {messages} as settled because the broker"
        " stored what was sent. The brokers keep no offset of a consumer group in it"
    )


def skipped_sentence(summary: Mapping[str, Any]) -> str:
    """Return how many messages people let groups skip, for people; "": none."""
    count = summary.get("skipped", {}).get("count", 0)
    if not count:
        return ""
    messages = "1 message was" if count == 1 else f"{count:,} messages were"
    return (
        f"{messages} skipped for a group by a person: settled without an effect, no finding;"
        " summary.json lists the newest under skipped"
    )


def _by_day(groups: Iterable[SummaryRow]) -> list[dict[str, Any]]:
    rows: dict[tuple[int, str], list[SummaryRow]] = {}
    for group in groups:
        if group.day is not None:
            rows.setdefault((group.day, group.topic or ""), []).append(group)
    return [
        {
            "day": (_EPOCH + timedelta(days=day)).isoformat(),
            "topic": topic,
            "messages": sum(group.messages for group in those),
            "verdicts": verdict_counts(those),
        }
        for (day, topic), those in sorted(rows.items())
    ]


def _latencies(flow: Flow) -> dict[str, Any]:
    """Return each way's latencies over all topics, None where nothing went it."""
    found: dict[str, Any] = dict.fromkeys(WAYS)
    for name in WAYS:
        for topic, counts in flow.by_topic(name):
            if not topic:
                buckets = [
                    [round(bucket_start_ms(bucket), 2), counts[bucket]] for bucket in sorted(counts)
                ]
                found[name] = {**_quantiles(counts), "buckets": buckets}
    return found


def _stations(flow: Flow) -> list[dict[str, Any]]:
    return [
        {"station": name, "topic": topic, **_quantiles(counts)}
        for name in WAYS
        for topic, counts in flow.by_topic(name)
        if topic
    ]


def _quantiles(counts: Counter[int]) -> dict[str, Any]:
    quantiles = {
        name: round(quantile_ms(counts, share) or 0.0, 1) for name, share in _SHARES.items()
    }
    return {"count": counts.total(), **quantiles}


def _throughput(flow: Flow) -> dict[str, Any]:
    step, arrived = flow.arrived(SLOTS_SHOWN_MAX)
    return {"slot_seconds": step, **{name: _rate(each, step) for name, each in arrived.items()}}


def _rate(counts: Counter[int], step: int) -> dict[str, Any]:
    if not counts:
        return {"count": 0, "per_second": 0.0, "busiest_per_second": 0.0, "slots": []}
    begins = sorted(counts)
    seconds = begins[-1] - begins[0] + step
    return {
        "count": counts.total(),
        "per_second": round(counts.total() / seconds, 3),
        "busiest_per_second": round(max(counts.values()) / step, 3),
        "slots": [[_moment(begin), counts[begin]] for begin in begins],
    }


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


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
