"""`reliable-mq migrate`: migrates the tables of an application's database to this release."""

from typing import Annotated

import typer

from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.saying import say, say_json, say_lines
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_schema import REVISION
from reliable_mq.errors import UsageError
from reliable_mq.migrations.sql_upgrade import migrate, pending, script_text


@takes_options_of(options.named_place_of, "place")
def command(
    *,
    place: options.Place,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if a migration is needed.")
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Only print the SQL; do not connect to the database.")
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            "--from-revision",
            metavar="REVISION",
            help="With --sql: the revision of the tables; default: no tables yet.",
            show_default=False,
        ),
    ] = "",
    wait: options.Wait = False,
    as_json: printing.AsJson = False,
) -> None:
    """Migrate the tables to this release; create them if there are none."""
    if since and not sql:
        raise UsageError("--from-revision needs --sql")
    if sql and (check or as_json):
        raise UsageError("--sql cannot be used with --check or --json")
    if wait and not sql:
        options.wait_for_databases(place)
    if place.db:
        databases = {"": Database(place.db, prefix=place.table_prefix, connections=1)}
    else:
        databases = dict(options.loaded(place.application).databases)
    try:
        if sql:
            _print_sql(databases, since or None)
            return
        step, verb = (_pending, "lacks") if check else (migrate, "has run")
        named = len(databases) > 1
        _print_revisions(
            [
                f"{name}.{revision}" if named else revision
                for name, database in databases.items()
                for revision in step(database)
            ],
            verb,
            as_json,
        )
    finally:
        for database in databases.values():
            database.close()


def _print_sql(databases: dict[str, Database], since: str | None) -> None:
    for name, database in databases.items():
        if len(databases) > 1:
            say(f"-- {name}")
        say_lines(script_text(database.url.get_backend_name(), database.prefix, since))


def _pending(database: Database) -> list[str]:
    database.check_file()
    with database.engine.connect() as connection:
        return pending(connection, database.prefix)


def _print_revisions(revisions: list[str], verb: str, as_json: bool) -> None:
    if as_json:
        say_json({"revision": REVISION, verb.replace(" ", "_"): revisions})
    elif revisions:
        say(f"the database {verb} {', '.join(revisions)}")
    else:
        say(f"the database is at revision {REVISION}: nothing to do")
    if revisions and verb == "lacks":
        raise typer.Exit(1)
