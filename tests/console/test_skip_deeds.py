"""Attempts are skipped for their group: one, the marked, or all that a filter matches."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.console.conftest import Browse, visitor
from tests.console.doing_steps import WHY, done, ended, look, start
from tests.console.planted_rows import NOW, ODD, insert_rows, log, message_id, stub
from tests.console.test_guard import PASSWORD, log_in
from tests.console.test_planted_text import check

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import run as run_command
from reliable_mq.console import console_app, deeds_skips
from reliable_mq.console.all_deeds import DEEDS
from reliable_mq.console.users import Role, add_user

SKIP = "attempt-skip"
OPEN = {"state": 0, "consume_date": None, "failure": "no such customer"}


@pytest.fixture
def shop(mq: ReliableMQ) -> ReliableMQ:
    """Give an application with ten messages that its group cannot handle, and one that it has."""
    for number in range(11):
        row = stub(1, message_id=message_id(number), broker_name="a", queue_id=0, offset=7)
        insert_rows(mq.database, "message_stub", row)
        insert_rows(mq.database, "consume_log", log(row, **(OPEN if number < 10 else {})))
    return mq


def rows(client: TestClient, query: str = "") -> dict[str, dict[str, Any]]:
    """Return the list of consume logs by message."""
    found = client.get(f"/consume-logs?format=json&limit=100{query}").json()
    return {row["message_id"]: row for row in found}


def marked(*numbers: int, group: str = "billing") -> list[str]:
    return [f"{group} {message_id(number)}" for number in numbers]


def test_marked_attempts_are_skipped_and_their_stubs_confirmed(
    shop: ReliableMQ, browse: Browse
) -> None:
    client = browse()
    page = client.get("/consume-logs?group=billing").text
    assert "Skip for the group…" in page
    preview = look(client, SKIP, ids=marked(0, 1, 10))
    assert "2 of topic orders, group billing" in preview.text
    assert "billing has consumed it already" in preview.text  # the eleventh
    started = start(client, preview)
    assert ended(client, started)["counts"]["done"] == 2
    found = rows(client)
    states = [found[message_id(number)]["state"] for number in range(3)]
    assert states == ["SKIPPED", "SKIPPED", "RECEIVED"]
    assert (found[message_id(0)]["consume_date"], found[message_id(2)]["skip_date"]) == (None, None)
    told = found[message_id(0)]
    assert f", at {told['skip_date'][:19].replace(' ', 'T')}Z" in told["failure"]
    assert [*rows(client, "&state=skipped")] == [message_id(1), message_id(0)]
    assert [*rows(client, "&state=consumed")] == [message_id(10)]
    assert len(rows(client, "&state=received")) == 8
    status = shop.database.stubs.c
    with shop.database.engine.connect() as connection:
        wanted = select(status.message_id).where(status.status == 1).order_by(status.message_id)
        assert [*connection.execute(wanted).scalars()] == [message_id(0), message_id(1)]
    number = started.headers["location"].rpartition("/")[2]
    audit = client.get(f"/audit?work={number}&format=json").json()
    assert {(row["action"], row["why"]) for row in audit} == {("stub skip", WHY)}


def test_all_that_a_filter_matches_are_skipped_and_no_later_attempt(
    shop: ReliableMQ, browse: Browse
) -> None:
    client = browse()
    preview = look(client, SKIP, query={"group": "billing", "failed": "yes"})
    assert "10 of topic orders, group billing" in preview.text
    late = stub(1, message_id=message_id(99))
    times = {"create_date": NOW + timedelta(days=1)}
    insert_rows(shop.database, "consume_log", log(late, **OPEN, **times))
    assert ended(client, start(client, preview))["counts"]["done"] == 10
    states = [row["state"] for row in rows(client).values()]
    assert sorted(states) == ["CONSUMED", "RECEIVED", *["SKIPPED"] * 10]


def test_of_a_filter_dead_letters_are_left_and_not_counted(
    shop: ReliableMQ, browse: Browse
) -> None:
    letter = log(stub(1, message_id=message_id(98)), **OPEN | {"owner": None, "note": "never"})
    insert_rows(shop.database, "consume_log", letter)
    client = browse(shop)
    preview = look(client, SKIP, query={"group": "billing"})
    assert "10 of topic orders, group billing" in preview.text
    assert "dead letter" in preview.text
    started = start(client, preview)
    counts = ended(client, started)["counts"]
    assert {name: count for name, count in counts.items() if count} == {"done": 10}
    number = started.headers["location"].rpartition("/")[2]
    assert len(client.get(f"/audit?work={number}&action=skip&format=json").json()) == 10


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({}, "name a group in the filter"),
        ({"group": "billing", "state": "consumed"}, "what is consumed cannot be skipped"),
        ({"group": "billing", "state": "skipped"}, "what is skipped cannot be skipped"),
        ({"group": "billing", "topic": "none"}, "nothing would be skipped"),
        ({"group": "stock"}, "there is no group stock; this application knows billing"),
    ],
)
def test_a_filter_that_means_too_much_or_nothing_is_told(
    shop: ReliableMQ, browse: Browse, query: dict[str, str], says: str
) -> None:
    answer = look(browse(), SKIP, query=query)
    assert answer.status_code == 409
    assert says in answer.text
    assert shop.database is not None


def test_more_than_a_preview_counts_is_told(
    shop: ReliableMQ, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deeds_skips, "PREVIEW_MAX", 9)
    answer = look(browse(), SKIP, query={"group": "billing"})
    assert answer.status_code == 409
    assert "more than 9 messages match" in answer.text
    assert shop.database is not None


def test_the_second_of_two_people_sees_what_the_first_did(shop: ReliableMQ, browse: Browse) -> None:
    one, two = browse(), browse(shop)
    first, second = look(one, SKIP, ids=marked(0)), look(two, SKIP, ids=marked(0))
    assert ended(one, start(one, first))["counts"]["done"] == 1
    started = start(two, second)
    assert ended(two, started)["counts"]["changed since the preview"] == 1
    assert "already, at" in two.get(started.headers["location"]).text
    assert done(one, SKIP, ids=marked(1)) == {"done": 1}


def test_a_running_attempt_is_named_in_the_preview(mq: ReliableMQ, browse: Browse) -> None:
    row = stub(1)
    running = {"owner": "worker-1", "lease_until": NOW + timedelta(days=1)}
    insert_rows(mq.database, "consume_log", log(row, **OPEN, **running))
    ids = [f"billing {row['message_id']}"]
    preview = look(browse(), SKIP, ids=ids)
    assert "Handled right now: 1." in preview.text
    assert "A handler that runs at that moment is refused at its commit" in preview.text


def test_what_cannot_be_taken_back_is_for_admins(shop: ReliableMQ, tmp_path: Path) -> None:
    assert [each.name for each in DEEDS if each.is_final and each.role is not Role.ADMIN] == []
    users = tmp_path / "users.json"
    add_user(users, "otto", Role.OPERATOR, PASSWORD)
    with visitor(console_app(shop, users=users)) as operator:
        assert log_in(operator, "otto") == 303
        assert look(operator, SKIP, ids=marked(0)).status_code == 403
        assert "Skip for the group" not in operator.get("/consume-logs?group=billing").text
        assert "Skip it for this" not in operator.get(f"/message?id={message_id(0)}").text


def test_the_page_of_a_message_leads_to_the_skip(shop: ReliableMQ, browse: Browse) -> None:
    client = browse()
    page = client.get(f"/message?id={message_id(0)}").text
    place = f"/consume-logs?message={message_id(0)}&amp;group=billing&amp;database=main"
    assert f'<a href="{place}">Skip it for this group</a>' in page
    assert client.get(place.replace("&amp;", "&")).text.count('name="id"') == 1
    assert done(client, SKIP, ids=marked(0)) == {"done": 1}
    page = client.get(f"/message?id={message_id(0)}").text
    assert 'Effect <span class="hidden">: skipped by a person</span>' in page
    assert '<p class="time"><span class="none">skipped by a person</span></p>' in page
    assert "Skip it for this group" not in page
    assert "skipped by " in page
    assert "Skip it for this group" not in client.get(f"/message?id={message_id(10)}").text
    assert shop.database is not None


def test_odd_reasons_and_names_are_text(shop: ReliableMQ, browse: Browse) -> None:
    client = browse()
    preview = look(client, SKIP, ids=marked(0))
    ended(client, start(client, preview, why=ODD))
    for path in (f"/message?id={message_id(0)}", "/consume-logs", "/audit"):
        check(client.get(path).text)
    odd = look(client, SKIP, ids=[f"{ODD} {ODD}", "nobody", " ", f"billing {ODD}"])
    assert odd.status_code == 409
    check(odd.text)
    assert shop.database is not None


def command(*words: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        run_command(words)
    out, err = capfd.readouterr()
    return int(end.value.code or 0), out, err


def test_the_command_does_the_same(shop: ReliableMQ, capfd: pytest.CaptureFixture[str]) -> None:
    url = shop.database.url.render_as_string(hide_password=False)
    place = ("--group", "billing", "--db", url)
    note = ("--note", "refunded")
    ids = [message_id(0), message_id(10), "none"]
    code, out, err = command("stub", "skip", *ids, *place, "--dry-run", capfd=capfd)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"{message_id(0)} would be skipped at its next attempt"
    code, out, _ = command("stub", "skip", *ids, *place, *note, "--by", "ada", capfd=capfd)
    assert code == 1
    said = out.splitlines()
    assert said[0] == f"{message_id(0)} is skipped"
    assert said[1].startswith(f"{message_id(10)} is not skipped: billing has consumed it already")
    assert said[2].startswith("none is not skipped: it is no message id; if it is a key, this ")
    code, _, err = command(
        "stub", "skip", ids[0], "--group", "bill", *place[2:], *note, capfd=capfd
    )
    assert code == 2
    assert "group bill has no row in the consume logs of main" in err
    code, out, _ = command("stub", "skip", message_id(1), *place, *note, "--json", capfd=capfd)
    assert (code, json.loads(out)) == (0, {message_id(1): True})


@pytest.mark.parametrize("note", [(), ("--note", ""), ("--note", " \t")])
def test_the_command_needs_a_reason(
    shop: ReliableMQ, capfd: pytest.CaptureFixture[str], note: tuple[str, ...]
) -> None:
    url = shop.database.url.render_as_string(hide_password=False)
    words = ("stub", "skip", message_id(0), "--group", "billing", "--db", url, *note)
    code, out, err = command(*words, "--yes", capfd=capfd)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "give the reason: --note 'why'" in err
    code, out, _ = command(*words, "--dry-run", capfd=capfd)
    assert (code, out) == (0, f"{message_id(0)} would be skipped at its next attempt\n")


def test_previews_say_when_a_skip_acts(
    shop: ReliableMQ, browse: Browse, capfd: pytest.CaptureFixture[str]
) -> None:
    client = browse()
    unknown = look(client, SKIP, ids=marked(0)).text
    assert "That is at the next attempt of each, whose time the rows do not say." in unknown
    times = {20: NOW + timedelta(days=900), 21: NOW + timedelta(days=901, seconds=1)}
    for number, time in times.items():
        row = log(stub(1, message_id=message_id(number)), **OPEN, lease_until=time)
        insert_rows(shop.database, "consume_log", row)
    first, last = (f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in times.values())
    one = look(client, SKIP, ids=marked(20)).text
    assert f"That is at the next attempt of each, not before {first}." in one
    two = look(client, SKIP, ids=marked(20, 21)).text
    assert f"not before {first} to {last}." in two
    three = look(client, SKIP, query={"group": "billing"}).text
    assert f"not before {first} to {last}, for 2 of them." in three
    url = shop.database.url.render_as_string(hide_password=False)
    words = ("stub", "skip", message_id(20), "--group", "billing", "--db", url, "--dry-run")
    _, out, _ = command(*words, capfd=capfd)
    says = f"would be skipped at its next attempt, not before {first}"
    assert out == f"{message_id(20)} {says}\n"
    _, out, _ = command(*words, "--json", capfd=capfd)
    assert json.loads(out)[message_id(20)]["next_attempt"].startswith(first[:10])


def test_the_command_says_how_to_find_a_message_id(
    shop: ReliableMQ, capfd: pytest.CaptureFixture[str]
) -> None:
    url = shop.database.url.render_as_string(hide_password=False)
    ids = (message_id(0).lower(), "order 7", message_id(77))
    words = ("stub", "skip", *ids, "--group", "billing", "--db", url)
    for more in (("--dry-run",), ("--note", "refunded")):
        _, out, _ = command(*words, *more, capfd=capfd)
        lower, key, unknown = out.splitlines()
        assert f"skipped: message ids are in upper case: give {message_id(0)}; " in lower
        assert "reliable-mq stub show KEY --db" in lower
        assert lower.endswith("finds the id of a key")
        assert "it is no message id; if it is a key, this finds the id: " in key
        assert "reliable-mq stub show 'order 7' --db" in key
        assert unknown.endswith("billing has not received it, or has no row of it")
