"""`reliable-mq stub`: look at stubs, and settle by hand the stubs that do not settle themselves."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.progress import Progress
from sqlalchemy import MetaData

from reliable_mq.app.thread_upkeep import actor
from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.database_options import opened
from reliable_mq.cli.filter_options import stub_filter
from reliable_mq.cli.printing import print_rows, text_of
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.client.settings import ClientSettings
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_run_tables import finding_table
from reliable_mq.database.sql_stub_table import DEFAULT_PREFIX
from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.escalate.sql_history import SqlHistory, readable
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.escalate.sql_stub_list import PAGE_ROWS, SqlStubList
from reliable_mq.escalate.stub_filter import StubFilter
from reliable_mq.escalate.timeline import MessageHistory, TimelineEntry, merged, timeline
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.outbox.stub import StubEvent, groups_of
from reliable_mq.resend.sql_resending import topics_of
from reliable_mq.resend.topic_gate import TopicGate, gate_of, gate_text
from reliable_mq.settings import EMBEDDED

PREVIEW_ROWS = 50
COLUMNS = ("message_id", "topic", "message_key", "status", "count", "resend_time", "note")

app = typer.Typer(no_args_is_help=True, help="List, show, retry or void message stubs.")

SomeIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MESSAGE_ID…]", help="Message ids of stubs; or use a filter."),
]


@app.command("list")
@takes_options_of(stub_filter)
def list_(
    *,
    wanted: StubFilter,
    application: options.Application = "",
    db: options.Db = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    database: options.Name = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 50,
    as_json: printing.AsJson = False,
) -> None:
    """List stubs, the newest first, and the topics that are closed or paused."""
    with opened(application, db, prefix, name=database) as found:
        chosen = found.database
        stubs = SqlStubList(chosen.stubs, chosen.logs, wanted)
        with chosen.forgiving_engine.begin() as connection:
            rows = stubs.newest(connection, limit)
        topics, now = topics_of(chosen).rows(), chosen.clock.now()
    gates = {row["topic"]: gate_of(topics.get(row["topic"]), now) for row in rows}
    rows = [row | {"topic_gate": gates[row["topic"]].value} for row in rows]
    print_rows(rows, COLUMNS, as_json=as_json)
    for topic, row in topics.items():
        if not as_json and (row.is_closed or gate_of(row, now) is TopicGate.PAUSED):
            place = options.found_by(application, db)
            say(
                f"{gate_text(row, now)}; reliable-mq pause {topic} --end {place}".rstrip()
                + " opens it"
            )


@app.command()
def show(
    message_id: Annotated[str, typer.Argument(help="The message id.")],
    application: options.Application = "",
    db: options.Db = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    database: options.Name = "",
    broker: options.Broker = "",
    as_json: printing.AsJson = False,
) -> None:
    """Show all known facts about one message: its stub, and its timeline from all ledgers.

    Asks all databases of an application, unless one is named.
    """
    with opened(application, db, prefix, name=database, broker=broker) as found:
        asked = [found.database] if database else list(found.databases.values())
        history = merged([_history(each, message_id) for each in asked])
        name_servers, client = found.broker, found.client
    records, unasked = _records(history, message_id, name_servers, client)
    if history.is_empty and not records:
        raise UsageError(f"no ledger knows a message {message_id}{unasked and f' ({unasked})'}")
    moments = timeline(history, records)
    if unasked:
        moments.append(TimelineEntry(None, "broker", unasked))
    shown = readable(history)
    if as_json:
        shown["timeline"] = [
            {"time": each.time, "ledger": each.ledger, "what": each.what} for each in moments
        ]
        say_json(shown)
        return
    for name, value in shown.items():
        if not isinstance(value, list):
            say(f"{name:16} {text_of(value)}")
    say()
    for each in moments:
        say(f"{text_of(each.time) or 'now':25}  {each.ledger:18}  {each.what}")


def _history(database: Database, message_id: str) -> MessageHistory:
    ledgers = SqlHistory(
        stubs=database.stubs,
        logs=database.logs,
        confirmations=database.confirmations,
        escalations=database.escalations,
        alerts=database.alerts,
        notifiers=database.notifiers,
        audit=database.audit,
        findings=finding_table(MetaData(), database.prefix),
    )
    with database.forgiving_engine.begin() as connection:
        return ledgers.read(connection, message_id)


def _records(
    history: MessageHistory, message_id: str, name_servers: str, client: ClientSettings
) -> tuple[list[ReceivedMessage], str]:
    """Return the broker's records of a message, or why it was not asked."""
    if not name_servers:
        return [], "not asked: give --app or --broker"
    if name_servers.startswith(EMBEDDED):
        return [], "not asked: it runs inside the application's process"
    # Imported late: most commands on stubs need no client.
    from reliable_mq.client.administering.thread_browser import Browser  # noqa: PLC0415

    topics = {row["topic"] for row in (*history.logs, *history.escalations)}
    groups = {row["consumer_group"] for row in history.logs}
    if history.stub is not None:
        topics.add(history.stub["topic"])
        groups.update(groups_of(history.stub["required_groups"]))
    for group in groups:
        topics |= {f"{RETRY_PREFIX}{group}", f"{DEAD_LETTER_PREFIX}{group}"}
    try:
        with Browser(name_servers, client) as browser:
            found = [browser.find(topic, message_id) for topic in sorted(topics)]
    except ReliableMQError as error:
        return [], f"cannot be asked: {error}"
    return [record for records in found for record in records], ""


