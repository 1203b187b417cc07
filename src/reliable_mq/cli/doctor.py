"""`reliable-mq doctor`: finds what would break a promise, and says what to do."""

from typing import Annotated

import msgspec
import typer

from reliable_mq.app.application import ReliableMQ
from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import BROKER_VARIABLE
from reliable_mq.database.sql_stub_table import DEFAULT_PREFIX
from reliable_mq.doctor.finding import Finding, Level, worst

_MARKS = {Level.OK: "ok  ", Level.WARNING: "warn", Level.ERROR: "FAIL", Level.SKIPPED: "-   "}


def command(
    application: options.Named = "",
    db: options.Db = "",
    broker: Annotated[
        str,
        typer.Option(envvar=BROKER_VARIABLE, help="Name servers HOST:PORT;…, with --db."),
    ] = "127.0.0.1:9876",
    redis: Annotated[
        str, typer.Option(envvar="RELIABLE_MQ_REDIS", help="Redis URL, with --db.")
    ] = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")
    ] = False,
    as_json: printing.AsJson = False,
) -> None:
    """Check tables, indexes, isolation, clocks, leases, windows, orphaned states, broker, Redis.

    Exits with 1 if a promise is in danger. Changes nothing.
    """
    db = options.database_of(application, db, "MODULE:OBJECT")
    if application:
        mq = options.loaded(application)
    else:
        mq = ReliableMQ("doctor", broker=broker, database=db, redis=redis, table_prefix=prefix)
    try:
        findings = mq.examine()
    finally:
        mq.close()
    if as_json:
        say_json(msgspec.to_builtins(findings))
    else:
        for finding in findings:
            _print(finding, options.found_by(application, db))
    level = worst(findings)
    if level is Level.ERROR or (strict and level is Level.WARNING):
        raise typer.Exit(1)


def _print(finding: Finding, found_by: str) -> None:
    where = f"{finding.database}: " if finding.database else ""
    say(f"{_MARKS[finding.level]} {finding.check:<10} {where}{finding.text}")
    if finding.remedy:
        # A person pastes it. Some commands have the application as an option, some as an argument.
        argument = found_by.removeprefix("--app ")
        remedy = finding.remedy.replace("--app MODULE:OBJECT", found_by)
        say(f"{'':<16}{remedy.replace('MODULE:OBJECT', argument)}")
