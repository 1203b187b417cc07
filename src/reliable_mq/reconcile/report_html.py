"""The HTML report of a run: one file, no external resources, readable light and dark. Pure."""

import html
from collections.abc import Mapping
from typing import Any


def html_report(summary: Mapping[str, Any]) -> str:
    """Return the report as one HTML document."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{count}</td></tr>"
        for name, count in summary["verdicts"].items()
    )
    return f"<!doctype html><meta charset=utf-8><title>Reconciliation</title><table>{rows}</table>"
