"""Where the shapes of the report's charts lie; `templates/report.html` draws them. Pure.

Receives counts and times; hands on `Chart` values in the coordinates of an SVG, in the colours of
the page's style sheet.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import log2
from typing import NamedTuple

from reliable_mq.reconcile.judgement.latency import BUCKETS_PER_DOUBLING, bucket_start_ms
from reliable_mq.reconcile.judgement.verdict import FINDINGS, Verdict

_WIDTH, _HEIGHT, _BASE = 520, 170, 136
_BAR_SHARE = 0.82
_LABEL_ROOM = 20
_MARKS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 864_000_000)
_QUANTILE_LINES = ("p50", "p99")
_DAY_HEIGHT, _DAY_LABELS, _LABELS_MAX, _SEEN_MIN = 74, 16, 8, 2.5
_KINDS = ("var(--bad)", "var(--moving)", "var(--rest)", "var(--good)")


class Bar(NamedTuple):
    """A rectangle; `says` is shown by a mouse over it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    says: str = ""


class Column(NamedTuple):
    """Bars above each other, which say one thing."""

    says: str
    bars: Sequence[Bar]


class Label(NamedTuple):
    """A text; `anchor` says which part of it is at `x`."""

    x: float
    y: float
    text: str
    anchor: str = "start"


class Chart(NamedTuple):
    """All that is drawn of one chart.

    `axis` is the height of the line that bars stand on, None: there is none. `marks` are the places
    of dashed lines that stand on it.
    """

    height: int
    labels: Sequence[Label]
    columns: Sequence[Column] = ()
    bars: Sequence[Bar] = ()
    axis: float | None = None
    marks: Sequence[float] = ()
    width: int = _WIDTH


def colour(verdict: str) -> str:
    """Return the colour of a verdict: green settled, red found, blue on its way, else grey."""
    kind = Verdict(verdict)
    if kind in FINDINGS:
        return "var(--bad)"
    if kind in (Verdict.IN_FLIGHT, Verdict.WAITING):
        return "var(--moving)"
    return "var(--good)" if kind is Verdict.SETTLED else "var(--rest)"


def day_columns(days: Sequence[tuple[str, Mapping[str, int]]]) -> Chart:
    """Return a column for each day, as high as its verdicts are many, in parts by their kind.

    A part that would be too low to be seen, one finding among millions, is made as high as needed.
    """
    highest = max(sum(counts.values()) for _, counts in days)
    width = _WIDTH / max(len(days), 14)
    columns = []
    for number, (day, counts) in enumerate(days):
        top, bars = float(_DAY_HEIGHT), []
        for fill in reversed(_KINDS):  # what is bad lies on top
            count = sum(n for name, n in counts.items() if colour(name) == fill)
            if count:
                height = max(_SEEN_MIN, _DAY_HEIGHT * 0.92 * count / highest)
                top -= height
                bars.append(_bar(number * width + 1, max(top, 0), width * 0.86, height, fill))
        text = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        columns.append(Column(f"{day}: {text}", bars))
    every = -(-len(days) // _LABELS_MAX)
    labels = [
        Label(round(number * width + 1, 1), _DAY_HEIGHT + _DAY_LABELS - 3, days[number][0][5:])
        for number in range(0, len(days), every)
    ]
    return Chart(_DAY_HEIGHT + _DAY_LABELS, labels, columns)


def arrival_columns(slots: Sequence[tuple[str, int]], begin: float, end: float, step: int) -> Chart:
    """Return arrivals over time.

    Args:
        slots: (ISO time of its beginning, count).
        begin: of the axis, in seconds since the epoch.
        end: of the axis.
        step: how long a slot is, in seconds.
    """
    highest = max(count for _, count in slots)
    scale = _WIDTH / max(end - begin, step * 8)
    width = max(step * scale * 0.88, 0.6)
    bars = []
    for moment, count in slots:
        left = (datetime.fromisoformat(moment).timestamp() - begin) * scale
        height = max(1.5, (_DAY_HEIGHT - 4) * count / highest)
        says = f"{moment}: {count:,}"
        bars.append(_bar(left, _DAY_HEIGHT - height, width, height, "var(--moving)", says))
    labels = [Label(0, _DAY_HEIGHT + _DAY_LABELS - 3, slots[0][0])]
    return Chart(_DAY_HEIGHT + _DAY_LABELS, labels, bars=bars, axis=_DAY_HEIGHT)


def spell_ms(milliseconds: float) -> str:
    """Return a latency as people write it: 12 ms, 1.5 s, 3 min, 2 h."""
    for limit, divisor, unit in ((1e3, 1, "ms"), (6e4, 1e3, "s"), (3.6e6, 6e4, "min")):
        if milliseconds < limit:
            return f"{milliseconds / divisor:.3g} {unit}"
    return f"{milliseconds / 3.6e6:.3g} h"


def histogram(buckets: Sequence[Sequence[float]], quantiles: Mapping[str, float]) -> Chart:
    """Return latencies over a logarithmic axis.

    Args:
        buckets: (start in milliseconds, count), as `summary` has them.
        quantiles: name -> milliseconds; some of them become lines.
    """
    starts = [start for start, _ in buckets]
    low, high = min(starts), max(starts) * bucket_start_ms(1)
    low, high = min(low, high / 8), max(high, low * 8)  # a few bars do not fill the whole chart
    doublings = log2(high / low)

    def place(milliseconds: float) -> float:
        return 8 + (_WIDTH - 16) * log2(max(milliseconds, low) / low) / doublings

    def label(milliseconds: float, y: float, text: str) -> Label:
        x = min(max(place(milliseconds), _LABEL_ROOM), _WIDTH - _LABEL_ROOM)
        return Label(round(x, 1), y, text, "middle")

    top = max(count for _, count in buckets)
    width = (_WIDTH - 16) / (BUCKETS_PER_DOUBLING * doublings) * _BAR_SHARE
    bars = []
    for start, count in buckets:
        height = max(1.5, (_BASE - 26) * count / top)
        says = f"from {spell_ms(start)}: {int(count):,}"
        bars.append(_bar(place(start), _BASE - height, width, height, "var(--moving)", says))
    labels = [label(mark, _BASE + 17, spell_ms(mark)) for mark in _MARKS_MS if low <= mark <= high]
    lines = {name: quantiles[name] for name in _QUANTILE_LINES if name in quantiles}
    labels += [label(at, 13, f"{name} {spell_ms(at)}") for name, at in lines.items()]
    marks = [round(place(at), 1) for at in lines.values()]
    return Chart(_HEIGHT, labels, bars=bars, axis=_BASE, marks=marks)


def _bar(  # a tenth of a pixel is enough
    x: float, y: float, width: float, height: float, fill: str, says: str = ""
) -> Bar:
    return Bar(round(x, 1), round(y, 1), round(width, 1), round(height, 1), fill, says)
