"""Periodic messages in a whole application, and the commands about them."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from reliable_mq import ReceivedMessage, ReliableMQ, Tick
from reliable_mq.cli.main import run
from reliable_mq.doctor.finding import Level

APPLICATION = """
from reliable_mq import ReliableMQ, Tick

mq = ReliableMQ("shop", database={url!r})

@mq.periodic("30 2 * * *", topic="reports", time_zone="Europe/Berlin")
def nightly(tick: Tick) -> dict[str, str]:
    return {{"day": tick.time.date().isoformat()}}

@mq.periodic("@hourly", topic="beats")
def beat() -> None:
    raise ValueError("no pulse")
"""

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """Give a call of `reliable-mq periodic` in a folder with an application: code and output."""
    url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "periodic_shop.py").write_text(APPLICATION.format(url=url))
    monkeypatch.chdir(tmp_path)
    mq = ReliableMQ("shop", database=url)
    mq.create_tables()
    mq.close()

    def called(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            run(("periodic", *words, "--app", "periodic_shop:mq"))
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    yield called
    sys.modules.pop("periodic_shop", None)


def test_the_list_shows_each_periodic_message_with_its_ticks(call: Call) -> None:
    code, said = call("list", "--json")

    assert code == 0
    nightly, beat = json.loads(said)
    assert nightly["name"] == "nightly"
    assert nightly["schedule"] == "30 2 * * * (Europe/Berlin)"
    assert "T02:30:00+0" in nightly["next_tick"]
    assert (beat["topic"], beat["last_tick"], beat["fired"]) == ("beats", None, 0)
    assert "nightly" in call("list")[1]


def test_the_next_ticks_are_shown_over_a_change_to_summer_time(call: Call) -> None:
    code, said = call("next", "nightly", "--limit", "3", "--since", "2026-03-28T12:00")

    assert code == 0
    assert said.split() == [
        *("2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00", "2026-03-31T02:30:00+02:00")
    ]


def test_an_unknown_name_is_refused_with_the_known_ones(call: Call) -> None:
    assert call("next", "weekly") == (
        2,
        "error: there is no periodic message weekly; there are: nightly, beat\n",
    )


def test_an_application_with_an_embedded_broker_fires_its_ticks(
    tmp_path: Path, database_url: str
) -> None:
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'store'}",
        database=database_url,
        resend_interval_seconds=0.05,
    )
    mq.create_tables()
    got: list[tuple[str, str]] = []

    @mq.periodic("* * * * * *", topic="beats", key="pulse")
    def beat(tick: Tick) -> dict[str, str]:
        return {"tick": tick.time.isoformat()}

    @mq.consumer("beats", group="doctors")
    def take(payload: dict[str, str], message: ReceivedMessage) -> None:
        got.append((payload["tick"], message.keys[0]))

    with mq:
        until(lambda: len(got) >= 2)
        (state,) = mq.periodic_messages()
        findings = {each.check: each for each in mq.examine()}

    assert len(set(got)) == len(got)
    assert {key for _, key in got} == {"pulse"}
    assert state.fired >= 2
    assert findings["periodic"].level is Level.OK


def test_a_single_run_fires_what_is_due_and_the_doctor_tells_what_fails(tmp_path: Path) -> None:
    mq = ReliableMQ(
        "shop", broker=f"embedded:{tmp_path / 'store'}", database=f"sqlite:///{tmp_path / 'a.db'}"
    )
    mq.create_tables()

    @mq.periodic("* * * * * *", topic="beats")
    def beat() -> None:
        raise ValueError("no pulse")

    assert mq.resend_once()["main"]["ticks"] == 0  # the declaration begins now
    until(lambda: mq.resend_once()["main"]["ticks_failed"] == 1)
    (finding,) = (each for each in mq.examine() if each.check == "periodic")
    mq.close()

    assert finding.level is Level.ERROR
    assert "periodic message beat failed 1 time(s) in a row: ValueError: no pulse" in finding.text
