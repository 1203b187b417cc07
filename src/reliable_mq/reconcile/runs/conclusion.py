"""How a run ends, in an order in which it may be killed anywhere. Pure; the steps are given.

First the run's files are whole, then its row commits with its findings, then stubs are repaired,
each repair in a transaction with its audit, which names the row; last the run becomes the newest.
Killed before the row, a run has never been: the next one sweeps its folder. Killed behind it, the
run stands, and what it had no time to repair is found again by the next one.
"""

import json
from collections.abc import Callable
from typing import Any

from reliable_mq.reconcile.report.report_html import html_report
from reliable_mq.reconcile.runs.run_folder import REPORT, SUMMARY, VERDICTS, RunFolder

Summary = dict[str, Any]


def keep(folder: RunFolder, summary: Summary, record: Callable[[Summary], None]) -> None:
    """Write the run's files, then its row, by `record`."""
    summary["report"] = f"{folder.place}/{REPORT}"
    summary["parquet"] = f"{folder.place}/{VERDICTS}"
    _write(folder, summary)
    record(summary)


def finish(
    folder: RunFolder, summary: Summary, repair: Callable[[], dict[str, Any]] | None
) -> None:
    """Repair, if that is asked for, and say so in the run's files; then it is the newest run."""
    if repair is not None:
        summary["repair"] = repair()
        _write(folder, summary)
    folder.publish()


def _write(folder: RunFolder, summary: Summary) -> None:
    folder.write(REPORT, html_report(summary))
    folder.write(SUMMARY, json.dumps(summary, indent=2) + "\n")
