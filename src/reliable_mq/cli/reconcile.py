"""`reliable-mq reconcile`: every message gets one verdict; also for `spark-submit`.

Exit codes of this verb: 0 clean, 2 findings, 1 failed (bad input included: a script that looks for
findings must not take a misspelt path for one).
"""

import json
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.reconcile.moments import parse_duration, parse_moment
from reliable_mq.runtime.java_home import use_java

CLEAN, FAILED, FINDINGS = 0, 1, 2


def command(
    db: Annotated[
        list[str] | None,
        typer.Option(
            envvar="RELIABLE_MQ_DATABASE",
            metavar="URL",
            help="SQLAlchemy URL of a database; repeat it for all that have stubs or consume logs."
            " The first one keeps the record of the run.",
        ),
    ] = None,
    store: Annotated[str, typer.Option(help="Store directory of the broker, running or not.")] = "",
    out: Annotated[
        str, typer.Option(help="Folder, or URI, for report.html, summary.json, verdicts.parquet.")
    ] = "reconcile-output",
    since: Annotated[str, typer.Option(help="Only messages since: ISO time (UTC), or -24h.")] = "",
    until: Annotated[str, typer.Option(help="Only messages before: ISO time (UTC), or -1h.")] = "",
    grace: Annotated[str, typer.Option(help="What is younger counts as in flight.")] = "10m",
    repair: Annotated[
        str, typer.Option(help="plan: say what would be done; apply: do it.", metavar="plan|apply")
    ] = "",
    table_prefix: Annotated[
        str, typer.Option(envvar="RELIABLE_MQ_TABLE_PREFIX", help="Prefix of the tables.")
    ] = "rmq_",
    broker: Annotated[
        str,
        typer.Option(
            help="Name servers HOST:PORT;…: with --repair apply, send what is due at once.",
        ),
    ] = "",
    broker_name: Annotated[
        str, typer.Option(help="Name of the broker whose store it is; other brokers are refused.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Give every message and consumer group one verdict from stubs, broker log, consume logs.

    Exit code 0: clean, 2: findings, 1: failed.
    """
    try:
        urls = [url for url in db or [] if url]
        summary = _run(urls, store, out, (since, until, grace), repair, table_prefix, broker_name)
    except UsageError as error:
        # The command line's own code for bad usage, 2, means findings here.
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    if broker and summary["repair"] and summary["repair"]["changed"]:
        sent = sum(_send_what_is_due(url, broker, table_prefix) for url in urls)
        summary["repair"]["sent"] = sent
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        from reliable_mq.reconcile.report_text import print_report  # noqa: PLC0415 - after Spark

        print_report(summary, Console())
    raise typer.Exit(summary["exit_code"])


def _run(
    urls: list[str],
    store: str,
    out: str,
    times: tuple[str, str, str],
    repair: str,
    prefix: str,
    broker_name: str,
) -> dict[str, Any]:
    if not urls:
        raise ConfigurationError("--db is missing; or set RELIABLE_MQ_DATABASE")
    if not store:
        raise ConfigurationError("--store is missing: the broker's store directory")
    now = datetime.now(UTC)
    since, until, grace = times
    use_java()
    from reliable_mq.reconcile.spark_run import Options, reconcile  # noqa: PLC0415 - seconds

    return reconcile(
        Options(
            database=urls[0],
            others=tuple(urls[1:]),
            store=store,
            out=out,
            now=now,
            grace=parse_duration(grace, "--grace"),
            since=parse_moment(since, "--since", now) if since else None,
            until=parse_moment(until, "--until", now) if until else None,
            repair=repair or None,
            prefix=prefix,
            broker_name=broker_name or None,
        )
    )


def _send_what_is_due(db: str, broker: str, prefix: str) -> int:
    """Do what a running resend scheduler would do next, until nothing is due."""
    from reliable_mq.app.application import ReliableMQ  # noqa: PLC0415 - only when asked for

    mq = ReliableMQ("reconcile", broker=broker, database=db, table_prefix=prefix)
    sent = 0
    try:
        scheduler = mq.scheduler()
        while now_sent := scheduler.run_once(mq.database.clock.measured_now()).sent:
            sent += now_sent
    finally:
        mq.close()
    return sent


if __name__ == "__main__":
    from reliable_mq.cli.main import run

    run(["reconcile", *sys.argv[1:]])
