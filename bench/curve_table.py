"""The table of `curves`."""

from typing import Any

from bench.table_text import figure_text, origin_text, table_text

BAR = 1.5


def curves_table(results: dict[str, Any]) -> str:
    """One line per figure: the range, its value at both ends, and how many times it grew."""
    rows: list[tuple[str, ...]] = [("what", "from", "to", "at from", "at to", "unit", "ratio")]
    for each in results["rounds"]:
        (small, *_, large), (first, *_, last) = each["sizes"], each["values"]
        ratio = figure_text(last / first if first else None, ".2f")
        values = (f"{small:,}", f"{large:,}", figure_text(first, ",.4g"), figure_text(last, ",.4g"))
        rows.append((each["what"], *values, each["unit"], ratio))
    return table_text(rows) + origin_text(results)
