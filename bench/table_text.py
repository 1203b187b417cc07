"""What all tables share: rows, figures, and the line that says where they are from."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

OURS = "reliable_mq"


def median_of(rounds: Iterable[dict[str, Any]], name: str) -> float | None:
    """Return the median of a figure of some rounds; None where there are none."""
    values = [each[name] for each in rounds]
    return median(values) if values else None


def figure_text(value: float | None, form: str) -> str:
    """Return a figure as text; "" for none."""
    return "" if value is None else format(value, form)


def table_text(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as a table of Markdown, the first one as its head."""
    head, *body = rows
    ruler = ("---", *("---:" for _ in head[1:]))
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *body)) + "\n"


def origin_text(results: dict[str, Any]) -> str:
    """Return the line below a table: when, where and how it was measured."""
    machine = results["machine"]
    settings = ", ".join(f"{name} {value}" for name, value in results["settings"].items())
    return (
        f"\n{results['finished'][:10]}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, load average {machine['load_average']} at the end; "
        f"{settings}.\n"
    )
