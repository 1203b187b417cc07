"""One run of reconciliation, from the ledgers to the report. The command line calls it.

The input is checked before Spark starts (`spark_opening`). A run has its own folder. Its last steps
have an order that allows a kill at any point, so that an incomplete report never looks complete:

1. Write the run's files completely.
2. Commit the run's row together with its findings.
3. Repair stubs. Each repair is a transaction with an audit row that names the run.
4. Make the run the newest one.

If a run is killed before step 2, it counts as never done, and the next run removes its folder. If
it is killed later, the run is valid, and the next run finds the unrepaired stubs again.
"""

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.errors import ReliableMQError
from reliable_mq.message import new_message_id
from reliable_mq.reconcile.brokers.file_store import read_layout
from reliable_mq.reconcile.brokers.spark_brokers import BrokerLogs
from reliable_mq.reconcile.judgement import unchecked
from reliable_mq.reconcile.judgement.evidence import evidence_of
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.repairs.by_hand import LedgerLocations, with_commands
from reliable_mq.reconcile.repairs.repair import plan
from reliable_mq.reconcile.repairs.repair_outcome import outcome_of
from reliable_mq.reconcile.repairs.sql_repair import RepairOrder, repair_all
from reliable_mq.reconcile.report.report_html import html_report
from reliable_mq.reconcile.report.sql_digest import escalate_news
from reliable_mq.reconcile.report.summary import (
    CONTENTS,
    FINDINGS_SHOWN_MAX,
    MANAGED,
    MESSAGE_IDS,
    summarize,
    verdict_counts,
)
from reliable_mq.reconcile.runs.file_run_folders import LocalRunFolders
from reliable_mq.reconcile.runs.file_slaves_compared import (
    compare_slaves,
    flaws_of,
    slaves_of,
    summary_of,
)
from reliable_mq.reconcile.runs.run_folder import (
    REPORT,
    SUMMARY,
    VERDICTS,
    RunFolder,
    RunFolders,
    RunResult,
)
from reliable_mq.reconcile.runs.run_options import RunOptions, check, judged_since, lack_of_stubs
from reliable_mq.reconcile.runs.run_plan import (
    PreviousIncrement,
    RunPlan,
    increment_summary,
    previous_of,
    row_of,
    since_of,
)
from reliable_mq.reconcile.runs.spark_causes import cause
from reliable_mq.reconcile.runs.spark_increment import increment_ledgers, increment_plan
from reliable_mq.reconcile.runs.spark_job import JudgementTime, Ledgers, judge_ledgers
from reliable_mq.reconcile.runs.spark_opening import (
    export_if_asked,
    hidden_by_retention,
    of_its_brokers,
    open_exported,
    open_ledgers,
    removed_until,
    whole_of,
)
from reliable_mq.reconcile.runs.spark_result import FileResult, SparkResult
from reliable_mq.reconcile.runs.spark_run_folders import HadoopRunFolders
from reliable_mq.reconcile.runs.spark_session import session
from reliable_mq.reconcile.runs.sql_outcome import (
    allow_retention,
    last_increment,
    recorded_runs,
    write_outcome,
)

__all__ = ["RunOptions", "SparkFailed", "reconcile"]


def reconcile(options: RunOptions) -> dict[str, Any]:
    """Do one run and return its summary; docs/explanation/reconciliation.md names the fields.

    Raises:
        ConfigurationError, StoreError: the input cannot be used. Nothing was written.
        OSError: the output cannot be written. There is no report.
        SparkFailed: Spark ended the run. There is no report.
        sqlalchemy.exc.SQLAlchemyError: the database cannot be reached.
    """
    started = time.monotonic()
    check(options)
    for _, path in slaves_of(options):
        read_layout(path)  # it raises for what is no store
    asked, ledgers, going_on, is_small = options, None, None, False
    if options.ledgers is None:
        mark = removed_until(options)
        options = options if options.increment else judged_since(options, mark)
        previous = _previous(options)
        opened = open_ledgers(options, since_of(previous))
        is_small = opened.is_small
        options, ledgers = of_its_brokers(options, opened)
        if previous is not None:
            going_on = increment_plan(previous, ledgers, options.now, mark)
            if previous.ends is None:  # it reads everything, like a full run
                options = judged_since(options, mark)
    hidden = hidden_by_retention(asked, options)
    run_id = new_message_id(int(options.now.timestamp() * 1000), os.urandom(10)).lower()
    try:
        with session(is_small=is_small, memory_bytes=options.memory_bytes) as spark:
            if ledgers is None:
                options, ledgers = open_exported(spark, options)
            elif options.export is not None:
                ledgers = export_if_asked(spark, options, ledgers)
            elif going_on is not None:
                ledgers = increment_ledgers(spark, ledgers, going_on)
            folders = _folders(spark, options.out)
            folders.sweep(partial(_recorded, options))
            run = _Run(spark, options, ledgers, going_on, run_id, folders.begin(run_id), hidden)
            summary = _one_run(run, _Clock(started, time.monotonic()))
            folders.remove_except_newest(options.runs_kept, _needed(options, run_id))
            if options.tells:
                summary["told"] = escalate_news(options.databases, options.prefix, summary)
    except (Py4JError, PySparkException, ConnectionError) as error:
        raise SparkFailed(cause(f"{error}")) from error
    return summary


