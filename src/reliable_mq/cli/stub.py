"""`reliable-mq stub`: look at stubs, and settle by hand the stubs that do not settle themselves."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reliable_mq.app.thread_upkeep import actor
from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing, stub_show, stub_skip
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.database_options import opened
from reliable_mq.cli.filter_options import stub_filter
from reliable_mq.cli.found_messages import utc_now
from reliable_mq.cli.printing import age_of, print_rows
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import if_it_is_a_key, takes_options_of
from reliable_mq.command_words import typed
from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.escalate.sql_settlement import NO_STUB
from reliable_mq.escalate.sql_stub_list import PAGE_ROWS, SqlStubList
from reliable_mq.escalate.stub_filter import StubFilter, without_masked
from reliable_mq.outbox.stub import StubEvent, groups_of
from reliable_mq.resend.sql_resending import topics_of
from reliable_mq.resend.topic_gate import TopicGate, gate_of, gate_text

if TYPE_CHECKING:
    from rich.progress import Progress

PREVIEW_ROWS = 50
COLUMNS = (
    *("message_id", "time", "age", "topic", "tag", "key", "groups"),
    *("status", "tries", "next", "note"),
)

app = VerbCommands("List, show, retry, void or skip messages with a stub.")
app.command()(stub_show.show)
app.command()(stub_skip.skip)

SomeIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MESSAGE_ID…]", help="Message ids of stubs; or use a filter."),
]


@app.command("list")
@takes_options_of(options.place_of, "place")
@takes_options_of(stub_filter)
def list_(
    *,
    wanted: StubFilter,
    place: options.Place,
    database_name: options.Name = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 50,
    as_json: printing.AsJson = False,
) -> None:
    """List stubs, the newest first, and the topics that are closed or paused."""
    with opened(place, name=database_name) as found:
        chosen = found.database
        shown = without_masked(wanted, found.topics, found.sensitive_of)
        stubs = SqlStubList(chosen.stubs, chosen.logs, shown)
        with chosen.forgiving_engine.begin() as connection:
            rows = stubs.newest(connection, limit)
        topics, now = topics_of(chosen).rows(), chosen.clock.now()
    gates = {row["topic"]: gate_of(topics.get(row["topic"]), now) for row in rows}
    rows = [row | {"topic_gate": gates[row["topic"]].value} for row in rows]
    _print_stubs(rows, as_json=as_json)
    for topic, row in topics.items():
        if not as_json and (row.is_closed or gate_of(row, now) is TopicGate.PAUSED):
            end = typed(f"pause {shlex.quote(topic)} --end", place.found_by)
            say(f"{gate_text(row, now)}; to open it: {end}")
    if not as_json:
        for hint in _hints(rows, place.found_by):
            say(hint)
        if text := wanted.correlation_id:
            show = typed(f"stub show {shlex.quote(text)}", place.found_by)
            say(f"stubs of an older release are not listed; to look for them: {show}")


def _print_stubs(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print stubs as a table or as JSON, which has the consumer groups as a list."""
    now = utc_now()
    listed = [
        row
        | {
            "required_groups": list(groups_of(row["required_groups"])),
            "age_seconds": round((now - row["create_date"]).total_seconds(), 3),
        }
        for row in rows
    ]
    if not as_json:
        listed = [
            row
            | {
                "time": row["create_date"],
                "age": age_of(row["create_date"], now),
                "key": row["message_key"],
                "groups": ", ".join(row["required_groups"]),
                "tries": row["count"],
                "next": row["resend_time"],
            }
            for row in listed
        ]
    print_rows(listed, COLUMNS, as_json=as_json, none="no stub matches")


def _hints(rows: Sequence[dict[str, Any]], found_by: str) -> list[str]:
    """Return the commands that send again what waits for a person."""
    waiting = [
        row
        for row in rows
        if row["status"] == StubStatus.UNCONFIRMED.name and row["resend_time"] is None
    ]
    hints = []
    if any(row["given_up"] for row in waiting):
        hints.append(f"given up by consumer groups; to see them: {typed('dlq list', found_by)}")
    if any(not row["given_up"] for row in waiting):
        hints.append(
            "all sends used up; to send all of them again: "
            + typed("stub retry --escalated", found_by)
        )
    return hints


