"""One reconciliation from the ledgers to its report: what the command line calls.

Everything that can be wrong with the input is looked for before Spark starts. A run has a folder of
its own, and ends as `conclusion` says, so that no partial report looks whole.
"""

import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.errors import ConfigurationError, ReliableMQError
from reliable_mq.message import new_message_id
from reliable_mq.reconcile import conclusion, sql_ledger
from reliable_mq.reconcile.evidence import evidence_of
from reliable_mq.reconcile.file_run_folders import LocalRunFolders
from reliable_mq.reconcile.moments import first_id
from reliable_mq.reconcile.repair import ALL_THAT_IS_SAFE, UNBOUNDED, Choice, Rate, plan
from reliable_mq.reconcile.repair_outcome import outcome_of
from reliable_mq.reconcile.run_folder import RUNS_KEPT, VERDICTS, RunFolder, RunFolders
from reliable_mq.reconcile.spark_brokers import (
    UNNAMED,
    BrokerLogs,
    hold_against,
    named_stores,
    open_logs,
)
from reliable_mq.reconcile.spark_causes import cause
from reliable_mq.reconcile.spark_export import export_ledgers
from reliable_mq.reconcile.spark_import import exported_ledgers, open_export
from reliable_mq.reconcile.spark_job import Ledgers, Moment, judge_ledgers
from reliable_mq.reconcile.spark_result import Result
from reliable_mq.reconcile.spark_run_folders import HadoopRunFolders
from reliable_mq.reconcile.spark_session import session
from reliable_mq.reconcile.sql_clocks import clock_skew
from reliable_mq.reconcile.sql_digest import tell
from reliable_mq.reconcile.sql_outcome import recorded_runs, write_outcome
from reliable_mq.reconcile.sql_repair import Order, repair_all
from reliable_mq.reconcile.summary import FINDINGS_SHOWN_MAX, LOG, summarize

REPAIRS = ("plan", "apply")
_SMALL_LOG_SIZE = 512 * 1024 * 1024
_SMALL_STUB_COUNT = 250_000
FINDINGS_KEPT_MAX = 100_000


@dataclass(frozen=True)
class Options:
    """What a run is asked for. `now` is the moment of the judgement.

    `database` keeps the record of the run; `others` are further ones with stubs or consume logs.
    `out` is a folder of this machine, or the URI of one on a file system that Spark knows. Of the
    findings the first `findings_max` are written into the table; the folder has all. Of the runs'
    folders the newest `runs_kept` stay. `memory_bytes`: what a run on this machine may take.
    `store` and `stores` are directories, or NAME=DIR, `cluster` the name servers of a cluster; a
    `partial` run judges without the brokers that cannot be read. `choice` and `rate` say what is
    repaired, and how fast. `tells`: people are told of what is new. `export`: where the ledgers are
    written first, to be judged from there. `ledgers`: an export to judge in place of databases and
    store, as of its time; such a run has no row.
    """

    database: str
    store: str
    out: Path | str
    now: datetime
    grace: timedelta
    since: datetime | None = None
    until: datetime | None = None
    repair: str | None = None
    prefix: str = "rmq_"
    broker_name: str | None = None
    others: tuple[str, ...] = ()
    findings_max: int = FINDINGS_KEPT_MAX
    runs_kept: int = RUNS_KEPT
    memory_bytes: int | None = None
    choice: Choice = ALL_THAT_IS_SAFE
    rate: Rate = UNBOUNDED
    tells: bool = False
    export: str | None = None
    ledgers: str | None = None
    stores: tuple[str, ...] = ()
    cluster: str | None = None
    partial: bool = False

    @property
    def databases(self) -> tuple[str, ...]:
        """All databases, each once."""
        return tuple(dict.fromkeys(filter(None, (self.database, *self.others))))


def reconcile(options: Options) -> dict[str, Any]:
    """Do one run and return its summary; docs/reconciliation.md names the fields.

    Raises:
        ConfigurationError, StoreError: the input cannot be used; nothing was written.
        OSError: the output cannot be written; no report was.
        SparkFailed: Spark ended the run; no report was written.
        sqlalchemy.exc.SQLAlchemyError: the database cannot be reached.
    """
    started = time.monotonic()
    _check(options)
    ledgers, is_small = None, False
    if options.ledgers is None:
        options = _after_retention(options)
        ledgers, is_small = _open_ledgers(options)
        options, ledgers = _of_its_brokers(options, ledgers)
    run_id = new_message_id(int(options.now.timestamp() * 1000), os.urandom(10)).lower()
    try:
        with session(is_small=is_small, memory_bytes=options.memory_bytes) as spark:
            if ledgers is None:
                options, ledgers = _open_export(spark, options)
            elif options.export is not None:
                ledgers = _export(spark, options, ledgers)
            folders = _folders(spark, options.out)
            folders.sweep(partial(_recorded, options))
            folder = folders.begin(run_id)
            clock = _Clock(started, time.monotonic())
            summary = _one_run(spark, options, ledgers, run_id, folder, clock)
            folders.keep(options.runs_kept, run_id)
            if options.tells:
                summary["told"] = tell(options.databases, options.prefix, summary)
    except (Py4JError, PySparkException, ConnectionError) as error:
        raise SparkFailed(cause(f"{error}")) from error
    return summary


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


