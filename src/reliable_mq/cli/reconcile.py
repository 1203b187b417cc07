"""`reliable-mq reconcile`: gives every message one verdict; also for `spark-submit`.

Exit codes of this verb: 0 clean, 2 findings, 1 failed. Bad input is 1, too: a script must not take
a misspelt path for findings. 128 plus a signal's number: stopped by that signal.
"""

import functools
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from reliable_mq.cli import reconcile_options as options
from reliable_mq.cli.commands import VerbCommand, unusable
from reliable_mq.cli.log_options import write_log
from reliable_mq.cli.printing import plain_console
from reliable_mq.cli.reconcile_after import (
    check_notifiers,
    send_due_digests,
    send_what_is_due,
)
from reliable_mq.cli.reconcile_follow import follow_until_stopped
from reliable_mq.cli.reconcile_key import check_out, print_verdicts, verdicts_of_key
from reliable_mq.cli.reconcile_sources import SourceOptions, Sources, source_options
from reliable_mq.cli.reconcile_stop import stoppable
from reliable_mq.cli.saying import say, say_json, say_trouble
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.reconcile.moments import parse_duration, parse_moment
from reliable_mq.reconcile.repairs.repair import UNBOUNDED, FindingChoice, parse_rate, parse_verdict
from reliable_mq.reconcile.report.file_replaced import check_replaceable, replace_file
from reliable_mq.reconcile.report.prometheus_text import prometheus_text
from reliable_mq.reconcile.runs.machine_share import parse_memory
from reliable_mq.runtime.java_home import use_java
from reliable_mq.wire.addresses import split_addresses

if TYPE_CHECKING:
    from reliable_mq.reconcile.runs.spark_run import RunOptions

CLEAN, FAILED, FINDINGS = 0, 1, 2


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer does not export it
BAD_USAGE = 1
_NO_DATABASE = (
    "--db is missing, or --app MODULE:OBJECT; or set RELIABLE_MQ_APP or RELIABLE_MQ_DATABASE"
)


class GroupedCommand(VerbCommand):
    """Shows options in groups, by `rich_help_panel`, in the order of their first option.

    A usage error is one line. Its exit code is `BAD_USAGE`, as 2 says that there are findings.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section of help for each group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            line = param.get_help_record(ctx)
            if line is not None:
                name = getattr(param, "rich_help_panel", None) or "Options"
                groups.setdefault(name, []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; a usage error is printed in one line."""
        try:
            with _bad_usage_is_failure():
                return super().parse_args(ctx, args)
        except _UsageError as error:
            say_trouble("error", unusable(error))
            raise typer.Exit(BAD_USAGE) from None


@takes_options_of(source_options, "given", first=True)
def command(
    *,
    given: SourceOptions,
    partial: options.Partial = False,
    broker_name: options.BrokerName = "",
    db_share: options.DbShare = 1.0,
    managed: options.Managed = None,
    unmanaged: options.Unmanaged = None,
    export: options.Export = "",
    since: options.Since = "",
    until: options.Until = "",
    grace: options.Grace = "10m",
    increment: options.Increment = False,
    full: options.Full = False,
    follow: options.Follow = False,
    every: options.Every = options.EVERY,
    forget: options.Forget = False,
    out: options.Out = "reconcile-output",
    as_json: options.AsJson = False,
    key: options.Key = "",
    findings_max: options.FindingsMax = 100_000,
    keep_runs: options.KeepRuns = 7,
    memory: options.Memory = "",
    prometheus: options.Prometheus = "",
    repair: options.Repair = "",
    repair_only: options.RepairOnly = None,
    void: options.Void = None,
    repair_rate: options.RepairRate = "",
    tell: options.Tell = False,
    log_format: options.Format = None,
    log_level: options.Level = None,
) -> None:
    """Give every message and consumer group one verdict from stubs, broker log, consume logs.

    Exit code 0: clean, 2: findings, 1: failed.
    """
    asked: dict[str, Any] = {"partial": partial, "out": out, "db_share": db_share}
    asked |= {"managed": tuple(managed or ()), "unmanaged": tuple(unmanaged or ())}
    asked |= {"broker_name": broker_name or None, "findings_max": findings_max, "tells": tell}
    asked |= {"increment": increment or follow, "anew": full, "runs_kept": keep_runs}
    asked |= {"export": export or None, "ledgers": given.ledgers or None}
    metrics = Path(prometheus) if prometheus else None
    with _bad_usage_is_failure():
        read = given.read()
        urls = list(read.urls)
        asked |= _ledgers(read, given.slave_store)
        asked["memory_bytes"] = parse_memory(memory, "--memory") if memory else None
        if forget:
            _forget(urls, read.table_prefix, as_json=as_json)
            return
        asked |= _times(since, until, grace) | _repairs(repair, repair_only, void, repair_rate)
        interval = _interval(every, follow)
        _check_broker(given.broker, repair, is_read=given.broker == read.cluster)
        if key:
            check_out(out)
        run = _checked(urls, metrics, asked)
        after = functools.partial(_after, run=run, broker=given.broker, metrics=metrics)
        if follow:
            write_log(log_format or read.log_format, log_level or read.log_level)
            follow_until_stopped(run, interval, as_json=as_json, after=after)
            return
        from reliable_mq.reconcile.runs.spark_run import reconcile  # noqa: PLC0415 - seconds

        with stoppable():
            summary = reconcile(run)
    after(summary)
    if key:
        summary["key"] = verdicts_of_key(key, urls, read.table_prefix, summary["parquet"])
    _print(summary, key, as_json=as_json)
    raise typer.Exit(summary["exit_code"])


