"""`reliable-mq stub show`: where is this message? Its stub, its state, and all that happened."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.admin_options import FAILED
from reliable_mq.cli.database_options import OpenedDatabase, opened
from reliable_mq.cli.found_messages import (
    NOT_REACHED,
    history_of,
    ids_of,
    overview,
    records_of,
    utc_now,
)
from reliable_mq.cli.found_pops import (
    HandedOut,
    as_rows,
    entries_of,
    flying,
    pops_of_message,
)
from reliable_mq.cli.message_standing import Standing, standing
from reliable_mq.cli.printing import age_of, print_rows, text_of
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.command_words import typed
from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_stub_table import MEANINGS
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_history import readable
from reliable_mq.escalate.timeline import MessageHistory, TimelineEntry, timeline
from reliable_mq.outbox.stub import groups_of

_NO_KEY = "; a message that was sent without key= is found by its id only"
MATCHES = ("message_id", "time", "age", "topic", "tag", "key", "groups", "state")

OneDatabase = Annotated[
    str,
    typer.Option(
        "--database-name",
        help="With --app: ask only this one of its databases; default: all.",
        show_default=False,
    ),
]


Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        metavar="[NAME=]DIR",
        help="Store directory of a broker, running or not: read there what is in flight by the"
        " message. Repeat it for several brokers. Needs the extra spark.",
        show_default=False,
    ),
]


@takes_options_of(options.place_of, "place")
def show(
    *,
    message_id: Annotated[
        str,
        typer.Argument(metavar="MESSAGE", help="The message id, the message key or a header."),
    ],
    place: options.Place,
    database_name: OneDatabase = "",
    broker: options.Broker = "",
    store: Stores = None,
    as_json: printing.AsJson = False,
) -> None:
    """Show all known facts about one message: its stub, and its timeline from all ledgers.

    It asks all databases of an application, unless one is named, and the brokers. It says which
    group has it in flight by the message, and until when. If several messages have the key or the
    correlation id, it lists them. Exits with 1 if the brokers do not answer.
    """
    with opened(place, name=database_name, broker=broker) as found:
        asked = [found.database] if database_name else list(found.databases.values())
        ids = ids_of(asked, found, message_id) or [message_id]
        histories = {each: history_of(asked, each) for each in ids}
        topics, place_of_hints = found.topics, place.found_by
        sensitive_of = found.sensitive_of
    if len(ids) > 1:
        _print_matches(message_id, histories, place_of_hints, as_json=as_json)
        return
    ((only, history),) = histories.items()
    records, unasked = records_of(only, history, found.broker, found.client, topics)
    if history.is_empty and not records:
        raise UsageError(
            f"no ledger knows a message with the id or key {message_id}"
            f"{unasked and f' (the broker {_was(unasked)})'}{_NO_KEY}"
        )
    is_away = unasked.startswith(NOT_REACHED)
    pops, missing = (
        ([], [])
        if is_away and not store
        else pops_of_message(only, history, records, store or (), found)
    )
    now = utc_now()
    state = standing(only, history, records, place_of_hints, flying(pops, now))
    moments = timeline(history, records, entries_of(pops, now))
    moments += [TimelineEntry(None, "broker", why) for why in (unasked, *missing) if why]
    topic = history.stub["topic"] if history.stub is not None else ""
    _print(only, readable(history, sensitive_of(topic)), moments, pops, state, as_json=as_json)
    if is_away:
        raise typer.Exit(FAILED)


def _was(unasked: str) -> str:
    return unasked if unasked.startswith(NOT_REACHED) else f"was {unasked}"


def states_of(
    found: OpenedDatabase, text: str, found_by: str
) -> list[tuple[str, MessageHistory, Standing]]:
    """Return the messages with an id or a message key, and where each of them stands.

    Raises:
        UsageError: no ledger knows one.
    """
    asked: list[Database] = list(found.databases.values())
    states = []
    for each in ids_of(asked, found, text):
        history = history_of(asked, each)
        records, _ = records_of(each, history, found.broker, found.client, found.topics)
        states.append((each, history, standing(each, history, records, found_by)))
    if not states:
        raise UsageError(f"no ledger knows a message with the id or key {text}{_NO_KEY}")
    return states


def _print_matches(
    key: str, histories: dict[str, MessageHistory], found_by: str, *, as_json: bool
) -> None:
    now = utc_now()
    rows = [
        overview(history, each) | {"state": standing(each, history).text}
        for each, history in histories.items()
    ]
    if not as_json:
        for row in rows:
            row["groups"] = ", ".join(row["groups"])
            row["age"] = age_of(row["time"], now)
        say(f"{len(rows)} messages have {key} as their key, correlation id or header")
    print_rows(rows, MATCHES, as_json=as_json)
    if not as_json:
        say(f"to see one of them: {typed('stub show MESSAGE_ID', found_by)}")


def _print(
    message_id: str,
    shown: dict[str, Any],
    moments: Sequence[TimelineEntry],
    pops: Sequence[HandedOut],
    state: Standing,
    *,
    as_json: bool,
) -> None:
    if as_json:
        if "required_groups" in shown:
            shown["required_groups"] = list(groups_of(shown["required_groups"]))
        shown["message_id"] = message_id
        shown["state"] = state.text
        shown["commands"] = list(state.commands)
        shown["popped"] = as_rows(pops)
        shown["timeline"] = [
            {"time": each.time, "ledger": each.ledger, "what": each.what} for each in moments
        ]
        say_json(shown)
        return
    facts: dict[str, Any] = {"message_id": message_id, "state": state.text, **shown}
    for name, value in facts.items():
        if name == "missed" and shown.get("status") == StubStatus.CONFIRMED.name:
            continue  # it says who sends: nobody has to
        if not isinstance(value, list):
            meaning = f" ({MEANINGS[name]})" if name == "missed" and value else ""
            say(f"{name:16} {text_of(value)}{meaning}")
    say()
    for each in moments:
        time = each.time.isoformat(timespec="milliseconds") if each.time else "now"
        say(f"{time:29}  {each.ledger:18}  {each.what}")
    for command in state.commands:
        say(f"to send it again: {command}")
