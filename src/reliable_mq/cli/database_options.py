"""Shared by the verbs that read databases: which application or database, and who asks."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, NamedTuple

import typer
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.loading import load_application
from reliable_mq.app.thread_signals import stop_on_signal
from reliable_mq.cli.credentials import FORMS, credential, variable
from reliable_mq.cli.log_options import write_log
from reliable_mq.cli.shared_options import (
    APPLICATION_VARIABLE,
    BROKER_VARIABLE,
    DATABASE_VARIABLE,
    Application,
    Named,
    note_place,
    one_application,
)
from reliable_mq.client.configured import configured, of_environment
from reliable_mq.client.settings import ClientSettings
from reliable_mq.command_words import BY_DJANGO, DJANGO_APPLICATION
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import is_missing_column
from reliable_mq.database.sql_stub_table import DEFAULT_PREFIX
from reliable_mq.database.sql_types import is_missing_table, missing_table_text
from reliable_mq.database.sql_urls import shown_url
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.sensitive import SensitiveFields, checked_names
from reliable_mq.settings import MAIN_DATABASE, load_settings

Db = Annotated[
    str,
    typer.Option(
        "--db",
        metavar="URL",
        callback=credential,
        help=f"SQLAlchemy URL of the database, without an application; default:"
        f" {DATABASE_VARIABLE}. {FORMS}",
        show_default=False,
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        "--table-prefix",
        envvar="RELIABLE_MQ_TABLE_PREFIX",
        help="Prefix of the tables, with --db.",
    ),
]
Name = Annotated[
    str,
    typer.Option(
        "--database-name",
        help="With --app: which of its databases; default: the first.",
        show_default=False,
    ),
]
Broker = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT;…",
        help="Name servers; default: the application's, or RELIABLE_MQ_BROKER.",
        show_default=False,
    ),
]
BrokerOfDb = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="HOST:PORT;…",
        help="Name servers, with --db; default: RELIABLE_MQ_BROKER, or 127.0.0.1:9876.",
        show_default=False,
    ),
]
By = Annotated[str, typer.Option("--by", help="Your name for the audit; default: your login.")]
Note = Annotated[str, typer.Option(help="The reason; kept in the stub and in the audit.")]


Wait = Annotated[
    bool, typer.Option("--wait", help="Wait while a database is away, until SIGTERM or SIGINT.")
]


class Place(NamedTuple):
    """Where a command looks: an application, or a database without one; or neither is known.

    `found_by`: the options with which another command finds the same place, for hints.
    """

    application: str
    db: str
    table_prefix: str
    found_by: str

    def __repr__(self) -> str:
        return f"Place({self.found_by!r})"

    @property
    def is_known(self) -> bool:
        """Whether there is an application or a database."""
        return bool(self.application or self.db)

    def needed(self) -> "Place":
        """Return the place.

        Raises:
            UsageError: there is neither an application nor a database.
        """
        if not self.is_known:
            raise UsageError(
                f"give either --app MODULE:OBJECT or --db URL; or set {APPLICATION_VARIABLE} or"
                f" {DATABASE_VARIABLE}"
            )
        return self


def place_of(
    *, application: Application = "", db: Db = "", table_prefix: Prefix = DEFAULT_PREFIX
) -> Place:
    """Return the place that the options or the environment name. What is typed wins.

    Of two variables, the application wins: it reads the other one itself.

    Raises:
        UsageError: both options are given.
    """
    if application and db:
        raise UsageError("give either --app MODULE:OBJECT or --db URL")
    found_by = f"--app {shlex.quote(application)}" if application else _shown(db)
    if not application and not db:
        application = os.environ.get(APPLICATION_VARIABLE, "")
        found_by = BY_DJANGO if application == DJANGO_APPLICATION else found_by
        db = "" if application else variable(DATABASE_VARIABLE)
    if application or db:
        note_place(found_by)
    return Place(application, db, table_prefix, found_by)


def named_place_of(
    *,
    argument: Named = "",
    application: Application = "",
    db: Db = "",
    table_prefix: Prefix = DEFAULT_PREFIX,
) -> Place:
    """Return the place of a command that has the application as its argument, too.

    Raises:
        UsageError: two are named, or none.
    """
    application = one_application(argument, application)
    return place_of(application=application, db=db, table_prefix=table_prefix).needed()


def _shown(db: str) -> str:
    """Return the option for a URL. A password is not repeated: then the hint only says URL."""
    if not db:
        return ""
    try:
        is_whole = shown_url(db) == make_url(db).render_as_string(hide_password=False)
    except (ArgumentError, ValueError):
        is_whole = False
    return f"--db {shlex.quote(db)}" if is_whole else "--db URL"


def loaded(application: str) -> ReliableMQ:
    """Return the application that MODULE:OBJECT names, from the current directory.

    Raises:
        UsageError: it cannot be found.
    """
    here = os.getcwd()  # noqa: PTH109 - as an entry of sys.path
    if sys.path[0] != here:
        sys.path.insert(0, here)
    return load_application(application)


SensitiveOf = Callable[[str], SensitiveFields]
"""Returns the sensitive fields of the payloads of a topic."""


def sensitive_by_settings(_topic: str) -> SensitiveFields:
    """Return the sensitive fields that the environment names for all topics."""
    return SensitiveFields(frozenset(checked_names(load_settings().sensitive, "settings")))


class OpenedDatabase(NamedTuple):
    """The database that the options name.

    `database`: the chosen one. `databases`: all of the application, by name. `broker`: its name
    servers; "": unknown. `client`: settings to connect to them, from the application or, without
    one, from the environment. `topics`: those that the application declares or consumes. `groups`:
    its consumer groups, and those that its topics must reach; None: there is no application.
    `sensitive_of`: returns the sensitive fields of a topic's payloads.
    """

    database: Database
    databases: Mapping[str, Database]
    broker: str
    client: ClientSettings
    topics: tuple[str, ...] = ()
    groups: frozenset[str] | None = None
    sensitive_of: SensitiveOf = sensitive_by_settings


def _name_of(mq: ReliableMQ, shown: str) -> str:
    """Return the name of a database that a person typed as the application shows it.

    Raises:
        ConfigurationError: there is none; lists the names.
    """
    known = {mq.shown_name(each): each for each in mq.databases}
    if shown and shown not in known and shown not in mq.databases:
        raise ConfigurationError(f"there is no database {shown!r}; known: {', '.join(known)}")
    return known.get(shown, shown)


@contextmanager
def opened(place: Place, *, name: str = "", broker: str = "") -> Iterator[OpenedDatabase]:
    """Open the databases that the options name; they are closed at the end of the block.

    Raises:
        UsageError: the options name none, or the application cannot be found.
        ConfigurationError: there is no such database, its SQLite file is missing, or it lacks our
            tables.
    """
    place.needed()
    if name and place.db:
        raise UsageError("--database-name needs --app: it names a database of the application")
    if place.db:
        databases: Mapping[str, Database] = {
            MAIN_DATABASE: Database(place.db, prefix=place.table_prefix, connections=1)
        }
        client, broker = of_environment(), broker or os.environ.get(BROKER_VARIABLE, "")
        topics: tuple[str, ...] = ()
        groups: frozenset[str] | None = None
        sensitive_of: SensitiveOf = sensitive_by_settings
    else:
        mq = loaded(place.application)
        client = configured(mq.settings)
        databases, broker = mq.databases, broker or mq.settings.broker
        name = _name_of(mq, name)
        topics, groups = mq.topics, mq._declared.groups
        sensitive_of = mq._declared.sensitive_of
    database = databases[name or next(iter(databases))]
    try:
        for each in databases.values():
            each.check_file()
        yield OpenedDatabase(
            *(database, databases, broker, client, topics, groups), sensitive_of=sensitive_of
        )
    except DBAPIError as error:
        if is_missing_table(error):
            missing = missing_table_text(database.stubs.name, database.metadata)
            raise ConfigurationError(missing) from error
        if is_missing_column(error):  # tables of an older release: says which command helps
            for each in databases.values():
                each.check_tables()
        raise
    finally:
        for each in databases.values():
            each.close()


def wait_for_databases(place: Place) -> None:
    """Wait until each database of a place can be reached; the log says which one is away.

    Raises:
        Abort: SIGTERM or SIGINT came.
        DBAPIError: one refused us.
    """
    write_log()
    mq = application_of(place, "tables")
    try:
        with stop_on_signal() as stopped:
            mq.databases.wait_until_reached(stopped)
    finally:
        mq.close()
    if stopped.is_set():
        raise typer.Abort


def application_of(place: Place, name: str, *, broker: str = "", redis: str = "") -> ReliableMQ:
    """Return the application of a place; for a database without one, one that has only that.

    Args:
        place: the place.
        name: the name of an application that only has a database, such as "resend".
        broker: its name servers; "": the setting.
        redis: its Redis URL; "": the setting.

    Raises:
        UsageError: name servers or Redis are given for an application, which has its own.
    """
    for option, given in (("broker", broker), ("redis", redis)):
        if place.application and given:
            raise UsageError(
                f"--{option} is for --db: application {place.application} says its own (setting"
                f" {option}, or RELIABLE_MQ_{option.upper()})"
            )
    if place.application:
        return loaded(place.application)
    mq = ReliableMQ(
        name,
        broker=broker or None,
        database=place.db,
        redis=redis or None,
        table_prefix=place.table_prefix,
    )
    mq.found_by = place.found_by
    return mq
