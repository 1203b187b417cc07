"""`reliable-mq periodic`: the periodic messages of an application, and their ticks."""

from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import typer
from msgspec.structs import asdict

from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.printing import print_names, print_rows
from reliable_mq.cli.shared_options import Application, needed_application
from reliable_mq.errors import UsageError

app = VerbCommands("List periodic messages with their next and last ticks.")

COLUMNS = ("name", "schedule", "topic", "next_tick", "last_tick", "message_id", "note")


@app.command("list")
def list_periodic(application: Application = "", as_json: printing.AsJson = False) -> None:
    """List the periodic messages with their next and last ticks."""
    mq = options.loaded(needed_application("", application))
    try:
        rows = [asdict(each) for each in mq.periodic_messages()]
    finally:
        mq.close()
    print_rows(rows, COLUMNS, as_json=as_json, none="the application has no periodic message")


@app.command("next")
def next_ticks(
    name: Annotated[str, typer.Argument(help="The name of the periodic message.")],
    application: Application = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 10,
    since: Annotated[
        str, typer.Option(help="Ticks after this time: ISO time (UTC), or -1h; default: now.")
    ] = "",
    as_json: printing.AsJson = False,
) -> None:
    """Print the next ticks of a periodic message; needs no database."""
    mq = options.loaded(needed_application("", application))
    schedules = {each.name: each.schedule for each in mq._declared.periodic}
    mq.close()
    if name not in schedules:
        known = ", ".join(schedules) or "none"
        raise UsageError(f"there is no periodic message {name}; there are: {known}")
    schedule = schedules[name]
    begin = printing.moment_of(since, "--since") or datetime.now(UTC)
    ticks = islice(schedule.ticks(begin.timestamp()), limit)
    times = [datetime.fromtimestamp(tick, schedule.zone).isoformat() for tick in ticks]
    print_names(times, as_json=as_json, none="there is no tick within fifty years")