@contextmanager
def _bad_usage_is_failure() -> Iterator[None]:
    """End with `FAILED` after bad usage: 2, its usual code, means findings here."""
    try:
        yield
    except UsageError as error:
        say_trouble("error", " ".join(str(error).split()))
        raise typer.Exit(FAILED) from None


def _ledgers(read: Sources, slaves: Sequence[str]) -> dict[str, Any]:
    first, *more = read.stores or [""]
    logs = {"store": first, "stores": tuple(more), "slaves": tuple(slaves)}
    place = {"prefix": read.table_prefix, "application": read.application}
    return place | logs | {"cluster": read.cluster or None}


def _print(summary: dict[str, Any], key: str, *, as_json: bool) -> None:
    if as_json:
        say_json(summary, indent=2)
        return
    from reliable_mq.reconcile.report.report_text import print_report  # noqa: PLC0415 - after Spark

    print_report(summary, plain_console())
    if key:
        print_verdicts(key, summary["key"], plain_console())


def _after(summary: dict[str, Any], run: "RunOptions", broker: str, metrics: Path | None) -> None:
    if broker and summary["repair"] and summary["repair"]["planned"]:  # or due already
        summary["repair"]["sent"] = sum(
            send_what_is_due(each, broker, run.prefix) for each in run.databases
        )
    if metrics:
        replace_file(metrics, prometheus_text(summary, time.time()))
    if run.tells:
        send_due_digests(run.database, run.prefix)


def _forget(urls: list[str], prefix: str, *, as_json: bool) -> None:
    from reliable_mq.reconcile.runs.sql_outcome import forget  # noqa: PLC0415 - only when asked for

    if not urls:
        raise ConfigurationError(_NO_DATABASE)
    freed = forget(urls, prefix, datetime.now(UTC))
    if as_json:
        say_json({"freed_databases": freed})
        return
    say(f"retention waited for increments in {freed} database(s), and does not wait any more")


command_class = GroupedCommand


def _times(since: str, until: str, grace: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "now": now,
        "grace": parse_duration(grace, "--grace"),
        "since": parse_moment(since, "--since", now) if since else None,
        "until": parse_moment(until, "--until", now) if until else None,
    }


def _interval(every: str, follow: bool) -> timedelta:
    if every != options.EVERY and not follow:
        raise ConfigurationError("--every needs --follow")
    return parse_duration(every, "--every")


def _check_broker(broker: str, repair: str, *, is_read: bool) -> None:
    if not broker:
        return
    if repair != "apply" and not is_read:
        raise ConfigurationError(
            "--broker needs --repair apply if there is a --store: it sends the stubs that the"
            " repair made due"
        )
    split_addresses(broker)


def _check_out(out: str) -> None:
    folder = Path(out.removeprefix("file://"))
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"--out: {folder} is a file, not a folder")


def _repairs(
    repair: str, only: list[str] | None, void: list[str] | None, rate: str
) -> dict[str, Any]:
    named = {"--repair-only": only, "--void": void, "--repair-rate": rate}
    lonely = [option for option, given in named.items() if given]
    if lonely and not repair:
        raise ConfigurationError(f"{lonely[0]} needs --repair plan or --repair apply")
    chosen = (
        frozenset(parse_verdict(option, text) for text in texts or ())
        for option, texts in (("--repair-only", only), ("--void", void))
    )
    return {
        "repair": repair or None,
        "choice": FindingChoice(*chosen),
        "rate": parse_rate(rate) if rate else UNBOUNDED,
    }


def _checked(urls: list[str], metrics: Path | None, asked: dict[str, Any]) -> "RunOptions":
    is_export = asked["ledgers"] is not None
    if not urls and not is_export:
        raise ConfigurationError(_NO_DATABASE)
    if not asked["store"] and not asked["cluster"] and not is_export:
        raise ConfigurationError(
            "--store is missing: the broker's store directory; or --broker: the name servers"
        )
    if asked["anew"] and not asked["increment"]:
        raise ConfigurationError("--full needs --increment; without it every run is full")
    _check_out(asked["out"])
    if metrics:
        check_replaceable("--prometheus", metrics)
    if asked["tells"]:
        if not urls:
            raise ConfigurationError("--tell needs the database: give --db and --store")
        check_notifiers(urls[0], asked["prefix"])
    use_java()
    from reliable_mq.reconcile.runs.spark_run import RunOptions  # noqa: PLC0415 - seconds

    return RunOptions(database=urls[0] if urls else "", others=tuple(urls[1:]), **asked)


if __name__ == "__main__":
    from reliable_mq.cli.main import run

    run(["reconcile", *sys.argv[1:]])
