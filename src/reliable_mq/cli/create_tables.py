"""`reliable-mq create-tables`: our tables in an application's database."""

import json
import os
import sys
from typing import Annotated

import typer

from reliable_mq.app.loading import load_application
from reliable_mq.app.sql_database import Database
from reliable_mq.errors import UsageError
from reliable_mq.outbox.sql_tables import DEFAULT_PREFIX


def command(
    application: Annotated[
        str, typer.Argument(metavar="[MODULE:OBJECT]", help="A ReliableMQ; or give --db.")
    ] = "",
    db: Annotated[str, typer.Option(help="SQLAlchemy URL of the database.")] = "",
    prefix: Annotated[str, typer.Option(help="Prefix of the tables, with --db.")] = DEFAULT_PREFIX,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Create the tables that are missing in an application's databases."""
    if bool(application) == bool(db):
        raise UsageError("give either MODULE:OBJECT or --db URL")
    if db:
        database = Database(db, prefix=prefix, connections=1)
        names = database.create_tables()
        database.close()
    else:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as an entry of sys.path
        mq = load_application(application)
        names = mq.create_tables()
        mq.close()
    typer.echo(json.dumps({"tables": names}) if as_json else f"tables: {', '.join(names)}")
