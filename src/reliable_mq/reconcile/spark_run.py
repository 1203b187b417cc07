"""One reconciliation from the ledgers to its report: what the command line calls.

Everything that can be wrong with the input is looked for before Spark starts. Results are written
beside their final places and moved there at the end, so that no partial report looks whole.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from reliable_mq.errors import ConfigurationError, ReliableMQError
from reliable_mq.message import new_message_id
from reliable_mq.reconcile import file_store, sql_ledger
from reliable_mq.reconcile.evidence import evidence_of
from reliable_mq.reconcile.latency import bucket_sql
from reliable_mq.reconcile.moments import first_id
from reliable_mq.reconcile.repair import Repair, plan
from reliable_mq.reconcile.report_html import html_report
from reliable_mq.reconcile.spark_job import Ledgers, Moment, verdicts
from reliable_mq.reconcile.spark_session import session
from reliable_mq.reconcile.sql_outcome import write_outcome
from reliable_mq.reconcile.sql_repair import repair_everywhere
from reliable_mq.reconcile.summary import FINDINGS_SHOWN_MAX, Group, summarize

REPAIRS = ("plan", "apply")
_SMALL_LOG_SIZE = 512 * 1024 * 1024
_SMALL_STUB_COUNT = 250_000
_TOUCHED = ("verdicts.parquet", "report.html", "summary.json")


@dataclass(frozen=True)
class Options:
    """What a run is asked for. `now` is the moment of the judgement.

    `database` keeps the record of the run; `others` are further ones with stubs or consume logs.
    """

    database: str
    store: str
    out: Path
    now: datetime
    grace: timedelta
    since: datetime | None = None
    until: datetime | None = None
    repair: str | None = None
    prefix: str = "rmq_"
    broker_name: str | None = None
    others: tuple[str, ...] = ()

    @property
    def databases(self) -> tuple[str, ...]:
        """All databases, each once."""
        return tuple(dict.fromkeys((self.database, *self.others)))


def reconcile(options: Options) -> dict[str, Any]:
    """Do one run and return its summary; docs/reconciliation.md names the fields.

    Raises:
        ConfigurationError, StoreError: the input cannot be used; nothing was written.
        SparkFailed: Spark ended the run; no report was written.
        sqlalchemy.exc.SQLAlchemyError: the database cannot be reached.
    """
    started = time.monotonic()
    options = _after_retention(options)
    ledgers, is_small = _open_ledgers(options)
    run_id = new_message_id(int(options.now.timestamp() * 1000), os.urandom(10)).lower()
    scratch = options.out / f".run-{run_id}"
    scratch.mkdir(parents=True)
    try:
        with session(is_small=is_small) as spark:
            begun = time.monotonic()
            summary = _judge(spark, options, ledgers, run_id, scratch)
        summary["seconds"] = {
            "session": round(begun - started, 2),
            "all": round(time.monotonic() - started, 2),
        }
        _publish(options.out, scratch, summary)
    except (Py4JError, PySparkException) as error:
        raise SparkFailed(f"Spark: {_cause(str(error))}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return summary


def _after_retention(options: Options) -> Options:
    """Leave out the time from which retention has removed stubs or logs: its ledgers are not whole.

    What the broker still holds from then would be called an orphan, what was consumed be missed.

    Raises:
        ConfigurationError: when nothing is left to judge.
    """
    marks = [sql_ledger.removed_until(url, options.prefix) for url in options.databases]
    mark = max((each for each in marks if each is not None), default=None)
    if mark is None or (options.since is not None and options.since >= mark):
        return options
    if options.until is not None and options.until <= mark:
        raise ConfigurationError(
            f"retention has removed messages from before {mark.isoformat()}: --until must be later"
        )
    return replace(options, since=mark)


class SparkFailed(ReliableMQError):
    """Spark ended a run: a ledger or the output went away, or the machine is too small."""


_JAVA_OR_PYTHON_ERROR = re.compile(
    r"^(?:Caused by: )?[\w.$]*(?:Error|Exception): (.+)$", re.MULTILINE
)


def _cause(text: str) -> str:
    """Return the innermost error of a stack trace of Java and Python."""
    causes = _JAVA_OR_PYTHON_ERROR.findall(text)
    return causes[-1] if causes else text.splitlines()[0]


def _judge(
    spark: SparkSession, options: Options, ledgers: Ledgers, run_id: str, scratch: Path
) -> dict[str, Any]:
    """Write the verdicts, repair if asked for, keep the run in the tables; return its summary."""
    moment = Moment(options.now, options.grace, options.since, options.until)
    frame, counted = verdicts(spark, ledgers, moment)
    path = scratch / "verdicts.parquet"
    frame.write.parquet(_local(path))
    result = Result(spark, path)
    groups = result.groups()
    has_findings = any(group.is_finding for group in groups)
    summary = summarize(
        run_id=run_id,
        moment=_moment_fields(options, moment),
        ledgers=counted.get,
        groups=groups,
        findings=islice(result.findings(), FINDINGS_SHOWN_MAX) if has_findings else (),
    )
    summary["repair"] = _repair(options, run_id, result) if has_findings else None
    _record(options, summary, result if has_findings else None)
    return summary


def _open_ledgers(options: Options) -> tuple[Ledgers, bool]:
    if options.repair not in (None, *REPAIRS):
        raise ConfigurationError(f"--repair takes plan or apply, not {options.repair!r}")
    if options.since and options.until and options.since >= options.until:
        raise ConfigurationError("--since must be before --until")
    layout = file_store.read_layout(options.store)
    progress = file_store.read_progress(options.store)
    for url in options.databases:
        sql_ledger.check_tables(url, options.prefix)
    window = sql_ledger.IdWindow(
        first_id(options.since) if options.since else None,
        first_id(options.until) if options.until else None,
    )
    _check_broker(options, window)
    managed: set[str] = set()
    stubs = 0
    for url in options.databases:
        managed.update(sql_ledger.managed_topics(url, options.prefix))
        stubs += sql_ledger.stub_count_at_most(url, options.prefix)
    log_size = layout.sure_end - layout.log_begin
    is_small = log_size <= _SMALL_LOG_SIZE and stubs <= _SMALL_STUB_COUNT
    ledgers = Ledgers(
        urls=options.databases,
        prefix=options.prefix,
        store=options.store,
        window=window,
        progress=progress,
        queue_begins=layout.queue_begins,
        managed=sorted(managed),
        told_groups=sql_ledger.told_groups(options.databases, options.prefix),
    )
    return ledgers, is_small


def _check_broker(options: Options, window: sql_ledger.IdWindow) -> None:
    """Refuse ledgers of several brokers: what one broker holds, another one's log cannot know.

    Judged against the wrong store, a message would be called lost, and be sent again by a repair.
    """
    names: set[str] = set()
    for url in options.databases:
        names |= sql_ledger.broker_names(url, options.prefix, window)
    told = f"{'s' if len(names) > 1 else ''} {', '.join(sorted(names))}"
    if options.broker_name and names - {options.broker_name}:
        raise ConfigurationError(
            f"stubs and consume logs name the broker{told}, but --broker-name says that --store"
            f" is the log of {options.broker_name}; it cannot judge messages of another broker."
            f" {_OTHER_WINDOW}"
        )
    if len(names) > 1:
        raise ConfigurationError(
            f"stubs and consume logs name the broker{told}, but --store is the log of one of them;"
            f" it cannot judge messages of another broker. {_OTHER_WINDOW}"
        )


_OTHER_WINDOW = "--since and --until choose a time in which only the store's broker was used"


def _local(path: Path) -> str:
    """Return a path as Hadoop wants it: the scheme of local files, and nothing escaped."""
    return f"file://{path.resolve()}"


class Result:
    """The verdicts as they lie on disk; every reader of them begins here."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._path = path
        self._frame = spark.read.parquet(_local(path))

    def groups(self) -> list[Group]:
        """Return the counts by everything that the report tells apart."""
        keys = ("verdict", "finding", "topic", "consumer_group")
        counted = self._frame.groupBy(
            *keys,
            f.expr(bucket_sql("stored_ms")).alias("stored"),
            f.expr(bucket_sql("consumed_ms")).alias("consumed"),
        ).agg(
            f.count(f.lit(1)).alias("rows"),
            f.count_if("is_lead").alias("messages"),
            f.sum(f.expr("if(is_lead, greatest(record_copies - 1, 0), 0)")).alias("copies"),
            f.sum("retries").alias("retries"),
        )
        return [Group(*row) for row in counted.collect()]

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, sorted by message id.

        Only the findings' rows are read, and by Arrow: its times know that they are UTC, which
        those that Spark collects do not.
        """
        table = parquet.read_table(self._path, filters=[("finding", "=", True)])
        order = [("message_id", "ascending"), ("consumer_group", "ascending")]
        for batch in table.sort_by(order).to_batches(max_chunksize=1_000):
            yield from batch.to_pylist()


def _moment_fields(options: Options, moment: Moment) -> dict[str, Any]:
    def text(when: datetime | None) -> str | None:
        return when.isoformat().replace("+00:00", "Z") if when else None

    return {
        "as_of": text(moment.as_of),
        "since": text(moment.since),
        "until": text(moment.until),
        "grace_seconds": moment.grace.total_seconds(),
        "store": options.store,
    }


def _repair(options: Options, run_id: str, rows: Result) -> dict[str, Any] | None:
    if options.repair is None:
        return None
    repairs = plan(rows.findings())
    results: list[tuple[Repair, bool | None, str]]
    if options.repair == "plan":
        results = [(repair, None, "planned") for repair in repairs]
    else:
        done = repair_everywhere(
            *(options.databases, options.prefix, run_id, repairs, options.now),
            broker_name=options.broker_name,
        )
        results = [(each.repair, each.changed, each.outcome) for each in done]
    return {
        "mode": options.repair,
        "planned": len(results),
        "changed": sum(changed is True for _, changed, _ in results),
        "actions": [
            {
                "message_id": repair.message_id,
                "action": str(repair.action),
                "consumer_groups": list(repair.groups),
                "verdicts": list(repair.verdicts),
                "outcome": outcome,
            }
            for repair, _, outcome in results[:FINDINGS_SHOWN_MAX]
        ],
    }


def _record(options: Options, summary: Mapping[str, Any], rows: Result | None) -> None:
    findings = rows.findings() if rows else iter(())
    run = {
        "run_id": summary["run_id"],
        "as_of": options.now,
        "since": options.since,
        "until": options.until,
        "grace_seconds": options.grace.total_seconds(),
        "store": options.store,
        "verdicts": json.dumps(summary["verdicts"]),
        "ledgers": json.dumps(summary["ledgers"]),
        "findings": summary["findings_total"],
        "is_clean": summary["clean"],
        "finish_date": datetime.now(UTC),
    }
    proved = ((row, evidence_of(row)) for row in findings)
    write_outcome(options.database, options.prefix, run, proved, datetime.now(UTC))


def _publish(out: Path, scratch: Path, summary: dict[str, Any]) -> None:
    """Move the result to its place: first away with the old one, last the summary."""
    for name in _TOUCHED:
        old = out / name
        if old.is_dir():
            shutil.rmtree(old)
        else:
            with suppress(FileNotFoundError):
                old.unlink()
    summary["report"] = str((out / "report.html").resolve())
    summary["parquet"] = str((out / "verdicts.parquet").resolve())
    (scratch / "report.html").write_text(html_report(summary), encoding="utf-8")
    (scratch / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    for name in _TOUCHED:
        (scratch / name).rename(out / name)
