"""The last steps of a run, in an order that allows a kill at any point. Pure: the caller acts.

1. Write the run's files completely.
2. Commit the run's row together with its findings.
3. Repair stubs. Each repair is a transaction with an audit row that names the run.
4. Make the run the newest one.

If a run is killed before step 2, it counts as never done, and the next run removes its folder. If
it is killed later, the run is valid, and the next run finds the unrepaired stubs again.
"""

import json
from collections.abc import Callable
from typing import Any

from reliable_mq.reconcile.report.report_html import html_report
from reliable_mq.reconcile.runs.run_folder import REPORT, SUMMARY, VERDICTS, RunFolder

Summary = dict[str, Any]


def keep(folder: RunFolder, summary: Summary, record: Callable[[Summary], None]) -> None:
    """Write the run's files, then its row by calling `record`."""
    summary["report"] = f"{folder.place}/{REPORT}"
    summary["parquet"] = f"{folder.place}/{VERDICTS}"
    _write(folder, summary)
    record(summary)


def finish(
    folder: RunFolder, summary: Summary, repair: Callable[[], dict[str, Any]] | None
) -> None:
    """Repair if `repair` is given, add the outcome to the run's files, and make it the newest."""
    if repair is not None:
        summary["repair"] = repair()
        _write(folder, summary)
    folder.publish()


def _write(folder: RunFolder, summary: Summary) -> None:
    folder.write(REPORT, html_report(summary))
    folder.write(SUMMARY, json.dumps(summary, indent=2) + "\n")
