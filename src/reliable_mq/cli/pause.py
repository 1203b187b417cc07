"""`reliable-mq pause`: stops schedulers from sending a topic's stubs for a while."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer
from sqlalchemy import select

from reliable_mq.app.application import ReliableMQ
from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.saying import say, say_json, say_trouble
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.errors import UsageError
from reliable_mq.misspelt import did_you_mean
from reliable_mq.reconcile.moments import parse_duration, parse_moment
from reliable_mq.resend.topic_gate import TopicRow, gate_of

COLUMNS = ("database", "topic", "gate", "until", "failures", "by", "note")


@takes_options_of(options.place_of, "place")
def command(
    *,
    place: options.Place,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="[TOPIC]", help="The topic; without it, list paused and closed topics."
        ),
    ] = "",
    until: Annotated[
        str, typer.Option(help="End the pause at this time, such as 2026-11-20T08:00 (UTC).")
    ] = "",
    lasting: Annotated[
        str, typer.Option("--for", help="End the pause after this time, such as 90s, 10m or 2h.")
    ] = "",
    end: Annotated[
        bool, typer.Option("--end", help="End the pause now; open the topic if it is closed.")
    ] = False,
    note: Annotated[str, typer.Option(help="The reason; kept with the topic.")] = "",
    as_json: printing.AsJson = False,
) -> None:
    """Pause the resending of a topic, end its pause, or list paused and closed topics.

    A topic closes automatically when sends to it fail. It opens automatically, or by --end.
    """
    place.needed()
    if not topic and (until or lasting or end or note):
        raise UsageError("no topic is named: give its name")
    if bool(until) + bool(lasting) + end > 1:
        raise UsageError("give one of --until, --for and --end")
    mq = options.application_of(place, "pause")
    try:
        mq.databases.check_tables()
        if not topic:
            _show(
                mq.resending.topics(),
                next(iter(mq.databases.values())).clock.now(),
                as_json=as_json,
            )
        elif end:
            _print_change(topic, "resumed", mq.resending.resume(topic, note=note), as_json=as_json)
        else:
            mq.resending.pause(topic, until=_moment(until, lasting), note=note)
            _print_change(topic, "paused", True, as_json=as_json)
            if topic not in mq.topics and not _has_stubs(mq, topic):
                say_trouble(
                    "warning",
                    f"no stub and no consumer has topic {topic}{did_you_mean(topic, mq.topics)}",
                )
    finally:
        mq.close()


def _has_stubs(mq: ReliableMQ, topic: str) -> bool:
    """Return whether a database has a stub of a topic."""
    for database in mq.databases.values():
        stubs = database.stubs
        wanted = select(stubs.c.message_id).where(stubs.c.topic == topic).limit(1)
        with database.engine.connect() as connection:
            if connection.execute(wanted).first() is not None:
                return True
    return False


def _moment(until: str, lasting: str) -> datetime | None:
    now = datetime.now(UTC)
    if lasting:
        length: timedelta = parse_duration(lasting, "--for")
        if not length:
            raise UsageError(f"--for {lasting}: give a time above 0, such as 10m; or --end")
        return now + length
    return parse_moment(until, "--until", now) if until else None


def _print_change(topic: str, word: str, changed: bool, *, as_json: bool) -> None:
    if as_json:
        say_json({"topic": topic, word: changed})
    else:
        say(f"{topic} {word}" if changed else f"{topic} was neither paused nor closed")
    if not changed:
        raise typer.Exit(1)


def _show(databases: dict[str, dict[str, TopicRow]], now: float, *, as_json: bool) -> None:
    known = [(name, row) for name, rows in databases.items() for row in rows.values()]
    if as_json:
        shown: list[dict[str, Any]] = [
            {
                "database": name,
                "gate": gate_of(row, now).value,
                **msgspec.to_builtins(row),
                "paused_until": _time(row.paused_until),
                "probe_time": _time(row.probe_time),
            }
            for name, row in known
        ]
        say_json(shown)
        return
    rows = [
        {
            "database": name,
            "topic": row.topic,
            "gate": gate_of(row, now).value,
            "until": _time(row.paused_until if row.is_paused else row.probe_time),
            "failures": row.failures,
            "by": row.actor,
            "note": row.note,
        }
        for name, row in known
    ]
    printing.print_rows(rows, COLUMNS, none="no topic is paused or closed")


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
