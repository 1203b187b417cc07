"""Runs of reconciliation as files: the folder of `reconcile --out`, which `--runs` names.

Receives the folder. Reads the summary of each run; it has the first 1,000 findings with their
proof. Only folders that are listed are opened, so no name in an address leads elsewhere.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from reliable_mq.console.list_runs import RUN_COLUMNS, RUN_FIELDS, said_of_run
from reliable_mq.console.lists import Field, FilterFault, ListColumn, ListPage, RowList, WantedPage
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_pages import part_of
from reliable_mq.plain_text import printable
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.runs.run_folder import REPORT, SUMMARY, run_in

SUMMARY_SIZE_MAX = 32 * 1024 * 1024
RUNS_MAX = 1_000
"""So many of the newest runs are listed."""
NO_FOLDER = (
    "no folder of runs was given: start the console with --runs DIR, that of reconcile --out"
)


class RunFile(NamedTuple):
    """The summary of a run, and when it was written. `fault`: why it cannot be read."""

    run_id: str
    summary: Mapping[str, Any]
    written: datetime
    fault: str
    has_report: bool


def run_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of runs by their ids, the newest first.

    Raises:
        OSError: the folder cannot be read.
    """
    found = {
        run_id: path
        for path in folder.iterdir()
        if (run_id := run_in(path.name)) and path.is_dir() and not path.is_symlink()
    }
    newest = sorted(found, reverse=True)[:RUNS_MAX]
    return {run_id: found[run_id] for run_id in newest}


def report_of(folder: Path, run_id: str) -> Path | None:
    """Return the report of a run; None: there is none."""
    path = run_folders(folder).get(run_id)
    report = path / REPORT if path is not None else None
    is_there = report is not None and report.is_file() and not report.is_symlink()
    return report if is_there else None


def read_run(run_id: str, path: Path) -> RunFile:
    """Return the summary of a run.

    Raises:
        OSError: the folder is gone.
    """
    file, report = path / SUMMARY, path / REPORT
    written, summary, fault = path.stat().st_mtime, {}, ""
    try:
        known = file.stat()
        written = known.st_mtime
        if known.st_size > SUMMARY_SIZE_MAX:
            fault = "its summary is too long to show"
        elif isinstance(found := json.loads(file.read_bytes()), dict):
            summary = found
        else:
            fault = "its summary is none"
    except FileNotFoundError:
        fault = "it has not ended, or was killed: it has no summary"
    except (OSError, ValueError, RecursionError) as error:
        fault = f"its summary cannot be read: {error}"
    moment = datetime.fromtimestamp(written, UTC)
    return RunFile(run_id, summary, moment, fault, has_report=report.is_file())


def _runs(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    if sources.runs is None:
        return ListPage((), away=(NO_FOLDER,))
    folders = run_folders(sources.runs)
    names, after = part_of([{"run_id": each} for each in folders], wanted.cursor, wanted.limit)
    # A summary may have 32 MiB: each is let go before the next one is read.
    rows = [_run_row(read_run(each["run_id"], folders[each["run_id"]])) for each in names]
    rows = [row for row in rows if wanted.agrees("findings", row["findings"])]
    if wanted.values.get("since"):
        rows = [row for row in rows if row["finish_date"] >= wanted.values["since"]]
    return ListPage(rows, after)


def _run_row(run: RunFile) -> dict[str, Any]:
    summary = run.summary
    findings = summary.get("findings_total")
    is_known = isinstance(findings, int) and not run.fault
    said = said_of_run(
        _table(summary.get("verdicts")),
        _table(summary.get("whole")),
        is_clean=summary.get("clean") is True,
        has_findings=bool(findings),
    )
    return {
        "run_id": run.run_id,
        "findings": findings if is_known else None,
        "finish_date": run.written,
        "as_of": _time(summary.get("as_of")),
        "since": _time(summary.get("since")),
        "until": _time(summary.get("until")),
        "report": run.run_id if run.has_report else "",
        **said,
        "state": said["state"] if is_known else "unreadable",
        "missing": run.fault or said["missing"],
    }


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _time(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


RUN_FILES = RowList(
    name="run-files",
    title="Runs in files",
    summary="Runs of reconciliation in the folder of --runs, the newest first.",
    empty="No run matches on this page. Begin one with: reliable-mq reconcile --out DIR",
    columns=(
        ListColumn("run_id", "Run", "run_file"),
        *RUN_COLUMNS,
        ListColumn("missing", "What is missing", "long"),
        ListColumn("report", "Report", "report"),
    ),
    fields=RUN_FIELDS,
    page=_runs,
)


_ASKED = {
    "verdict": "verdict",
    "topic": "topic",
    "group": "consumer_group",
    "message": "message_id",
}
"""The columns of the fields."""


def _findings(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    if sources.runs is None:
        return ListPage((), away=(NO_FOLDER,))
    folders = run_folders(sources.runs)
    run_id = wanted.text("run") or next(iter(folders), "")
    if run_id not in folders:
        if not folders:
            return ListPage(*part_of((), wanted.cursor, wanted.limit))
        raise FilterFault(f"the folder has no run {printable(run_id, 60)!r}")
    run = read_run(run_id, folders[run_id])
    if run.fault:
        return ListPage((), away=(f"run {run_id}: {run.fault}",))
    listed = run.summary.get("findings")
    found = [_finding_row(sources, run_id, each) for each in listed or () if isinstance(each, dict)]
    total = run.summary.get("findings_total")
    rows = [
        row
        for row in found
        if all(wanted.text(field) in ("", str(row[name])) for field, name in _ASKED.items())
    ]
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    is_cut = isinstance(total, int) and total > len(found)
    note = f"of {total:,} findings, the summary has the first {len(found):,}" if is_cut else ""
    return ListPage(page, after, notes=(note,) if note else ())


def _finding_row(
    sources: ConsoleSources, run_id: str, finding: Mapping[str, Any]
) -> dict[str, Any]:
    fields = sources.mq._declared.sensitive_of(str(finding.get("topic") or ""))
    return {
        "run_id": run_id,
        **{
            name: finding.get(name) or ""
            for name in ("verdict", "message_id", "consumer_group", "topic", "repair")
        },
        "says": fields.masked_sentence(str(finding.get("says") or "")),
        "evidence": fields.masked_evidence(_table(finding.get("evidence"))),
    }


RUN_FILE_FINDINGS = RowList(
    name="run-file-findings",
    title="Findings in files",
    summary="The findings that the summary of a run has: the first 1,000. Of the newest run, unless"
    " another one is named.",
    empty="No finding matches: the run was clean, or there is no run.",
    columns=(
        ListColumn("verdict", "Verdict"),
        ListColumn("message_id", "Message", "message"),
        ListColumn("consumer_group", "Group"),
        ListColumn("topic", "Topic"),
        ListColumn("says", "Evidence", "long"),
        ListColumn("repair", "Repair"),
        ListColumn("run_id", "Run"),
    ),
    fields=(
        Field("run", "Run"),
        Field("verdict", "Verdict", "choice", tuple(each.value for each in Verdict)),
        Field("topic", "Topic"),
        Field("group", "Consumer group"),
        Field("message", "Message id"),
    ),
    page=_findings,
    is_in_menu=False,
)
