"""`reliable-mq periodic`: the periodic messages of an application, and their ticks."""

from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import typer
from msgspec.structs import asdict

from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.printing import print_rows
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import Application, needed_application
from reliable_mq.errors import UsageError

app = typer.Typer(no_args_is_help=True)

COLUMNS = ("name", "schedule", "topic", "next_tick", "last_tick", "message_id", "note")


@app.command("list")
def list_periodic(application: Application = "", as_json: printing.AsJson = False) -> None:
    """List the periodic messages with their next and last ticks."""
    mq = options.loaded(needed_application("", application))
    try:
        rows = [asdict(each) for each in mq.periodic_messages()]
    finally:
        mq.close()
    if as_json:
        say_json([{name: _json_of(value) for name, value in row.items()} for row in rows])
    elif rows:
        print_rows(rows, COLUMNS)
    else:
        say("the application has no periodic message", err=True)


@app.command("next")
def next_ticks(
    name: Annotated[str, typer.Argument(help="The name of the periodic message.")],
    application: Application = "",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many ticks.")] = 10,
    after: Annotated[
        str, typer.Option(help="Ticks after this time, such as 2026-10-24 (UTC); default: now.")
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
    begin = printing.moment_of(after, "--after") or datetime.now(UTC)
    ticks = islice(schedule.ticks(begin.timestamp()), count)
    times = [datetime.fromtimestamp(tick, schedule.zone).isoformat() for tick in ticks]
    if as_json:
        say_json(times)
    else:
        for time in times:
            say(time)


def _json_of(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
