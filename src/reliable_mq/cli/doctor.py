"""`reliable-mq doctor`: finds what would break a promise, and says what to do."""

from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.credentials import FORMS, credential
from reliable_mq.cli.saying import coloured, say, say_json, say_raw
from reliable_mq.cli.shared_options import pasteable, takes_options_of
from reliable_mq.cli.stub_show import states_of
from reliable_mq.doctor.finding import Finding, Level, worst
from reliable_mq.plain_text import printable

_MARKS = {Level.OK: "ok  ", Level.WARNING: "warn", Level.ERROR: "FAIL", Level.SKIPPED: "-   "}

_COLOURS = {
    Level.OK: "green",
    Level.WARNING: "yellow",
    Level.ERROR: "red",
    Level.SKIPPED: "bright_black",
}


@takes_options_of(options.named_place_of, "place")
def command(
    *,
    place: options.Place,
    broker: options.BrokerOfDb = "",
    redis: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=credential,
            help=f"Redis URL, with --db; default: RELIABLE_MQ_REDIS. {FORMS}",
            show_default=False,
        ),
    ] = "",
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")
    ] = False,
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Only say where the messages with this message key, or message id, are.",
            show_default=False,
        ),
    ] = "",
    as_json: printing.AsJson = False,
) -> None:
    """Check tables, indexes, isolation, clocks, leases, windows, stubs left alone, broker, Redis.

    Exits with 1 if a promise is in danger. Changes nothing.
    """
    findings = _of_key(place, key, broker) if key else _examined(place, broker, redis)
    if as_json:
        say_json(msgspec.to_builtins(findings))
    else:
        for finding in findings:
            _print(finding)
    level = worst(findings)
    if level is Level.ERROR or (strict and level is Level.WARNING):
        raise typer.Exit(1)


def _examined(place: options.Place, broker: str, redis: str) -> list[Finding]:
    mq = options.application_of(place, "doctor", broker=broker, redis=redis)
    try:
        return [
            replace(each, text=pasteable(each.text), remedy=pasteable(each.remedy))
            for each in mq.examine()
        ]
    finally:
        mq.close()


def _of_key(place: options.Place, key: str, broker: str) -> list[Finding]:
    """Return where the messages with a key are, as findings."""
    with options.opened(place, broker=broker) as found:
        return [
            Finding(
                "message", state.level, f"{message_id}: {state.text}", "; ".join(state.commands)
            )
            for message_id, _, state in states_of(found, key, place.found_by)
        ]


def _print(finding: Finding) -> None:
    where = f"{finding.database}: " if finding.database else ""
    mark = coloured(_MARKS[finding.level], _COLOURS[finding.level])
    say_raw(f"{mark} {printable(f'{finding.check:<10} {where}{finding.text}')}")
    if finding.remedy:
        say(f"{'':<16}{finding.remedy}")
