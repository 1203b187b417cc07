"""`reliable-mq resend`: the resend scheduler of an application."""

import json
import logging
import os
import sys
from typing import Annotated, Any

import typer

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.loading import load_application
from reliable_mq.app.thread_signals import stop_on_signal
from reliable_mq.errors import UsageError
from reliable_mq.outbox.sql_tables import DEFAULT_PREFIX


def command(
    application: Annotated[
        str, typer.Argument(metavar="[MODULE:OBJECT]", help="A ReliableMQ; or give --db.")
    ] = "",
    db: Annotated[str, typer.Option(help="SQLAlchemy URL of the database.")] = "",
    broker: Annotated[
        str, typer.Option(help="Name servers HOST:PORT;…, with --db.")
    ] = "127.0.0.1:9876",
    prefix: Annotated[str, typer.Option(help="Prefix of the tables, with --db.")] = DEFAULT_PREFIX,
    once: Annotated[bool, typer.Option("--once", help="Look once, then end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
) -> None:
    """Send again what nobody confirmed; escalate what went out too often."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if bool(application) == bool(db):
        raise UsageError("give either MODULE:OBJECT or --db URL")
    if as_json and not once:
        raise UsageError("--json goes with --once")
    if application:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as an entry of sys.path
        mq = load_application(application)
    else:
        mq = ReliableMQ("resend", broker=broker, database=db, table_prefix=prefix)
    try:
        if once:
            _print(mq.resend_once(), as_json=as_json)
        else:
            mq.resend_forever(stop_on_signal())
    finally:
        mq.close()


def _print(counts: dict[str, dict[str, Any]], *, as_json: bool) -> None:
    """Print what was done: of one database its counts, of several each under its name."""
    if as_json:
        typer.echo(json.dumps(counts if len(counts) > 1 else next(iter(counts.values()))))
        return
    for database, numbers in counts.items():
        text = ", ".join(f"{name} {number}" for name, number in numbers.items())
        typer.echo(f"{database}: {text}" if len(counts) > 1 else text)
