"""Charts of the HTML report as inline SVG, in the colours of `report_style`. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from math import log2

from reliable_mq.reconcile.judgement.latency import BUCKETS_PER_DOUBLING, bucket_start_ms
from reliable_mq.reconcile.judgement.verdict import FINDINGS, Verdict

_WIDTH, _HEIGHT, _BASE = 520, 170, 136
_BAR_SHARE = 0.82
_LABEL_ROOM = 20
_WIDTH_MIN = 0.6  # percent: a single finding among millions must still be seen
_MARKS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 864_000_000)
_QUANTILE_LINES = ("p50", "p99")


def colour(verdict: str) -> str:
    """Return the colour of a verdict: green settled, red found, blue on its way, else grey."""
    kind = Verdict(verdict)
    if kind in FINDINGS:
        return "var(--bad)"
    if kind in (Verdict.IN_FLIGHT, Verdict.WAITING):
        return "var(--moving)"
    return "var(--good)" if kind is Verdict.SETTLED else "var(--rest)"


def verdict_bar(counts: Mapping[str, int], height: int) -> str:
    """Return one bar whose parts are the shares of the verdicts."""
    total = sum(counts.values())
    if not total:
        return ""
    shares = {name: max(100 * count / total, _WIDTH_MIN) for name, count in counts.items()}
    scale = 100 / sum(shares.values())
    parts, left = [], 0.0
    for name, share in shares.items():
        width = share * scale
        parts.append(
            f'<rect x="{left:.3f}" width="{width:.3f}" height="{height}" fill="{colour(name)}">'
            f"<title>{escape(name)}: {counts[name]:,}</title></rect>"
        )
        left += width
    return (
        f'<svg viewBox="0 0 100 {height}" height="{height}" preserveAspectRatio="none"'
        f' style="border-radius:{height // 3}px" role="img">{"".join(parts)}</svg>'
    )


_DAY_HEIGHT, _DAY_LABELS, _LABELS_MAX, _SEEN_MIN = 74, 16, 8, 2.5
_KINDS = ("var(--bad)", "var(--moving)", "var(--rest)", "var(--good)")


def day_columns(days: Sequence[tuple[str, Mapping[str, int]]]) -> str:
    """Return a column for each day, as high as its verdicts are many, in parts by their kind.

    A part that would be too low to be seen, one finding among millions, is made as high as needed.
    """
    highest = max(sum(counts.values()) for _, counts in days)
    width = _WIDTH / max(len(days), 14)
    every = -(-len(days) // _LABELS_MAX)
    shapes = []
    for number, (day, counts) in enumerate(days):
        left, top = number * width, float(_DAY_HEIGHT)
        told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        parts = []
        for fill in reversed(_KINDS):  # what is bad lies on top
            count = sum(n for name, n in counts.items() if colour(name) == fill)
            if count:
                height = max(_SEEN_MIN, _DAY_HEIGHT * 0.92 * count / highest)
                top -= height
                parts.append(
                    f'<rect x="{left + 1:.1f}" y="{max(top, 0):.1f}" width="{width * 0.86:.1f}"'
                    f' height="{height:.1f}" fill="{fill}"/>'
                )
        shapes.append(f"<g><title>{escape(day)}: {escape(told)}</title>{''.join(parts)}</g>")
        if number % every == 0:
            shapes.append(
                f'<text x="{left + 1:.1f}" y="{_DAY_HEIGHT + _DAY_LABELS - 3}">'
                f"{escape(day[5:])}</text>"
            )
    height = _DAY_HEIGHT + _DAY_LABELS
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(shapes)}</svg>'


def arrival_columns(slots: Sequence[tuple[str, int]], begin: float, end: float, step: int) -> str:
    """Return arrivals over time.

    Args:
        slots: (ISO time of its beginning, count).
        begin: of the axis, in seconds since the epoch.
        end: of the axis.
        step: how long a slot is, in seconds.
    """
    highest = max(count for _, count in slots)
    scale = _WIDTH / max(end - begin, step * 8)
    bars = []
    for moment, count in slots:
        left = (datetime.fromisoformat(moment).timestamp() - begin) * scale
        height = max(1.5, (_DAY_HEIGHT - 4) * count / highest)
        bars.append(
            f'<rect x="{left:.1f}" y="{_DAY_HEIGHT - height:.1f}" height="{height:.1f}"'
            f' width="{max(step * scale * 0.88, 0.6):.1f}" fill="var(--moving)">'
            f"<title>{escape(moment)}: {count:,}</title></rect>"
        )
    line = (
        f'<line x1="0" x2="{_WIDTH}" y1="{_DAY_HEIGHT}" y2="{_DAY_HEIGHT}" stroke="var(--line)"/>'
    )
    label = f'<text x="0" y="{_DAY_HEIGHT + _DAY_LABELS - 3}">{escape(slots[0][0])}</text>'
    height = _DAY_HEIGHT + _DAY_LABELS
    shapes = "".join(bars)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{line}{shapes}{label}</svg>'


def spell_ms(milliseconds: float) -> str:
    """Return a latency as people write it: 12 ms, 1.5 s, 3 min, 2 h."""
    for limit, divisor, unit in ((1e3, 1, "ms"), (6e4, 1e3, "s"), (3.6e6, 6e4, "min")):
        if milliseconds < limit:
            return f"{milliseconds / divisor:.3g} {unit}"
    return f"{milliseconds / 3.6e6:.3g} h"


def histogram(buckets: Sequence[Sequence[float]], quantiles: Mapping[str, float]) -> str:
    """Return latencies over a logarithmic axis.

    Args:
        buckets: (start in milliseconds, count), as `summary` has them.
        quantiles: name -> milliseconds; some of them become lines.
    """
    starts = [start for start, _ in buckets]
    step = bucket_start_ms(1)
    low, high = min(starts), max(starts) * step
    low, high = min(low, high / 8), max(high, low * 8)  # a few bars do not fill the whole chart

    def place(milliseconds: float) -> float:
        return 8 + (_WIDTH - 16) * _log_share(milliseconds, low, high)

    def label_place(milliseconds: float) -> float:
        return min(max(place(milliseconds), _LABEL_ROOM), _WIDTH - _LABEL_ROOM)

    top = max(count for _, count in buckets)
    bar = (_WIDTH - 16) / (BUCKETS_PER_DOUBLING * _doublings(low, high))
    shapes = [
        f'<line x1="0" x2="{_WIDTH}" y1="{_BASE}" y2="{_BASE}" stroke="var(--line)"/>',
    ]
    for start, count in buckets:
        height = max(1.5, (_BASE - 26) * count / top)
        shapes.append(
            f'<rect x="{place(start):.1f}" y="{_BASE - height:.1f}" width="{bar * _BAR_SHARE:.1f}"'
            f' height="{height:.1f}" rx="1.5" fill="var(--moving)">'
            f"<title>from {spell_ms(start)}: {int(count):,}</title></rect>"
        )
    shapes += [
        f'<text x="{label_place(mark):.1f}" y="{_BASE + 17}" text-anchor="middle">'
        f"{spell_ms(mark)}</text>"
        for mark in _MARKS_MS
        if low <= mark <= high
    ]
    shapes += [
        f'<line x1="{place(at):.1f}" x2="{place(at):.1f}" y1="20" y2="{_BASE}"'
        f' stroke="var(--warn)" stroke-dasharray="3 3"/>'
        f'<text x="{label_place(at):.1f}" y="13" text-anchor="middle">{name} {spell_ms(at)}</text>'
        for name, at in quantiles.items()
        if name in _QUANTILE_LINES
    ]
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(shapes)}</svg>'


def _doublings(low: float, high: float) -> float:
    return log2(high / low)


def _log_share(value: float, low: float, high: float) -> float:
    return _doublings(low, max(value, low)) / _doublings(low, high)
