"""`reliable-mq stub skip`: let one consumer group skip messages that it cannot handle."""

from typing import Annotated

import typer

from reliable_mq.app.thread_upkeep import actor
from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.database_options import opened
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_skip_actions import SkipActions
from reliable_mq.escalate.sql_skips import SKIPPABLE, SkipCase, SkipView

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
            _preview(views, as_json=as_json)
            return
        # Also what cannot be skipped: the audit has that somebody wanted it.
        is_meant = not ready or printing.agreed(_question(views, ready, group), yes=yes)
        done: dict[str, str] = {}
        if is_meant:
            for part in actions.skip(ids):
                done |= part
    _print(done, len(ids), as_json=as_json)


def _question(views: dict[str, SkipView], ready: list[str], group: str) -> str:
    running = sum(views[each].case is SkipCase.RUNNING for each in ready)
    told = f" ({running} handled right now)" if running else ""
    return f"skip {len(ready)} message(s){told} for {group}?"


def _preview(views: dict[str, SkipView], *, as_json: bool) -> None:
    if as_json:
        rows = {each: {"case": view.case.value, "says": view.says} for each, view in views.items()}
        say_json(rows)
        return
    for message_id, view in views.items():
        is_running = view.case is SkipCase.RUNNING
        would = "would be skipped" + (f", and is handled right now by {view.owner}" * is_running)
        says = f"would not be skipped: {view.says}" if view.says else would
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
