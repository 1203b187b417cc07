"""`reliable-mq broker promote|demote|truncate`: a stopped store gets another role, and says it."""

import json
from pathlib import Path

import pytest
from tests.replication.test_diverged import copied_pair, follows, name_server, send
from tests.replication.test_pair import MASTER, SLAVE, end_of, log_of, serving
from tests.waiting import run_scene

from reliable_mq.cli.main import BAD_USAGE, FAILED, run
from reliable_mq.message import SendStatus

SECOND = {**SLAVE, "brokerId": "2"}


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["broker", *words])
    return int(str(ended.value.code))


def test_stores_change_their_roles_with_the_same_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever starts them need not change the settings: the last explicit act counts."""
    one, two = tmp_path / "one", tmp_path / "two"

    async def prepare() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, MASTER, b"both")

    async def serve() -> None:
        async with (
            name_server() as address,
            serving(two, address, **SLAVE) as promoted,
            serving(one, address, **MASTER) as demoted,
        ):
            assert await send(address, b"new") == {SendStatus.SEND_OK}
            await follows(demoted, promoted)
            assert not promoted._core.state.config.is_slave
            assert demoted._core.state.config.broker_id == 7

    run_scene(prepare())
    assert typed("promote", "--store", str(two)) == 0
    assert typed("demote", "--store", str(one), "--id", "7") == 0
    printed = capsys.readouterr().out
    assert f"{two}: promoted: brokerRole=ASYNC_MASTER brokerId=0 epoch=1" in printed
    assert f"{one}: demoted: brokerRole=SLAVE brokerId=7 epoch=0" in printed
    run_scene(serve())
    assert log_of(one) == log_of(two)
    lines = map(json.loads, (two / "audit" / "audit.log").read_text().splitlines())
    (row,) = (each for each in lines if each["action"] == "PROMOTE_STORE")
    assert row["detail"]["before"]["epoch"] == 0
    assert row["detail"]["after"]["epoch"] == 1


def test_an_operator_gives_up_the_surplus_of_a_former_master(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[int] = []

    async def prepare() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, MASTER, b"both")
            async with serving(tmp_path / "one", address, **MASTER) as one:
                ends.append(end_of(one))
                await send(address, b"alone")

    async def serve() -> None:
        async with (
            name_server() as address,
            serving(tmp_path / "two", address, **MASTER) as two,
        ):
            await send(address, b"new")
            async with serving(tmp_path / "one", address, **SECOND) as one:
                await follows(one, two)

    run_scene(prepare())
    store = ("--store", str(tmp_path / "one"))
    cut = ("--to", str(ends[0]))
    assert typed("truncate", *store, *cut) == FAILED
    assert "demote it first" in capsys.readouterr().err
    assert typed("demote", *store, "--id", "2") == 0
    assert typed("truncate", *store, "--to", str(ends[0] + 1)) == FAILED
    assert "is not the begin of a record" in capsys.readouterr().err
    assert typed("truncate", *store, *cut) == 0
    assert f"its log ends at {ends[0]}" in capsys.readouterr().out
    run_scene(serve())
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("promote", "--store", "nowhere"), FAILED, "nowhere is not a store directory"),
        (("demote", "--store", "nowhere"), BAD_USAGE, "--id is the brokerId of a demoted store"),
        (("promote", "--store", "x", "--id", "1"), BAD_USAGE, "--id is the brokerId of a demoted"),
        (("truncate", "--store", "x"), BAD_USAGE, "--to is the log offset"),
        (("promote", "--store", "x", "--set", "brokerRole=KING"), BAD_USAGE, "use ASYNC_MASTER"),
        (("promot", "--store", "x"), BAD_USAGE, "or one of promote, demote, truncate"),
        (("promote",), BAD_USAGE, "--store is missing"),
    ],
    ids=str,
)
def test_a_wrong_use_is_one_line(
    words: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_store_in_use_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "one", **MASTER):
            (tmp_path / "one" / "commitlog").mkdir(exist_ok=True)
            assert typed("demote", "--store", str(tmp_path / "one"), "--id", "1") == FAILED

    run_scene(scene())
    assert "close it first" in capsys.readouterr().err


def test_a_slave_without_messages_is_not_taken_for_a_wrong_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two" / "config").mkdir(parents=True)

    assert typed("promote", "--store", str(tmp_path / "two")) == FAILED
    assert "two has no message: nothing was copied to it. To serve it" in capsys.readouterr().err
