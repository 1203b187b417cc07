"""The HTML report of a run: one file, no external resources, readable light and dark.

Receives the summary (`summary`); hands on the document, which is `templates/report.html` filled.
Here is what the template cannot say: what is grouped, how charts lie, how numbers are spelt.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from reliable_mq.reconcile.judgement.verdict import MEANINGS, Verdict
from reliable_mq.reconcile.report.report_chart import (
    Chart,
    arrival_columns,
    colour,
    day_columns,
    histogram,
    spell_ms,
)
from reliable_mq.reconcile.report.summary import skipped_sentence, unread_sentence

DAYS_SHOWN_MAX = 62
TOPICS_SHOWN_MAX = 30
_QUANTILES = ("p50", "p90", "p99", "max")
_HOUR, _MINUTE = 3_600, 60
_ORDER = list(Verdict)


def html_report(summary: Mapping[str, Any]) -> str:
    """Return the report as one HTML document."""
    return _TEMPLATES.get_template("report.html").render(
        run=summary,
        skipped=skipped_sentence(summary),
        findings=_findings(summary["findings"]),
        days=_days(summary["by_day"]),
        latencies=_latencies(summary["latency_ms"]),
        slowest=_slowest(summary["stations"]),
        quantiles=_QUANTILES,
        arrivals=_arrivals(summary["throughput"]),
        took=summary.get("seconds", {}).get("all"),
    )


def _findings(
    findings: Sequence[Mapping[str, Any]],
) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the findings of each verdict, in the order of verdicts."""
    in_order = sorted(findings, key=lambda finding: _ORDER.index(Verdict(finding["verdict"])))
    groups = groupby(in_order, key=lambda finding: str(finding["verdict"]))
    return [(verdict, list(group)) for verdict, group in groups]


class _Days(NamedTuple):
    """Charts by topic, with its number of verdicts, and how many topics are not shown."""

    shown: list[tuple[str, int, Chart]]
    hidden: int


def _days(by_day: Sequence[Mapping[str, Any]]) -> _Days:
    """Return the verdicts of each topic by day; nothing when all are of one day."""
    days = sorted({row["day"] for row in by_day})[-DAYS_SHOWN_MAX:]
    if len(days) < 2:
        return _Days([], 0)
    topics: dict[str, dict[str, Mapping[str, int]]] = {}
    for row in by_day:
        topics.setdefault(row["topic"], {})[row["day"]] = row["verdicts"]
    shown = []
    for topic, known in list(topics.items())[:TOPICS_SHOWN_MAX]:
        columns = [(day, known.get(day, {})) for day in days]
        if any(counts for _, counts in columns):
            total = sum(sum(counts.values()) for _, counts in columns)
            shown.append((topic, total, day_columns(columns)))
    return _Days(shown, max(0, len(topics) - TOPICS_SHOWN_MAX))


def _latencies(latencies: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Chart]]:
    """Return how long messages took from station to station, over all topics."""
    return [
        (name, latency, histogram(latency["buckets"], latency))
        for name, latency in latencies.items()
        if latency
    ]


def _slowest(stations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the slowest ways by topic, in the order of stations; nothing of one topic alone."""
    if len({each["topic"] for each in stations}) < 2:
        return []
    names = list(dict.fromkeys(each["station"] for each in stations))
    slowest = sorted(stations, key=lambda each: -each["p99"])[:TOPICS_SHOWN_MAX]
    return sorted(slowest, key=lambda each: names.index(each["station"]))


def _arrivals(throughput: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Chart]]:
    """Return how many messages were committed, stored and consumed when, on one axis."""
    step = throughput["slot_seconds"]
    kinds = {name: each for name, each in throughput.items() if isinstance(each, Mapping)}
    times = [
        datetime.fromisoformat(moment).timestamp()
        for each in kinds.values()
        for moment, _ in each["slots"]
    ]
    if not times:
        return []
    begin, end = min(times), max(times) + step
    return [
        (name, each, arrival_columns(each["slots"], begin, end, step))
        for name, each in kinds.items()
        if each["slots"]
    ]


def _spell_rate(per_second: float) -> str:
    """Return a rate in the unit in which it is one or more."""
    if per_second >= 1:
        return f"{per_second:,.3g}/s" if per_second < _HOUR else f"{per_second:,.0f}/s"
    if per_second * _MINUTE >= 1:
        return f"{per_second * _MINUTE:.3g}/min"
    return f"{per_second * _HOUR:.3g}/h"


_TEMPLATES = Environment(
    loader=PackageLoader("reliable_mq.reconcile.report", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {
    "colour": colour,
    "latency": spell_ms,
    "listed": lambda value: ", ".join(map(str, value)) if isinstance(value, list) else value,
    "meaning": lambda verdict: MEANINGS[Verdict(verdict)],
    "number": "{:,}".format,
    "rate": _spell_rate,
    "unread": unread_sentence,
}