def _one_run(
    spark: SparkSession,
    options: Options,
    ledgers: Ledgers,
    run_id: str,
    folder: RunFolder,
    clock: _Clock,
) -> dict[str, Any]:
    try:
        summary, result = _judge(spark, options, ledgers, run_id, folder)
        summary["seconds"] = clock.seconds()
        conclusion.keep(folder, summary, lambda summary: _record(options, summary, result))
    except BaseException:
        if not _may_have_a_row(options, run_id):
            folder.remove()
        raise

    def repair() -> dict[str, Any]:
        repaired = _repair(options, run_id, result)
        summary["seconds"] = clock.seconds()
        return repaired

    applies = options.repair == "apply" and summary["findings_total"] > 0
    conclusion.finish(folder, summary, repair if applies else None)
    return summary


def _recorded(options: Options, run_ids: Collection[str]) -> Collection[str]:
    """Return which of these runs have a row; of those without a database nobody can tell."""
    if not options.database:
        return run_ids
    return recorded_runs(options.database, options.prefix, run_ids)


def _may_have_a_row(options: Options, run_id: str) -> bool:
    """Return whether a run is, or may be, in the table: then its folder has to stay."""
    try:
        return bool(options.database and _recorded(options, (run_id,)))
    except SQLAlchemyError:  # nobody can tell now; the next run asks again and sweeps it
        return True


def _after_retention(options: Options) -> Options:
    return _judged_since(options, _removed_until(options))


def _removed_until(options: Options) -> datetime | None:
    marks = [sql_ledger.removed_until(url, options.prefix) for url in options.databases]
    return max((each for each in marks if each is not None), default=None)


def _judged_since(options: Options, mark: datetime | None) -> Options:
    """Leave out the time from which retention has removed stubs or logs: its ledgers are not whole.

    What the broker still holds from then would be called an orphan, what was consumed be missed.

    Raises:
        ConfigurationError: when nothing is left to judge.
    """
    if mark is None or (options.since is not None and options.since >= mark):
        return options
    if options.until is not None and options.until <= mark:
        raise ConfigurationError(
            f"retention has removed messages from before {mark.isoformat()}: --until must be later"
        )
    return replace(options, since=mark)


class SparkFailed(ReliableMQError):
    """Spark ended a run: a ledger or the output went away, or the machine is too small."""


def _judge(
    spark: SparkSession, options: Options, ledgers: Ledgers, run_id: str, folder: RunFolder
) -> tuple[dict[str, Any], Result]:
    """Write the verdicts; return the summary of the run, and the verdicts."""
    window = (options.since, options.until)
    moment = Moment(options.now, options.grace, *window, ledgers.skew_seconds)
    tally = judge_ledgers(spark, ledgers, moment, f"{folder.uri}/{VERDICTS}")
    result = Result(spark, folder.uri)
    groups = tally.groups()
    found = sum(group.rows for group in groups if group.is_finding)
    if found:
        result.sort_findings(found)
    summary = summarize(
        run_id=run_id,
        moment=_moment_fields(moment, ledgers.logs),
        ledgers=tally.ledger_counts(),
        groups=groups,
        findings=islice(result.findings(), FINDINGS_SHOWN_MAX),
        flow=tally.flow,
        whole=_whole(options, ledgers.logs),
    )
    summary["in_doubt"] = tally.doubts.told()
    is_planned = options.repair == "plan" and found
    summary["repair"] = _repair(options, run_id, result) if is_planned else None
    summary["findings_kept"] = min(found, options.findings_max)
    return summary, result


def _whole(options: Options, logs: BrokerLogs) -> dict[str, str | None]:
    """Return what was read, and what is missing of it: nothing, or the run is a partial one."""
    if options.ledgers is not None:
        return {f"export {options.ledgers}": None}
    tables = (f"tables of {make_url(url).render_as_string()}" for url in options.databases)
    whole: dict[str, str | None] = dict.fromkeys((*tables, LOG, "consumer progress"))
    return whole | {f"log of broker {name}": why for name, why in sorted(logs.missing.items())}