def _previous(options: RunOptions) -> PreviousIncrement | None:
    """Return the increment before this one; None: this run is no increment."""
    if not options.increment:
        return None
    return previous_of(last_increment(options.database, options.prefix), anew=options.anew)


def _needed(options: RunOptions, run_id: str) -> set[str]:
    """Return the runs whose folders must stay: this run, and the last increment."""
    last = last_increment(options.database, options.prefix) if options.database else None
    return {run_id} if last is None else {run_id, last["run_id"]}


@dataclass(frozen=True)
class _Run:
    """A run in progress. `going_on` is the plan of an increment, or None.

    `hidden`: see `hidden_by_retention`.
    """

    spark: SparkSession
    options: RunOptions
    ledgers: Ledgers
    going_on: RunPlan | None
    run_id: str
    folder: RunFolder
    hidden: Mapping[str, str]

    @property
    def moment(self) -> JudgementTime:
        """The moment of the judgement."""
        options, skew_seconds = self.options, self.ledgers.skew_seconds
        return JudgementTime(options.now, options.grace, options.since, options.until, skew_seconds)


@dataclass(frozen=True)
class _Clock:
    started: float
    spark_began: float

    def seconds(self) -> dict[str, float]:
        return {
            "session": round(self.spark_began - self.started, 2),
            "all": round(time.monotonic() - self.started, 2),
        }


def _folders(spark: SparkSession, out: Path | str) -> RunFolders:
    text = str(out)
    if "://" in text and not text.startswith("file://"):
        return HadoopRunFolders(spark, text)
    return LocalRunFolders(Path(text.removeprefix("file://")))


def _one_run(run: _Run, clock: _Clock) -> dict[str, Any]:
    try:
        summary, result = _judge(run)
        summary["seconds"] = clock.seconds()
        write_run(run.folder, summary, lambda summary: _record(run, summary, result))
    except BaseException:
        if not _may_have_a_row(run.options, run.run_id):
            run.folder.remove()
        raise

    def repair() -> dict[str, Any]:
        repaired = _repair(run, result)
        summary["seconds"] = clock.seconds()
        return repaired

    applies = run.options.repair == "apply" and summary["findings_total"] > 0
    finish(run.folder, summary, repair if applies else None)
    return summary


def write_run(
    folder: RunFolder, summary: dict[str, Any], record: Callable[[dict[str, Any]], None]
) -> None:
    """Write the run's files, then its row by calling `record`."""
    summary["report"] = f"{folder.place}/{REPORT}"
    summary["parquet"] = f"{folder.place}/{VERDICTS}"
    _write_files(folder, summary)
    record(summary)


def finish(
    folder: RunFolder, summary: dict[str, Any], repair: Callable[[], dict[str, Any]] | None
) -> None:
    """Repair if `repair` is given, add the outcome to the run's files, and make it the newest."""
    if repair is not None:
        summary["repair"] = repair()
        _write_files(folder, summary)
    folder.publish()


def _write_files(folder: RunFolder, summary: dict[str, Any]) -> None:
    folder.write(REPORT, html_report(summary))
    folder.write(SUMMARY, json.dumps(summary, indent=2) + "\n")


def _recorded(options: RunOptions, run_ids: Collection[str]) -> Collection[str]:
    """Return the runs that have a row. Without a database, return all: it is unknown."""
    if not options.database:
        return run_ids
    return recorded_runs(options.database, options.prefix, run_ids)


def _may_have_a_row(options: RunOptions, run_id: str) -> bool:
    """Return whether a run is, or may be, in the table. If so, its folder must stay."""
    try:
        return bool(options.database and _recorded(options, (run_id,)))
    except SQLAlchemyError:  # unknown now; the next run asks again and sweeps the folder
        return True


class SparkFailed(ReliableMQError):
    """Spark ended a run: a ledger or the output became unavailable, or memory is too small."""


