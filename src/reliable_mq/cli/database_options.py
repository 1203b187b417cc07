"""Shared by the verbs that read databases: which database, and who asks."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, NamedTuple

import typer
from sqlalchemy.exc import DBAPIError

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.loading import load_application
from reliable_mq.cli.shared_options import BROKER_VARIABLE, DATABASE_VARIABLE
from reliable_mq.client.configured import configured, of_environment
from reliable_mq.client.settings import ClientSettings
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import is_missing_table, missing_table_text
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.settings import MAIN_DATABASE

Application = Annotated[
    str,
    typer.Option(
        "--app", metavar="MODULE:OBJECT", help="The application, such as shop:mq; or give --db."
    ),
]
Named = Annotated[
    str,
    typer.Argument(
        metavar="[MODULE:OBJECT]", help="The application, such as shop:mq; or give --db."
    ),
]
Db = Annotated[str, typer.Option(help="SQLAlchemy URL of the database.")]
Prefix = Annotated[
    str,
    typer.Option(envvar="RELIABLE_MQ_TABLE_PREFIX", help="Prefix of the tables, with --db."),
]
Name = Annotated[
    str, typer.Option("--database", help="With --app: which of its databases; default: the first.")
]
Broker = Annotated[str, typer.Option(help="Name servers HOST:PORT;…; default: the application's.")]
By = Annotated[str, typer.Option("--by", help="Your name for the audit; default: your login.")]
Note = Annotated[str, typer.Option(help="The reason; kept in the stub and in the audit.")]


def database_of(application: str, db: str, named_by: str = "--app MODULE:OBJECT") -> str:
    """Return the URL of a command's database; "": the command uses an application.

    If neither is given, the URL comes from the variable `RELIABLE_MQ_DATABASE`.

    Raises:
        UsageError: both are given, or neither and there is no variable.
    """
    if application and db:
        raise UsageError(f"give either {named_by} or --db URL")
    found = db or ("" if application else os.environ.get(DATABASE_VARIABLE, ""))
    if not (application or found):
        raise UsageError(f"give either {named_by} or --db URL; or set {DATABASE_VARIABLE}")
    return found


def found_by(application: str, db: str) -> str:
    """Return the options with which another command finds the same database, for hints.

    Args:
        application: "MODULE:OBJECT", or "".
        db: the URL, or "". It may contain a password, so the hint only says URL.
    """
    if application:
        return f"--app {application}"
    return "" if db == os.environ.get(DATABASE_VARIABLE) else "--db URL"


def loaded(application: str) -> ReliableMQ:
    """Return the application that MODULE:OBJECT names, from the current directory.

    Raises:
        UsageError: it cannot be found.
    """
    here = os.getcwd()  # noqa: PTH109 - as an entry of sys.path
    if sys.path[0] != here:
        sys.path.insert(0, here)
    return load_application(application)


class OpenedDatabase(NamedTuple):
    """The database that the options name.

    `database`: the chosen one. `databases`: all of the application, by name. `broker`: its name
    servers; "": unknown. `client`: settings to connect to them, from the application or, without
    one, from the environment.
    """

    database: Database
    databases: Mapping[str, Database]
    broker: str
    client: ClientSettings


@contextmanager
def opened(
    application: str, db: str, prefix: str, *, name: str = "", broker: str = ""
) -> Iterator[OpenedDatabase]:
    """Open the databases that the options name; they are closed at the end of the block.

    Raises:
        UsageError: the options name none or two, or the application cannot be found.
        ConfigurationError: there is no such database, its SQLite file is missing, or it lacks our
            tables.
    """
    db = database_of(application, db)
    if name and db:
        raise UsageError("--database needs --app: it names a database of the application")
    if db:
        databases: Mapping[str, Database] = {
            MAIN_DATABASE: Database(db, prefix=prefix, connections=1)
        }
        client, broker = of_environment(), broker or os.environ.get(BROKER_VARIABLE, "")
    else:
        mq = loaded(application)
        client = configured(mq.settings)
        databases, broker = mq.databases, broker or mq.settings.broker
    database = databases[name or next(iter(databases))]
    try:
        for each in databases.values():
            each.check_file()
        yield OpenedDatabase(database, databases, broker, client)
    except DBAPIError as error:
        if is_missing_table(error):
            raise ConfigurationError(missing_table_text(database.stubs.name)) from error
        raise
    finally:
        for each in databases.values():
            each.close()
