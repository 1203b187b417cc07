"""The parts of the HTML report that tell of time: days, latencies, throughput. Pure.

Receives parts of the summary; hands on HTML. What comes from a ledger is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from reliable_mq.reconcile.report.report_chart import (
    arrival_columns,
    day_columns,
    histogram,
    spell_ms,
)

DAYS_SHOWN_MAX = 62
TOPICS_SHOWN_MAX = 30
_QUANTILES = ("p50", "p90", "p99", "max")
_HOUR, _MINUTE = 3_600, 60


def days_section(by_day: Sequence[Mapping[str, Any]]) -> str:
    """Return the verdicts of each topic by day; nothing when all are of one day."""
    days = sorted({row["day"] for row in by_day})[-DAYS_SHOWN_MAX:]
    if len(days) < 2:
        return ""
    topics: dict[str, dict[str, Mapping[str, int]]] = {}
    for row in by_day:
        topics.setdefault(row["topic"], {})[row["day"]] = row["verdicts"]
    charts = []
    for topic, known in list(topics.items())[:TOPICS_SHOWN_MAX]:
        columns = [(day, known.get(day, {})) for day in days]
        if any(counts for _, counts in columns):
            total = sum(sum(counts.values()) for _, counts in columns)
            charts.append(
                f"<div><b>{escape(topic or 'no topic')}</b>"
                f'<p class="soft">{total:,} verdicts</p>{day_columns(columns)}</div>'
            )
    hidden = len(topics) - TOPICS_SHOWN_MAX
    more = f'<p class="soft">and {hidden} more topics, in summary.json</p>' if hidden > 0 else ""
    title = "By topic and day"
    return f'<section><h2>{title}</h2><div class="charts">{"".join(charts)}</div>{more}</section>'


def latency_section(latencies: Mapping[str, Any], stations: Sequence[Mapping[str, Any]]) -> str:
    """Return how long messages took from station to station, over all topics and by topic."""
    charts = []
    for name, latency in latencies.items():
        if latency:
            told = " · ".join(f"{each} {spell_ms(latency[each])}" for each in _QUANTILES)
            charts.append(
                f'<div><b>{escape(name)}</b><p class="soft">{latency["count"]:,} · {told}</p>'
                f"{histogram(latency['buckets'], latency)}</div>"
            )
    if not charts:
        return ""
    table = _by_topic(stations) if len({each["topic"] for each in stations}) > 1 else ""
    return (
        '<section><h2>Latency between stations</h2><div class="charts">'
        f"{''.join(charts)}</div>{table}</section>"
    )


def _by_topic(stations: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(each["station"] for each in stations))
    slowest = sorted(stations, key=lambda each: -each["p99"])[:TOPICS_SHOWN_MAX]
    in_order = sorted(slowest, key=lambda each: names.index(each["station"]))
    rows = (
        (
            escape(each["topic"]),
            escape(each["station"]),
            f"{each['count']:,}",
            *(spell_ms(each[name]) for name in _QUANTILES),
        )
        for each in in_order
    )
    return table(("topic", "from … to", "messages", *_QUANTILES), rows, numbers_from=2)


def throughput_section(throughput: Mapping[str, Any]) -> str:
    """Return how many messages were committed, stored and consumed when."""
    step = throughput["slot_seconds"]
    kinds = {name: each for name, each in throughput.items() if isinstance(each, Mapping)}
    times = [
        datetime.fromisoformat(moment).timestamp()
        for each in kinds.values()
        for moment, _ in each["slots"]
    ]
    if not times:
        return ""
    begin, end = min(times), max(times) + step
    charts = [
        f'<div><b>{escape(name)}</b><p class="soft">{each["count"]:,} ·'
        f" {_spell_rate(each['per_second'])} · busiest {_spell_rate(each['busiest_per_second'])}"
        f"</p>{arrival_columns(each['slots'], begin, end, step)}</div>"
        for name, each in kinds.items()
        if each["slots"]
    ]
    return f'<section><h2>Throughput</h2><div class="charts">{"".join(charts)}</div></section>'


def _spell_rate(per_second: float) -> str:
    """Return a rate in the unit in which it is one or more."""
    if per_second >= 1:
        return f"{per_second:,.3g}/s" if per_second < _HOUR else f"{per_second:,.0f}/s"
    if per_second * _MINUTE >= 1:
        return f"{per_second * _MINUTE:.3g}/min"
    return f"{per_second * _HOUR:.3g}/h"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None = None
) -> str:
    """Return a table; the cells are HTML already.

    Args:
        heads: of the columns; one without a name is wide.
        rows: the cells.
        numbers_from: the column from which on cells are numbers.
    """
    first = len(heads) if numbers_from is None else numbers_from
    kinds = [' class="number"' if place >= first else "" for place in range(len(heads))]
    head = "".join(
        f"<th{kind if name else ' class=wide'}>{escape(name)}</th>"
        for name, kind in zip(heads, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