def _judge(run: _Run) -> tuple[dict[str, Any], RunResult]:
    """Write the verdicts; return the summary of the run, and its result."""
    options, folder, going_on, moment = run.options, run.folder, run.going_on, run.moment
    tally = judge_ledgers(run.spark, run.ledgers, moment, f"{folder.uri}/{VERDICTS}")
    groups = tally.groups()
    found = sum(group.rows for group in groups if group.is_finding)
    result = _result(run, found)
    slaves = compare_slaves(options, folder)
    summary = summarize(
        run_id=run.run_id,
        moment=_moment_fields(moment, run.ledgers.logs),
        ledgers=tally.ledger_counts(),
        groups=groups,
        findings=islice(result.findings(), FINDINGS_SHOWN_MAX),
        flow=tally.flow,
        whole=whole_of(options, run.ledgers.logs)
        | (dict(going_on.lost) if going_on is not None else {})
        | _flaws(run, tally)
        | dict(run.hidden)
        | dict(flaws_of(slaves)),
        read_topics=_read_topics(run.ledgers.logs),
    )
    if slaves:
        summary["slaves"] = summary_of(slaves, folder)
    summary["in_doubt"] = tally.doubts.summary()
    summary["skipped"] = tally.skips.summary()
    summary["twin_ids"] = tally.twins.summary()
    summary["unchecked_contents"] = tally.unchecked
    is_planned = options.repair == "plan" and found
    summary["repair"] = _repair(run, result) if is_planned else None
    summary["findings_kept"] = min(found, options.findings_max)
    if going_on is not None:
        summary["increment"] = increment_summary(going_on, tally.carried)
    place = LedgerLocations(
        options.databases, options.prefix, options.cluster or "", options.application
    )
    return with_commands(summary, place), result


def _read_topics(logs: BrokerLogs) -> Collection[str] | None:
    """Return the topics in which a group has a committed offset. None: a broker was not read."""
    return None if logs.missing else {topic for _, _, topic in logs.progress}


def _flaws(run: _Run, tally: Tally) -> dict[str, str]:
    """Return the problems with the messages that make the result of the run incomplete."""
    verdicts = verdict_counts(tally.groups())
    flaws = {
        MANAGED: lack_of_stubs(run.options, run.ledgers.managed, verdicts),
        MESSAGE_IDS: tally.twins.flaw(),
        CONTENTS: unchecked.flaw(tally.unchecked),
    }
    return {name: why for name, why in flaws.items() if why}


def _result(run: _Run, found: int) -> RunResult:
    scheme, _, path = run.folder.uri.partition("://")
    if scheme == "file":
        return FileResult(Path(path))
    result = SparkResult(run.spark, run.folder.uri)
    if found:
        result.sort_findings(found)
    return result


def _moment_fields(moment: JudgementTime, logs: BrokerLogs) -> dict[str, Any]:
    def text(when: datetime | None) -> str | None:
        return when.isoformat().replace("+00:00", "Z") if when else None

    return {
        "as_of": text(moment.as_of),
        "since": text(moment.since),
        "until": text(moment.until),
        "grace_seconds": moment.grace.total_seconds(),
        "skew_seconds": round(moment.skew_seconds, 1),
        "store": logs.description(),
    }


def _repair(run: _Run, rows: RunResult) -> dict[str, Any]:
    options = run.options
    repairs = plan(rows.findings(), options.choice)
    if options.repair == "plan":
        return outcome_of("plan", ((repair, False, "planned") for repair in repairs))
    order = RepairOrder(
        urls=options.databases,
        prefix=options.prefix,
        run_id=run.run_id,
        past=options.now - run.moment.slack,
        broker_name=options.broker_name,
        rate=options.rate,
        is_following=options.is_following,
    )
    done = repair_all(order, repairs)
    return outcome_of("apply", ((each.repair, each.changed, each.outcome) for each in done))


def _record(run: _Run, summary: Mapping[str, Any], rows: RunResult) -> None:
    options, going_on = run.options, run.going_on
    if not options.database:
        return
    row = {
        "run_id": summary["run_id"],
        "as_of": options.now,
        "since": options.since,
        "until": options.until,
        "grace_seconds": options.grace.total_seconds(),
        "store": summary["store"],
        "verdicts": json.dumps(summary["verdicts"]),
        "ledgers": json.dumps(summary["ledgers"]),
        "findings": summary["findings_total"],
        "is_clean": summary["clean"],
        "finish_date": datetime.now(UTC),
        "report": summary["report"],
        "whole": json.dumps({name: why for name, why in summary["whole"].items() if why}),
        "managed": json.dumps(list(run.ledgers.managed)),
    }
    if going_on is not None:
        row |= row_of(going_on, summary["increment"]["carried"]) | {"state": run.folder.uri}
    findings = islice(rows.findings(), options.findings_max)
    proved = ((row, evidence_of(row)) for row in findings)
    write_outcome(options.database, options.prefix, row, proved, datetime.now(UTC))
    if going_on is not None:
        seen = going_on.increment.next_since
        allow_retention(options.databases, options.prefix, seen)
