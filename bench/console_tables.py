"""The tables of `console_pages` and `console_beside`."""

from itertools import groupby
from typing import Any

from bench.table_text import origin_text, table_text


def console_table(results: dict[str, Any]) -> str:
    """One line per kind of page: its slowest page; then the figures that are no page."""
    head = ("pages", "how many", "p50 ms", "p95 ms", "max ms", "bar", "the slowest")
    rows: list[tuple[str, ...]] = [head]
    pages = [each for each in results["rounds"] if "p95_ms" in each]
    for kind, of_kind in groupby(pages, key=lambda each: _kind_of(each["what"])):
        these = list(of_kind)
        slowest = max(these, key=lambda each: each["p95_ms"])
        figures = (f"{slowest[name]:.0f}" for name in ("p50_ms", "p95_ms", "max_ms"))
        bar = f"< {slowest['bar_ms']:g}"
        rows.append((kind, str(len(these)), *figures, bar, f"`{slowest['what']}`"))
    more: list[tuple[str, ...]] = [("what", "figure", "unit", "bar")]
    more += [
        (each["what"], f"{each['value']:,.4g}", each["unit"], each["bar"])
        for each in results["rounds"]
        if "value" in each
    ]
    return f"{table_text(rows)}\n{table_text(more)}{origin_text(results)}"


def _kind_of(name: str) -> str:
    """Return the list of a page, or what it is."""
    if name.startswith("/"):
        return name.replace(",", "?").partition("?")[0]
    return name.partition(" ")[0].strip(",") if name.startswith(("search", "overview")) else name
