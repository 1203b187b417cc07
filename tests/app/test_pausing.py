"""A person pauses the resending of a topic, in code and on the command line."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from reliable_mq import ReliableMQ
from reliable_mq.app.thread_upkeep import actor
from reliable_mq.cli.main import run
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.resend.sql_resending import topics_of
from reliable_mq.resend.topic_gate import PROBE_STUBS

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    mq = ReliableMQ("shop", database=url)
    mq.create_tables()
    mq.close()
    return url


@pytest.fixture
def call(url: str, capfd: pytest.CaptureFixture[str]) -> Call:
    """Give a call of `reliable-mq pause`: exit code, output and errors."""

    def called(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            run(("pause", *words, "--db", url))
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return called


def test_a_topic_is_paused_listed_and_resumed(url: str, call: Call) -> None:
    assert call() == (0, "no topic is paused or closed\n")
    unknown = "warning: no stub and no consumer has topic orders\n"
    assert call("orders", "--for", "2h", "--note", "repair") == (0, f"orders paused\n{unknown}")

    (shown,) = json.loads(call("--json")[1])
    assert (shown["topic"], shown["gate"], shown["note"]) == ("orders", "paused", "repair")
    assert shown["actor"] == actor()
    left = datetime.fromisoformat(shown["paused_until"]) - datetime.now(UTC)
    assert 7100 < left.total_seconds() <= 7200
    assert "orders" in call()[1]
    assert call("orders", "--end", "--json") == (0, '{"topic": "orders", "resumed": true}\n')
    assert call("orders", "--end") == (1, "orders was neither paused nor closed\n")


def test_a_closed_topic_is_named_and_opened_by_a_person(
    url: str, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    # Given a topic to which nothing arrives
    mq = ReliableMQ("shop", database=url)
    now = mq.database.clock.measured_now()
    topics_of(mq.database).add_failures("orders", PROBE_STUBS, now, "ConnectionLost: gone")
    mq.close()

    # When stubs or topics are listed, Then it is named
    (shown,) = json.loads(call("--json")[1])
    assert (shown["topic"], shown["gate"]) in {("orders", "closed"), ("orders", "probe")}
    with pytest.raises(SystemExit):
        run(("stub", "list", "--db", url))
    said = capfd.readouterr().out
    assert "topic orders is closed: 8 sends in a row failed" in said
    assert f"reliable-mq pause orders --end --db {url}" in said

    # When a person opens it, Then it is open
    assert call("orders", "--end") == (0, "orders resumed\n")
    assert call() == (0, "no topic is paused or closed\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--for", "2h"), "no topic is named"),
        (("orders", "--for", "2h", "--end"), "give one of --until, --for and --end"),
        (("orders", "--for", "0"), "--for 0: give a time above 0"),
        (("orders", "--for", "soon"), "--for takes a duration"),
        (("orders", "--until", "2020-01-01"), "a future time is needed"),
        (("not legal!",), "topic"),
        (("--app", "shop:mq"), "give either --app MODULE:OBJECT or --db URL"),
    ],
)
def test_a_mistake_is_told_in_one_line(call: Call, words: tuple[str, ...], says: str) -> None:
    code, said = call(*words)

    assert (code, says in said, "Traceback" in said) == (2, True, False)


def test_a_note_is_shown_as_it_was_written(call: Call) -> None:
    note = "[/var] is [bold]full[/bold] :x:"
    assert call("orders", "--note", note)[0] == 0

    # Tables are folded where they are too wide, so only the words of a line can be looked for.
    shown = call()[1]
    assert [word for word in note.split() if word not in shown] == []


def test_the_same_in_code(url: str, tmp_path: Path) -> None:
    second = f"sqlite:///{tmp_path}/second.db"
    mq = ReliableMQ("shop", database=url, databases={"billing": second})
    mq.create_tables()
    later = datetime.now(UTC) + timedelta(hours=1)

    mq.resending.pause("orders", until=later, note="repair")

    known = mq.resending.topics()
    assert {name: list(rows) for name, rows in known.items()} == {
        "main": ["orders"],
        "billing": ["orders"],
    }
    assert mq.resending.resume("orders")
    assert not mq.resending.resume("orders")
    with mq.database.engine.begin() as connection:
        rows = connection.execute(select(mq.database.audit).order_by(mq.database.audit.c.seq)).all()
    assert [(row.action, row.actor) for row in rows] == [
        ("resend pause", actor()),
        ("resend resume", actor()),
    ]
    assert json.loads(rows[0].detail)["note"] == "repair"
    for wrong in (later - timedelta(hours=2), later.replace(tzinfo=None)):
        with pytest.raises(UsageError, match="a future time is needed"):
            mq.resending.pause("orders", until=wrong)
    with pytest.raises(ConfigurationError):
        mq.resending.pause("")
    mq.close()
