"""`reliable-mq stub skip`: let one consumer group skip messages that it cannot handle."""

import shlex
from typing import Annotated

import typer

from reliable_mq.app.thread_upkeep import actor
from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.database_options import opened
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.command_words import typed
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_skip_actions import SkipActions
from reliable_mq.escalate.sql_skips import SKIPPABLE, SkipCase, SkipView
from reliable_mq.wire.message_id import is_usual_id

Reason = Annotated[
    str,
    typer.Option(
        "--note",
        help="The reason; kept in the row and in the audit. Only --dry-run needs none.",
        show_default=False,
    ),
]


@takes_options_of(options.place_of, "place")
def skip(
    *,
    message_ids: Annotated[list[str], typer.Argument(metavar="MESSAGE_ID…", help="Message ids.")],
    group: Annotated[str, typer.Option(help="The consumer group that skips them.")],
    place: options.Place,
    database_name: options.Name = "",
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    note: Reason = "",
    by: options.By = "",
    as_json: printing.AsJson = False,
) -> None:
    """Let one consumer group skip messages that it has received and cannot handle.

    The next delivery is acknowledged without a call of the handler, and the stub waits for the
    group no more. What the handler does right now is rolled back. Other groups are not concerned.
    Exits with 1 if a message was not skipped.
    """
    if not (dry_run or note.strip()):
        raise UsageError("give the reason: --note 'why'; nothing takes a skip back")
    with opened(place, name=database_name) as found:
        databases = {database_name: found.database} if database_name else found.databases
        actions = SkipActions(databases, group, actor=by or actor(), why=note)
        actions.check_group(found.groups)
        ids = list(dict.fromkeys(message_ids))
        views = actions.views(ids)
        ready = [each for each in ids if views[each].case in SKIPPABLE]
        if dry_run:
            _preview(views, place.found_by, as_json=as_json)
            return
        # Also what cannot be skipped: the audit has that somebody wanted it.
        is_meant = not ready or printing.agreed(_question(views, ready, group), yes=yes)
        done: dict[str, str] = {}
        if is_meant:
            for part in actions.skip(ids):
                done |= part
    done = {each: _why_not(each, why, views[each], place.found_by) for each, why in done.items()}
    _print(done, len(ids), as_json=as_json)


def _question(views: dict[str, SkipView], ready: list[str], group: str) -> str:
    running = sum(views[each].case is SkipCase.RUNNING for each in ready)
    told = f" ({running} handled right now)" if running else ""
    return f"skip {len(ready)} message(s){told} for {group}?"


def _why_not(message_id: str, why: str, view: SkipView, found_by: str) -> str:
    """Return why a message is not skipped; of what is no message id, how the id is found."""
    is_unknown = view.case is SkipCase.NOT_RECEIVED and why == view.says
    if not is_unknown or is_usual_id(message_id):
        return why
    upper = message_id.upper()
    if is_usual_id(upper):
        show = typed("stub show KEY", found_by)
        return f"message ids are in upper case: give {upper}; {show} finds the id of a key"
    show = typed(f"stub show {shlex.quote(message_id)}", found_by)
    return f"it is no message id; if it is a key, this finds the id: {show}"


def _preview(views: dict[str, SkipView], found_by: str, *, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                each: {
                    "case": view.case.value,
                    "says": _why_not(each, view.says, view, found_by),
                    "next_attempt": view.next_attempt,
                }
                for each, view in views.items()
            }
        )
        return
    for message_id, view in views.items():
        if view.says:
            says = f"would not be skipped: {_why_not(message_id, view.says, view, found_by)}"
        elif view.case is SkipCase.RUNNING:
            says = f"would be skipped: {view.owner} handles it right now, and is rolled back"
        else:
            time = view.next_attempt
            when = f", not before {time:%Y-%m-%dT%H:%M:%SZ}" if time else ""
            says = f"would be skipped at its next attempt{when}"
        say(f"{message_id} {says}")


def _print(done: dict[str, str], total: int, *, as_json: bool) -> None:
    if as_json:
        say_json({each: not why for each, why in done.items()})
    else:
        for message_id, why in done.items():
            say(f"{message_id} {f'is not skipped: {why}' if why else 'is skipped'}")
        if not done:
            say(f"0 of {total} message(s)")
    if any(done.values()):
        raise typer.Exit(1)
