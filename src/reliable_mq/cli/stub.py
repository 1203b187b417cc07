"""`reliable-mq stub`: look at stubs, and settle by hand what could not settle itself."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable
from sqlalchemy import Connection

from reliable_mq.app.loading import load_application
from reliable_mq.app.sql_database import Database
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.outbox.sql_tables import DEFAULT_PREFIX
from reliable_mq.outbox.stub import StubStatus
from reliable_mq.reconcile.moments import parse_moment
from reliable_mq.resend.sql_settlement import SqlSettlement
from reliable_mq.resend.sql_stub_list import escalated_stubs, list_stubs, show_stub
from reliable_mq.sql_types import is_missing_table, missing_table_text

BATCH = 500

Step = Callable[[Connection, str, str, float], bool]

app = typer.Typer(no_args_is_help=True, help="List, show, retry or void message stubs.")


class Wanted(StrEnum):
    """The statuses, as one types them."""

    UNCONFIRMED = "unconfirmed"
    CONFIRMED = "confirmed"
    VOIDED = "voided"


Application = Annotated[
    str, typer.Option("--app", metavar="MODULE:OBJECT", help="A ReliableMQ; or give --db.")
]
Db = Annotated[str, typer.Option(help="SQLAlchemy URL of the database.")]
Prefix = Annotated[str, typer.Option(help="Prefix of the tables, with --db.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ids = Annotated[list[str], typer.Argument(metavar="MESSAGE_ID…", help="Which stubs.")]
SomeIds = Annotated[
    list[str] | None, typer.Argument(metavar="[MESSAGE_ID…]", help="Which stubs; or --escalated.")
]
Note = Annotated[str, typer.Option(help="Why; kept in the stub.")]


@app.command("list")
def list_(
    application: Application = "",
    db: Db = "",
    prefix: Prefix = DEFAULT_PREFIX,
    status: Annotated[Wanted | None, typer.Option(help="Only these.")] = None,
    escalated: Annotated[
        bool, typer.Option("--escalated", help="Only those that wait for a person.")
    ] = False,
    topic: Annotated[str, typer.Option(help="Only of this topic.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List stubs, the newest first."""
    database = _database(application, db, prefix)
    chosen = StubStatus[status.name] if status is not None else None
    rows = _in_transaction(
        database,
        lambda connection: list_stubs(
            connection,
            database.stubs,
            status=chosen,
            escalated=escalated,
            topic=topic,
            limit=limit,
        ),
    )
    if as_json:
        typer.echo(json.dumps(rows, default=str))
        return
    _print_rows(rows)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    table = RichTable(box=None)
    for name in ("message_id", "topic", "message_key", "status", "count", "resend_time", "note"):
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(
            *(_text(row[str(column.header).replace(" ", "_")]) for column in table.columns)
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


@app.command()
def show(
    message_id: Annotated[str, typer.Argument(help="Which stub.")],
    application: Application = "",
    db: Db = "",
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Show one stub and the consume logs of its message."""
    database = _database(application, db, prefix)
    found = _in_transaction(
        database,
        lambda connection: show_stub(connection, database.stubs, database.logs, message_id),
    )
    if found is None:
        raise UsageError(f"there is no stub {message_id}")
    if as_json:
        typer.echo(json.dumps(found, default=str))
        return
    logs = found.pop("consume_logs")
    for name, value in found.items():
        typer.echo(f"{name:16} {_text(value)}")
    for log in logs:
        typer.echo(
            f"consume log      {log['consumer_group']}: {log['state']}, attempt {log['attempt']}, "
            f"{_text(log['consume_date'] or log['lease_until'])}"
        )


@app.command()
def retry(
    message_ids: SomeIds = None,
    application: Application = "",
    db: Db = "",
    prefix: Prefix = DEFAULT_PREFIX,
    escalated: Annotated[
        bool, typer.Option("--escalated", help="All that wait for a person.")
    ] = False,
    topic: Annotated[str, typer.Option(help="With --escalated: only of this topic.")] = "",
    until: Annotated[
        str, typer.Option(help="With --escalated: only written before: ISO time (UTC), or -1h.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --escalated: say which, change nothing.")
    ] = False,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Send stubs again, with all their sends and attempts before them."""
    if bool(message_ids) == escalated:
        raise UsageError("give either MESSAGE_IDs or --escalated")
    if not escalated and (topic or until or dry_run):
        raise UsageError("--topic, --until and --dry-run go with --escalated")
    moment = parse_moment(until, "--until", datetime.now(UTC)) if until else None
    database = _database(application, db, prefix)
    if not escalated:
        _settle(database, "retry", message_ids or [], note, as_json)
        return
    rows = _in_transaction(
        database,
        lambda connection: escalated_stubs(connection, database.stubs, topic=topic, until=moment),
    )
    if dry_run:
        if as_json:
            typer.echo(json.dumps(rows, default=str))
        else:
            _print_rows(rows)
            typer.echo(f"{len(rows)} stub(s) would be sent again")
        return
    _settle(database, "retry", [row["message_id"] for row in rows], note, as_json)


@app.command()
def void(
    message_ids: Ids,
    application: Application = "",
    db: Db = "",
    prefix: Prefix = DEFAULT_PREFIX,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Give stubs up: they are not sent again."""
    _settle(_database(application, db, prefix), "void", message_ids, note, as_json)


def _settle(
    database: Database, verb: str, message_ids: list[str], note: str, as_json: bool
) -> None:
    settlement = SqlSettlement(database.stubs, database.logs)
    step = settlement.retry if verb == "retry" else settlement.void
    text = f"{verb} by hand{': ' if note else ''}{note}"
    now = database.clock.measured_now()
    done: dict[str, bool] = {}
    for some in _parts(message_ids):
        work = partial(_each, step, some, text, now)
        done |= _in_transaction(database, work)
    if as_json:
        typer.echo(json.dumps(done))
    else:
        for message_id, changed in done.items():
            why = "" if changed else ": there is no such stub, or it is settled"
            typer.echo(f"{message_id} {verb}{why}")
    if not all(done.values()):
        raise typer.Exit(1)


def _each(
    step: Step, message_ids: list[str], text: str, now: float, connection: Connection
) -> dict[str, bool]:
    return {each: step(connection, each, text, now) for each in message_ids}


def _parts(message_ids: list[str]) -> Iterator[list[str]]:
    """Return the ids in parts, each for one transaction: nobody waits long for their rows."""
    for at in range(0, len(message_ids), BATCH):
        yield message_ids[at : at + BATCH]


def _database(application: str, db: str, prefix: str) -> Database:
    if bool(application) == bool(db):
        raise UsageError("give either --app MODULE:OBJECT or --db URL")
    if db:
        database = Database(db, prefix=prefix, connections=1)
    else:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as an entry of sys.path
        database = load_application(application).database
    database.check_file()
    return database


def _in_transaction(database: Database, work: Callable[[Connection], Any]) -> Any:
    try:
        with database.engine.begin() as connection:
            return work(connection)
    except Exception as error:
        if is_missing_table(error):
            raise ConfigurationError(missing_table_text(database.stubs.name)) from error
        raise
    finally:
        database.close()


def _text(value: object) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat(timespec="seconds"))
    return "" if value is None else str(value)