def _check(options: Options) -> None:
    if options.repair not in (None, *REPAIRS):
        raise ConfigurationError(f"--repair takes plan or apply, not {options.repair!r}")
    if options.since and options.until and options.since >= options.until:
        raise ConfigurationError("--since must be before --until")
    if options.ledgers is not None and options.repair is not None:
        raise ConfigurationError("--repair needs the databases: give --db and --store")
    from_logs = (options.store, *options.stores, options.cluster, options.export)
    if options.ledgers is not None and (options.databases or any(from_logs)):
        raise ConfigurationError("--ledgers stands in place of --db, --store and --export")
    if options.export is not None and (options.cluster or options.partial):
        raise ConfigurationError("--export writes whole logs: give --store, and no --partial")


def _export(spark: SparkSession, options: Options, ledgers: Ledgers) -> Ledgers:
    """Write the ledgers, if asked to; return them as they are to be read."""
    if options.export is None:
        return ledgers
    export_ledgers(
        *(spark, options.export),
        urls=options.databases,
        prefix=options.prefix,
        stores={
            name or options.broker_name or UNNAMED: path
            for name, path in ledgers.logs.stores.items()
        },
        now=options.now,
        removed_until=_removed_until(options),
    )
    return replace(ledgers, export=options.export)


def _open_export(spark: SparkSession, options: Options) -> tuple[Options, Ledgers]:
    """Return what is to be judged of an export, as of its time."""
    uri = options.ledgers or ""
    export = open_export(spark, uri)
    options = replace(options, now=export.exported, store=uri)
    return _judged_since(options, export.removed_until), exported_ledgers(spark, uri)


def _open_ledgers(options: Options) -> tuple[Ledgers, bool]:
    stores = named_stores(each for each in (options.store, *options.stores) if each)
    logs = open_logs(stores, options.cluster, is_partial=options.partial)
    for url in options.databases:
        sql_ledger.check_tables(url, options.prefix)
    window = sql_ledger.IdWindow(
        first_id(options.since) if options.since else None,
        first_id(options.until) if options.until else None,
    )
    managed: set[str] = set()
    stubs = 0
    for url in options.databases:
        managed.update(sql_ledger.managed_topics(url, options.prefix))
        stubs += sql_ledger.stub_count_at_most(url, options.prefix)
    is_small = logs.size <= _SMALL_LOG_SIZE and stubs <= _SMALL_STUB_COUNT
    ledgers = Ledgers(
        urls=options.databases,
        prefix=options.prefix,
        logs=logs,
        window=window,
        managed=sorted(managed),
        told_groups=sql_ledger.told_groups(options.databases, options.prefix),
        stub_count_max=stubs,
        log_size=logs.size,
        skew_seconds=clock_skew(options.databases, options.grace),
    )
    return ledgers, is_small


def _of_its_brokers(options: Options, ledgers: Ledgers) -> tuple[Options, Ledgers]:
    """Hold the logs against the brokers that the tables name; see `hold_against`."""
    named: set[str] = set()
    for url in options.databases:
        named |= sql_ledger.broker_names(url, options.prefix, ledgers.window)
    logs, claimed = hold_against(
        ledgers.logs, named, claimed=options.broker_name, is_partial=options.partial
    )
    return replace(options, broker_name=claimed), replace(ledgers, logs=logs)


def _moment_fields(moment: Moment, logs: BrokerLogs) -> dict[str, Any]:
    def text(when: datetime | None) -> str | None:
        return when.isoformat().replace("+00:00", "Z") if when else None

    return {
        "as_of": text(moment.as_of),
        "since": text(moment.since),
        "until": text(moment.until),
        "grace_seconds": moment.grace.total_seconds(),
        "store": logs.told(),
    }


def _repair(options: Options, run_id: str, rows: Result) -> dict[str, Any]:
    repairs = plan(rows.findings(), options.choice)
    if options.repair == "plan":
        return outcome_of("plan", ((repair, False, "planned") for repair in repairs))
    order = Order(
        urls=options.databases,
        prefix=options.prefix,
        run_id=run_id,
        as_of=options.now,
        broker_name=options.broker_name,
        rate=options.rate,
    )
    done = repair_all(order, repairs)
    return outcome_of("apply", ((each.repair, each.changed, each.outcome) for each in done))


def _record(options: Options, summary: Mapping[str, Any], rows: Result) -> None:
    if not options.database:
        return
    run = {
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
    }
    findings = islice(rows.findings(), options.findings_max)
    proved = ((row, evidence_of(row)) for row in findings)
    write_outcome(options.database, options.prefix, run, proved, datetime.now(UTC))
