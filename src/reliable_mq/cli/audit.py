"""`reliable-mq audit`: who changed what, at a broker and in the databases of an application."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from reliable_mq.cli import printing
from reliable_mq.cli.audit_lines import lines_of
from reliable_mq.cli.credentials import FORMS, credential
from reliable_mq.cli.saying import say_trouble
from reliable_mq.cli.shared_options import Application, Named, one_application, takes_options_of
from reliable_mq.errors import UsageError
from reliable_mq.escalate.audit_filter import AuditFilter

COLUMNS = ("time", "actor", "address", "action", "on", "changed", "result")

Row = dict[str, Any]


def audit_filter(
    *,
    user: Annotated[str, typer.Option(metavar="NAME", help="Only by this person or user.")] = "",
    action: Annotated[
        str, typer.Option(metavar="TEXT", help="Only actions with this text, in any case.")
    ] = "",
    holds: Annotated[
        str, typer.Option(metavar="TEXT", help="Only with this text in message id or detail.")
    ] = "",
    since: Annotated[str, typer.Option(help="Only written since: ISO time (UTC), or -1h.")] = "",
    until: Annotated[str, typer.Option(help="Only written before: ISO time (UTC), or -1h.")] = "",
    changed: Annotated[
        bool, typer.Option("--changed", help="Only what changed something, no refusals.")
    ] = False,
) -> AuditFilter:
    """Return the filter from the options.

    Raises:
        ConfigurationError: a time cannot be read.
    """
    begin, end = printing.window_of(since, until)
    return AuditFilter(
        since=begin,
        until=end,
        actor=user,
        action=action,
        text=holds,
        is_changed=changed or None,
    )


@takes_options_of(audit_filter, "wanted")
def command(
    argument: Named = "",
    after_list: Annotated[str, typer.Argument(hidden=True, help="After the word list.")] = "",
    *,
    wanted: AuditFilter,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder of a broker's or a name server's store; needs its owner's rights.",
        ),
    ] = None,
    application: Application = "",
    db: Annotated[
        str,
        typer.Option(
            "--db",
            metavar="URL",
            callback=credential,
            help=f"SQLAlchemy URL of the database, without an application. {FORMS}",
            show_default=False,
        ),
    ] = "",
    table_prefix: Annotated[
        str,
        typer.Option(
            "--table-prefix",
            envvar="RELIABLE_MQ_TABLE_PREFIX",
            help="Prefix of the tables, with --db.",
        ),
    ] = "rmq_",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 50,
    as_json: printing.AsJson = False,
) -> None:
    """List who changed what, the newest first: at a broker, and in an application's databases.

    --store reads the file of a bundled broker or name server: changes of topics, groups, offsets,
    settings, users and policies. --app or --db reads the table of the audit: changes of stubs and
    dead letters by persons and by repairs. Both together are one list.
    """
    if argument == "list":  # the verb of other commands; here it is the only one
        argument = after_list
    elif after_list:
        raise UsageError(f"{after_list!r} is one word too many: give one MODULE:OBJECT")
    application = one_application(argument, application)
    rows: list[Row] = []
    if store is not None:
        found = lines_of(store, wanted, limit)
        rows += [{"source": "broker", **row} for row in found.rows]
        if found.unreadable:
            say_trouble("warning", f"{found.unreadable} lines of the audit cannot be read")
    if store is None or application or db:
        rows += _of_databases(application, db, table_prefix, wanted, limit)
    rows.sort(key=lambda row: row["create_date"], reverse=True)
    rows = rows[:limit]
    shown = rows if as_json else [_shown(row) for row in rows]
    printing.print_rows(shown, COLUMNS, as_json=as_json, none="no entry of the audit matches")


def _of_databases(
    application: str, db: str, table_prefix: str, wanted: AuditFilter, limit: int
) -> list[Row]:
    from reliable_mq.cli import database_options as options  # noqa: PLC0415 - with SQLAlchemy
    from reliable_mq.escalate.sql_audit import SqlAudit  # noqa: PLC0415

    place = options.place_of(application=application, db=db, table_prefix=table_prefix)
    if not place.is_known:
        raise UsageError(
            "give --store DIR of a broker, --app MODULE:OBJECT or --db URL of a database; or set"
            " RELIABLE_MQ_APP or RELIABLE_MQ_DATABASE"
        )
    rows: list[Row] = []
    with options.opened(place) as found:
        for name, database in found.databases.items():
            with database.engine.connect() as connection:
                entries = SqlAudit(database.audit).entries(connection, wanted, limit)
            rows += [{"source": name, **_with_zone(entry)} for entry in entries]
    return rows


def _with_zone(entry: Row) -> Row:
    time: datetime = entry["create_date"]
    return {**entry, "create_date": time if time.tzinfo else time.replace(tzinfo=UTC)}


def _shown(row: Mapping[str, Any]) -> Row:
    """Return the cells of an entry."""
    detail = row["detail"]
    why = detail.get("why") or detail.get("reason") or ""
    result = str(row.get("result", ""))
    return {
        "time": row["create_date"],
        "actor": row["actor"],
        "address": row.get("address", ""),
        "action": row["action"],
        "on": row["message_id"] or _names(detail.get("on", {})),
        "changed": "yes" if row["changed"] else "no",
        "result": f"{result}: {why}" if result and why else result or why,
    }


def _names(on: object) -> str:
    """Return what a request named, such as "topic orders, group payments"."""
    if not isinstance(on, Mapping):
        return ""
    texts = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in on.items()
    }
    return ", ".join(f"{name} {text}" for name, text in texts.items())