@app.command()
@takes_options_of(options.place_of, "place")
@takes_options_of(stub_filter)
def retry(
    *,
    message_ids: SomeIds = None,
    wanted: StubFilter,
    place: options.Place,
    database_name: options.Name = "",
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    note: options.Note = "",
    by: options.By = "",
    as_json: printing.AsJson = False,
) -> None:
    """Send stubs again, as if for the first time: sends and attempts are counted from 0.

    A filter selects stubs that wait for a person. With --status unconfirmed or voided, it selects
    all stubs in this status.
    """
    with opened(place, name=database_name) as found:
        operator_actions = OperatorActions(
            found.database, StubEvent.RETRY, actor=by or actor(), why=note
        )
        terminal = Terminal("retry", yes=yes, as_json=as_json)
        shown = without_masked(wanted, found.topics, found.sensitive_of)
        terminal.settle(operator_actions, message_ids or [], shown, dry_run=dry_run)


@app.command()
@takes_options_of(options.place_of, "place")
@takes_options_of(stub_filter)
def void(
    *,
    message_ids: SomeIds = None,
    wanted: StubFilter,
    place: options.Place,
    database_name: options.Name = "",
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    note: options.Note = "",
    by: options.By = "",
    as_json: printing.AsJson = False,
) -> None:
    """Void stubs: they are not sent again. A filter selects stubs that wait for a person."""
    with opened(place, name=database_name) as found:
        operator_actions = OperatorActions(
            found.database, StubEvent.VOID, actor=by or actor(), why=note
        )
        terminal = Terminal("void", yes=yes, as_json=as_json)
        shown = without_masked(wanted, found.topics, found.sensitive_of)
        terminal.settle(operator_actions, message_ids or [], shown, dry_run=dry_run)


def _progress() -> "Progress":
    from rich.progress import Progress  # noqa: PLC0415 - for many stubs only

    return Progress(transient=True)


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
            done = self._done(operator_actions.change_ids(message_ids), len(message_ids))
            self._print_changes(done, operator_actions)
            return
        chosen = operator_actions.chosen(wanted)
        total = chosen.count()
        if dry_run:
            self._preview(chosen.first(PREVIEW_ROWS), total)
        elif total and printing.agreed(f"{self._verb} {total} stub(s)?", yes=self._yes):
            done = self._done(operator_actions.change_selected(chosen), total)
            self._print_changes(done, operator_actions)
        elif self._as_json:
            say("{}")
        else:
            say(f"0 of {total} stub(s)")

    def _preview(self, rows: Sequence[dict[str, Any]], total: int) -> None:
        if self._as_json:
            say_json({"total": total, "first": rows})
            return
        _print_stubs(rows, as_json=False)
        what = "would be sent again" if self._verb == "retry" else "would be voided"
        say(f"{total} stub(s) {what}")

    def _done(self, parts: Iterator[dict[str, bool]], total: int) -> dict[str, bool]:
        """Return the result for each stub; show the progress if there are many."""
        done: dict[str, bool] = {}
        shown = sys.stderr.isatty() and total > PAGE_ROWS
        with _progress() if shown else nullcontext() as progress:
            task = progress.add_task(self._verb, total=total) if progress else None
            for part in parts:
                done |= part
                if progress and task is not None:
                    progress.advance(task, len(part))
        return done

    def _print_changes(self, done: dict[str, bool], operator_actions: OperatorActions) -> None:
        if self._as_json:
            say_json(done)
        else:
            reasons = operator_actions.reasons([each for each in done if not done[each]])
            for message_id, changed in done.items():
                why = "" if changed else f": {_with_hint(reasons[message_id], message_id)}"
                say(f"{message_id} {self._verb}{why}")
        if not all(done.values()):
            raise typer.Exit(1)


def _with_hint(why: str, typed: str) -> str:
    """Return why a stub was not changed; a person may have typed a key for an id."""
    return f"{why}; {if_it_is_a_key(typed)}" if why == NO_STUB else why
