"""`reliable-mq dlq`: lists dead letters, and lets their consumer groups handle them again.

With an application or a database, it knows the present state of each, and audits every action. With
name servers alone, it knows only the dead letters.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from reliable_mq.app.thread_upkeep import actor
from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.admin_options import of_all_tenants, reachable
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.database_options import SensitiveOf, opened, sensitive_by_settings
from reliable_mq.cli.found_messages import utc_now
from reliable_mq.cli.printing import age_of, print_rows, text_of, window_of
from reliable_mq.cli.saying import say, say_json, say_trouble
from reliable_mq.cli.shared_options import BROKER_VARIABLE, if_it_is_a_key, takes_options_of
from reliable_mq.command_words import typed
from reliable_mq.errors import UsageError
from reliable_mq.escalate.dead_letter import (
    CONSUMED_SINCE,
    RETRIED_SINCE,
    DeadLetter,
    DeadLetterFilter,
)
from reliable_mq.escalate.thread_dead_letters import DeadLetterActions, Outcome, of_application
from reliable_mq.misspelt import did_you_mean
from reliable_mq.wire.message_id import ledger_id

NO_DEAD_LETTER = "there is no such dead letter"
CONSUMED = "its group has consumed it since"
ON_ITS_WAY = "it is already on its way since {:%Y-%m-%dT%H:%M:%SZ}; another copy: --also-settled"
COLUMNS = (
    *("message_id", "consumer_group", "topic", "tag", "key", "time", "age"),
    *("state", "reason"),
)

app = VerbCommands("List, show or retry dead letters.")

Group = Annotated[str, typer.Option(help="Only of this consumer group.")]
AlsoSettled = Annotated[
    bool,
    typer.Option(
        "--also-settled", help="Include those that were retried, voided or consumed since."
    ),
]
AllGroups = Annotated[
    bool,
    typer.Option("--all-groups", help="With --app: also those of other applications."),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MESSAGE_ID…]", help="Message ids of dead letters; or use a filter."),
]


def dead_letter_filter(
    *,
    group: Group = "",
    topic: Annotated[str, typer.Option(help="Only of messages sent to this topic.")] = "",
    key: Annotated[str, typer.Option(help="Only with this message key.")] = "",
    since: Annotated[
        str, typer.Option(help="Only dead letters since: ISO time (UTC), or -1h.")
    ] = "",
    until: Annotated[
        str, typer.Option(help="Only dead letters before: ISO time (UTC), or -1h.")
    ] = "",
    reason_holds: Annotated[
        str, typer.Option("--reason-holds", help="Only with this text in the reason.")
    ] = "",
) -> DeadLetterFilter:
    """Return the filter from the options.

    Raises:
        ConfigurationError: a time cannot be read.
    """
    begin, end = window_of(since, until)
    return DeadLetterFilter(
        group=group,
        topic=topic,
        key=key,
        since=begin,
        until=end,
        reason=reason_holds,
    )


@app.command("list")
@takes_options_of(options.place_of, "place")
@takes_options_of(dead_letter_filter)
def list_(
    *,
    wanted: DeadLetterFilter,
    place: options.Place,
    broker: options.Broker = "",
    also_settled: AlsoSettled = False,
    all_groups: AllGroups = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 50,
    as_json: printing.AsJson = False,
) -> None:
    """List the dead letters that wait for a person, the newest first.

    With --app: those of its consumer groups and of its messages, unless --group names another.
    """
    with _known(place, broker) as (known, own, _):
        found = known.matching(wanted, everything=also_settled)
        found = _of_application(found, None if all_groups or wanted.group else own)
    dead_letters = sorted(found, key=lambda each: each.time, reverse=True)[:limit]
    _print_rows([_row(each) for each in dead_letters], as_json=as_json)
    if dead_letters and not as_json:
        some = "MESSAGE_ID --group GROUP" if len(dead_letters) > 1 else _named(dead_letters[0])
        say(f"to deliver one again: {typed(f'dlq retry {some}', place.found_by)}")


@app.command()
@takes_options_of(options.place_of, "place")
def show(
    *,
    message_id: Annotated[str, typer.Argument(help="The message id.")],
    place: options.Place,
    broker: options.Broker = "",
    group: Group = "",
    as_json: printing.AsJson = False,
) -> None:
    """Show the dead letters of one message, with content and properties."""
    with _known(place, broker) as (known, _, sensitive_of):
        dead_letters = known.of_ids([message_id], group)
    if not dead_letters:
        raise UsageError(f"no consumer group has a dead letter {message_id}; see stub show")
    rows = []
    for each in dead_letters:
        fields = sensitive_of(each.topic)
        properties = fields.masked_headers(dict(sorted(each.message.properties.items())))
        rows.append(
            _row(each) | {"content": fields.shown(each.message.body), "properties": properties}
        )
    if as_json:
        say_json(rows)
        return
    for row in rows:
        for name, value in row.items():
            say(f"{name:16} {text_of(value)}")
        say()


@app.command()
@takes_options_of(options.place_of, "place")
@takes_options_of(dead_letter_filter)
def retry(
    *,
    message_ids: Ids = None,
    wanted: DeadLetterFilter,
    place: options.Place,
    broker: options.Broker = "",
    waiting: Annotated[
        bool, typer.Option("--waiting", help="All that wait for a person.", show_default=False)
    ] = False,
    also_settled: AlsoSettled = False,
    all_groups: AllGroups = False,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    note: options.Note = "",
    by: options.By = "",
    as_json: printing.AsJson = False,
) -> None:
    """Deliver dead letters again, to their own consumer group only, with new attempts.

    A filter selects dead letters that still wait; --waiting selects all that wait. --also-settled
    adds those that were retried since. With --app: only those of its consumer groups and of its
    messages, unless --group names another. Exits with 1 if an id was not retried.
    """
    if waiting and also_settled:
        raise UsageError("give either --waiting or --also-settled")
    is_filtered = waiting or wanted != DeadLetterFilter(group=wanted.group)
    if (message_ids and is_filtered) or not (
        message_ids or is_filtered or wanted.group or also_settled
    ):
        raise UsageError(
            "give either MESSAGE_IDs or a filter such as --group or --topic; all that wait:"
            " --waiting"
        )
    if (note or by) and not place.is_known:
        raise UsageError("--note and --by are stored in an audit: give --app or --db, too")
    with _known(place, broker) as (known, groups, _):
        own = None if all_groups or wanted.group else groups
        refused: Outcome = {}
        if message_ids:
            dead_letters = _of_application(known.of_ids(message_ids, wanted.group), own)
            refused = _refused(message_ids, wanted.group, dead_letters, also_settled=also_settled)
        else:
            dead_letters = _of_application(known.matching(wanted, everything=also_settled), own)
            if not dead_letters:
                _warn_of_group(wanted.group, groups)
        dead_letters = [
            each
            for each in dead_letters
            if each.status != CONSUMED_SINCE
            and (each.group, each.message.message_id) not in refused
        ]
        if dry_run:
            _preview(dead_letters, as_json=as_json)
            _print_refused(refused)
            return
        # Before the retries: their errors must not prevent the audit of refused ids.
        known.note_refused(refused, actor=by or actor(), why=note)
        done: Outcome = {}
        if dead_letters and printing.agreed(f"retry {len(dead_letters)} dead letter(s)?", yes=yes):
            done = known.retry(dead_letters, actor=by or actor(), why=note)
    _print_outcome(done | refused, as_json=as_json)


def _warn_of_group(group: str, groups: frozenset[str] | None) -> None:
    """Warn of a group that is not one of the application, and has no dead letter."""
    if not group or not groups or group in groups:
        return
    hint = did_you_mean(group, groups)
    say_trouble("warning", f"the application has no consumer group {group}{hint}")


def _of_application(
    dead_letters: Sequence[DeadLetter], groups: frozenset[str] | None
) -> list[DeadLetter]:
    """Return those of an application, and say how many others there are."""
    own = of_application(dead_letters, groups)
    others = len(dead_letters) - len(own)
    if others:
        say(f"{others} dead letter(s) of other applications are left out: --all-groups", err=True)
    return own


def _refused(
    message_ids: Sequence[str],
    group: str,
    dead_letters: Sequence[DeadLetter],
    *,
    also_settled: bool,
) -> Outcome:
    """Return why requested ids are not retried; the group is "" if no group has a dead letter."""
    found = {each.message.message_id for each in dead_letters}
    missing = {
        (group, each): NO_DEAD_LETTER for each in message_ids if ledger_id(each) not in found
    }
    settled: Outcome = {}
    for each in dead_letters:
        place = each.group, each.message.message_id
        if each.status == CONSUMED_SINCE:
            settled[place] = CONSUMED
        elif each.state is not None and each.status == RETRIED_SINCE and not also_settled:
            settled[place] = ON_ITS_WAY.format(each.state.retried)
    return missing | settled


def _print_refused(refused: Outcome) -> None:
    for (group, message_id), why in refused.items():
        hint = f"; {if_it_is_a_key(message_id)}" if why == NO_DEAD_LETTER else ""
        say(f"{group} {message_id} is not retried: {why}{hint}".lstrip(), err=True)
    if refused:
        raise typer.Exit(1)


@contextmanager
def _known(
    place: options.Place, broker: str
) -> Iterator[tuple[DeadLetterActions, frozenset[str] | None, SensitiveOf]]:
    """Open the dead letters, with what the databases of the options know about them.

    Yields them, and the groups of the application; None: no application is named. And what returns
    the sensitive fields of a topic.
    """
    if not place.is_known:
        broker = broker or os.environ.get(BROKER_VARIABLE, "")
        if not broker:
            raise UsageError("give --app MODULE:OBJECT, --db URL, or --broker HOST:PORT alone")
        alone = DeadLetterActions({}, reachable(broker), of_all_tenants())
        yield alone, None, sensitive_by_settings
        return
    with opened(place, broker=broker) as found:
        if not found.broker:
            raise UsageError("dead letters are at the broker: give --app, or --broker HOST:PORT")
        actions = DeadLetterActions(found.databases, reachable(found.broker), found.client)
        yield actions, found.groups, found.sensitive_of


def _preview(dead_letters: Sequence[DeadLetter], *, as_json: bool) -> None:
    rows = [_row(each) for each in dead_letters]
    if as_json:
        say_json({"total": len(rows), "first": rows[:50]})
        return
    _print_rows(rows[:50])
    say(f"{len(rows)} dead letter(s) would be retried")


def _named(dead_letter: DeadLetter) -> str:
    return shlex.join((dead_letter.message.message_id, "--group", dead_letter.group))


def _print_rows(rows: list[dict[str, Any]], *, as_json: bool = False) -> None:
    now = utc_now()
    if not as_json:
        for row in rows:
            row["age"] = age_of(row["time"], now)
    print_rows(rows, COLUMNS, as_json=as_json, none="no dead letter waits for a person")


def _row(dead_letter: DeadLetter) -> dict[str, Any]:
    return {
        "message_id": dead_letter.message.message_id,
        "consumer_group": dead_letter.group,
        "topic": dead_letter.topic,
        "tag": dead_letter.message.tag,
        "key": " ".join(dead_letter.message.keys),
        "keys": list(dead_letter.message.keys),
        "time": dead_letter.time,
        "state": dead_letter.status,
        "reason": dead_letter.reason,
    }


def _print_outcome(done: Outcome, *, as_json: bool) -> None:
    if as_json:
        said = {
            f"{group} {message_id}".lstrip(): not why for (group, message_id), why in done.items()
        }
        say_json(said)
    else:
        for (group, message_id), why in done.items():
            if not why:
                say(f"{group} {message_id} retried")
        retried = sum(not why for why in done.values())
        none = "" if done else ": none matches"
        say(f"{retried} of {len(done)} dead letter(s) retried{none}")
    _print_refused({each: why for each, why in done.items() if why})
