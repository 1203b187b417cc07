"""`reliable-mq notifiers`: list notifiers and their waiting escalations, and test them."""

from typing import Annotated

import typer
from msgspec.structs import asdict

from reliable_mq.app.application import ReliableMQ
from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.printing import print_rows
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import takes_options_of

COLUMNS = ("database", "name", "waiting", "told_date", "failures", "next_time", "note")


@takes_options_of(options.named_place_of, "place")
def command(
    *,
    place: options.Place,
    test: Annotated[
        bool, typer.Option("--test", help="Send a test report with each notifier now.")
    ] = False,
    as_json: printing.AsJson = False,
) -> None:
    """List the notifiers and what waits for them; or test whether they can notify people."""
    # With --db, the notifiers are those of RELIABLE_MQ_ESCALATION_…, as for `resend --db`.
    mq = options.application_of(place, "resend")
    try:
        mq.databases.check_tables()
        (_test if test else _list)(mq, as_json=as_json)
    finally:
        mq.close()


def _list(mq: ReliableMQ, *, as_json: bool) -> None:
    rows = [
        {"database": name} | asdict(state)
        for name in mq.databases
        for state in mq.alerts(database=name).notifier_states().values()
    ]
    print_rows(rows, COLUMNS, as_json=as_json, none="there are no notifiers")


def _test(mq: ReliableMQ, *, as_json: bool) -> None:
    first, database = next(iter(mq.databases.items()))
    outcome = mq.alerts(database=first).test(mq.name, database.clock.now())
    if as_json:
        say_json(outcome)
    else:
        for name, trouble in outcome.items():
            say(f"{name}: {trouble or 'told'}")
    if any(outcome.values()):
        raise typer.Exit(1)
