"""What a person types about findings that no repair settles: the command line takes it."""

import io
import shlex
from html import unescape
from typing import Any

import pytest
import typer.main
from rich.console import Console
from tests.reconcile.test_report import summary

from reliable_mq.cli.main import build_app
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.repairs.by_hand import LedgerLocations, with_commands
from reliable_mq.reconcile.report.report_html import html_report
from reliable_mq.reconcile.report.report_text import print_report

SHOP = LedgerLocations(
    ("postgresql+psycopg://mq:secret@db/shop",), "rmq_", "10.0.0.5:9876;10.0.0.6:9876"
)
LETTER = {"dead_letter_commit_log_offset": 7}


def finding(verdict: Verdict, **more: Any) -> dict[str, Any]:
    row = {"message_id": "0190", "consumer_group": "payments", "topic": "orders", "says": ""}
    return {**row, "verdict": str(verdict), "repair": None, "evidence": {}, **more}


def told(place: LedgerLocations, *findings: dict[str, Any]) -> dict[str, Any]:
    verdicts = {str(Verdict.DEAD_LETTERED): 2, str(Verdict.SETTLED): 9}
    parts = [
        {"topic": topic, "consumer_group": group, "verdicts": verdicts if group else {}}
        for topic, group in (("orders", "payments"), ("refunds", "payments"), ("mails", ""))
    ]
    return with_commands(summary() | {"findings": list(findings), "by_topic": parts}, place)


def options_of(command: str) -> dict[str, Any]:
    """Read a command as the command line does; return its options."""
    program, noun, verb, *words = shlex.split(command)
    assert program == "reliable-mq"
    nouns = typer.main.get_command(build_app([noun])).commands  # type: ignore[attr-defined]
    context: dict[str, Any] = nouns[noun].commands[verb].make_context(verb, list(words)).params
    return {name: value for name, value in context.items() if value} | {"verb": f"{noun} {verb}"}


@pytest.mark.parametrize(
    ("given", "verb"),
    [
        (finding(Verdict.DEAD_LETTERED, evidence=LETTER), "dlq retry"),
        (finding(Verdict.DEAD_LETTERED), "stub retry"),  # the letter has left the log
        (finding(Verdict.ORPHAN), "stub show"),
        (finding(Verdict.LOST, repair="resend"), None),
    ],
)
def test_a_finding_for_a_person_has_the_command_that_settles_or_shows_it(
    given: dict[str, Any], verb: str | None
) -> None:
    (one,) = told(SHOP, given)["findings"]

    if verb is None:
        assert one["command"] is None
        return
    options = options_of(one["command"])
    assert options["verb"] == verb
    assert options["db"] == "postgresql+psycopg://mq:***@db/shop", "reports have no passwords"
    assert options.get("message_id") == "0190" or list(options["message_ids"]) == ["0190"]
    if verb == "dlq retry":
        assert (options["group"], options["broker"]) == ("payments", SHOP.name_servers)


def test_the_dead_letters_of_a_group_have_one_command_for_all_of_them() -> None:
    (letters,) = told(SHOP)["dead_letters"]

    assert (letters["consumer_group"], letters["count"]) == ("payments", 4)
    options = options_of(letters["command"])
    assert (options["verb"], options["group"]) == ("dlq retry", "payments")
    assert not options.get("message_ids")


@pytest.mark.parametrize("name_servers", ["", "10.0.0.5:9876"])
def test_the_commands_of_a_run_with_an_application_name_it_and_can_be_pasted(
    name_servers: str,
) -> None:
    place = LedgerLocations(SHOP.urls, "mq_", name_servers, "shop.consumers:mq")
    letter = finding(Verdict.DEAD_LETTERED, evidence=LETTER)
    summary = told(place, letter, finding(Verdict.ORPHAN))

    commands = [each["command"] for each in (*summary["findings"], *summary["dead_letters"])]
    broker = f" --broker {name_servers}" if name_servers else ""
    assert commands == [
        f"reliable-mq dlq retry 0190 --group payments --app shop.consumers:mq{broker}",
        "reliable-mq stub show 0190 --app shop.consumers:mq",
        f"reliable-mq dlq retry --group payments --app shop.consumers:mq{broker}",
    ]
    for command in commands:
        assert options_of(command)["application"] == "shop.consumers:mq"


def test_the_commands_of_a_django_project_are_those_of_manage_py() -> None:
    place = LedgerLocations(SHOP.urls, "rmq_", "", "reliable_mq.contrib.django:mq")
    (one,) = told(place, finding(Verdict.ORPHAN))["findings"]

    assert one["command"] == "python manage.py reliable_mq stub show 0190"


def test_a_command_names_what_the_run_does_not_know_as_the_pages_do() -> None:
    """Given two databases and no cluster, or another prefix, or no database at all."""
    letter = finding(Verdict.DEAD_LETTERED, evidence=LETTER)
    (several,) = told(LedgerLocations(("sqlite:///a", "sqlite:///b"), "rmq_", ""), letter)[
        "findings"
    ]
    (other,) = told(LedgerLocations(("sqlite:///a",), "mq_", ""), letter)["findings"]
    export = told(LedgerLocations((), "rmq_", ""), letter)

    assert several["command"] == (
        "reliable-mq dlq retry 0190 --group payments --app MODULE:OBJECT --broker HOST:PORT"
    )
    assert options_of(other["command"])["table_prefix"] == "mq_"
    assert export["findings"] == [letter]
    assert export["dead_letters"] == []


def test_reports_print_the_commands() -> None:
    letter = finding(Verdict.DEAD_LETTERED, evidence=LETTER)
    run = told(SHOP, letter)
    printed = io.StringIO()

    print_report(run, Console(width=60, file=printed))

    text, page = printed.getvalue(), unescape(html_report(run))
    one, every = run["findings"][0]["command"], run["dead_letters"][0]["command"]
    assert f"repair: a person decides: {one}\n" in text
    assert f"4 dead letters of payments, to come again: {every}\n" in text
    for command in (one, every):
        assert command in page