@app.command()
@takes_options_of(stub_filter)
def retry(
    *,
    message_ids: SomeIds = None,
    wanted: StubFilter,
    application: options.Application = "",
    db: options.Db = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    database: options.Name = "",
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    note: options.Note = "",
    by: options.By = "",
    as_json: printing.AsJson = False,
) -> None:
    """Send stubs again from the start, with all their sends and attempts.

    A filter selects stubs that wait for a person. With --status unconfirmed or voided, it selects
    all stubs in this status.
    """
    with opened(application, db, prefix, name=database) as found:
        operator_actions = OperatorActions(
            found.database, StubEvent.RETRY, actor=by or actor(), why=note
        )
        terminal = Terminal("retry", yes=yes, as_json=as_json)
        terminal.settle(operator_actions, message_ids or [], wanted, dry_run=dry_run)


@app.command()
@takes_options_of(stub_filter)
def void(
    *,
    message_ids: SomeIds = None,
    wanted: StubFilter,
    application: options.Application = "",
    db: options.Db = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    database: options.Name = "",
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    note: options.Note = "",
    by: options.By = "",
    as_json: printing.AsJson = False,
) -> None:
    """Void stubs: they are not sent again. A filter selects stubs that wait for a person."""
    with opened(application, db, prefix, name=database) as found:
        operator_actions = OperatorActions(
            found.database, StubEvent.VOID, actor=by or actor(), why=note
        )
        terminal = Terminal("void", yes=yes, as_json=as_json)
        terminal.settle(operator_actions, message_ids or [], wanted, dry_run=dry_run)


class Terminal:
    """Asks the person at the terminal, shows the progress, and reports the results.

    Args:
        verb: "retry" or "void".
        yes: do not ask.
        as_json: print JSON.
    """

    def __init__(self, verb: str, *, yes: bool, as_json: bool) -> None:
        self._verb = verb
        self._yes = yes
        self._as_json = as_json

    def settle(
        self,
        operator_actions: OperatorActions,
        message_ids: Sequence[str],
        wanted: StubFilter,
        *,
        dry_run: bool,
    ) -> None:
        """Do it, or print the stubs to which it would be done.

        Raises:
            UsageError: both ids and a filter are given, or neither.
        """
        if bool(message_ids) != wanted.is_open:
            raise UsageError("give either MESSAGE_IDs or a filter such as --escalated or --topic")
        if message_ids:
            if dry_run:
                raise UsageError("--dry-run needs a filter")
            self._print_changes(
                self._done(operator_actions.change_ids(message_ids), len(message_ids))
            )
            return
        chosen = operator_actions.chosen(wanted)
        total = chosen.count()
        if dry_run:
            self._preview(chosen.first(PREVIEW_ROWS), total)
        elif total and printing.agreed(f"{self._verb} {total} stub(s)?", yes=self._yes):
            self._print_changes(self._done(operator_actions.change_selected(chosen), total))
        elif self._as_json:
            say("{}")
        else:
            say(f"0 of {total} stub(s)")

    def _preview(self, rows: Sequence[dict[str, Any]], total: int) -> None:
        if self._as_json:
            say_json({"total": total, "first": rows})
            return
        print_rows(rows, COLUMNS)
        what = "would be sent again" if self._verb == "retry" else "would be voided"
        say(f"{total} stub(s) {what}")

    def _done(self, parts: Iterator[dict[str, bool]], total: int) -> dict[str, bool]:
        """Return the result for each stub; show the progress if there are many."""
        done: dict[str, bool] = {}
        shown = sys.stderr.isatty() and total > PAGE_ROWS
        with Progress(transient=True) if shown else nullcontext() as progress:
            task = progress.add_task(self._verb, total=total) if progress else None
            for part in parts:
                done |= part
                if progress and task is not None:
                    progress.advance(task, len(part))
        return done

    def _print_changes(self, done: dict[str, bool]) -> None:
        if self._as_json:
            say_json(done)
        else:
            for message_id, changed in done.items():
                why = "" if changed else ": there is no such stub, or its status forbids it"
                say(f"{message_id} {self._verb}{why}")
        if not all(done.values()):
            raise typer.Exit(1)
