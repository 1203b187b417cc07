"""`reliable-mq console`: it says when it serves, whom it serves, and ends when it is told to."""

import asyncio
import io
import os
import signal
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.cli import console
from reliable_mq.cli.main import BAD_USAGE, DONE, run
from reliable_mq.console.users import Role, read_users


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command, which refuses these words; return its line."""
    with pytest.raises(SystemExit) as ended:
        run(["console", *words])
    assert ended.value.code == BAD_USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "shop.example"])
def test_without_users_it_serves_this_machine_only(
    capsys: pytest.CaptureFixture[str], host: str
) -> None:
    line = refusal(capsys, "--db", "sqlite:///none.db", "--host", host)
    assert f"--host {host}: without --users, the console serves 127.0.0.1 only" in line
    assert line.count("\n") == 1


def test_a_missing_file_of_users_is_told_with_the_way_to_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, "--db", "sqlite:///none.db", "--users", str(tmp_path / "none.json"))
    assert "there is no such file; make it with --users" in line
    assert "--add-user NAME" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trace-url", "javascript:{trace_id}"), "begins with http:// or https://"),
        (("--runs", "none"), "--runs none: there is no such folder"),
        (("--store", "broker-a=none"), "--store none: no store is there"),
    ],
)
def test_an_address_or_a_folder_that_is_wrong_is_told(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    line = refusal(capsys, "--db", "sqlite:///none.db", *words)
    assert said in line
    assert line.count("\n") == 1


def test_it_needs_an_application_or_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give either --app MODULE:OBJECT or --db URL" in refusal(capsys)


def test_a_user_is_written_into_a_file_that_only_its_owner_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "users.json"
    words = ["--db", "sqlite:///none.db", "--users", str(path), "--add-user", "vera"]
    for role in ("viewer", "operator"):
        monkeypatch.setattr(sys, "stdin", io.StringIO("correct horse\n"))
        with pytest.raises(SystemExit) as ended:
            run(["console", *words, "--role", role])
        assert ended.value.code == DONE
    users = read_users(path.read_text())
    assert users["vera"].role is Role.OPERATOR
    assert users["vera"].check("correct horse")
    assert not users["vera"].check("correct house")
    assert "correct horse" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO("short\n"))
    assert "at least 8 characters" in refusal(capsys, *words)
    assert "--role takes viewer, operator, admin" in refusal(capsys, *words, "--role", "god")


@pytest.mark.processes
def test_it_serves_from_its_ready_line_to_its_signal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    mq = ReliableMQ("shop", database=url, broker="embedded:store")
    mq.create_tables()
    mq.close()
    command = [sys.executable, "-m", "reliable_mq.cli.main", "console", "--db", url, "--port", "0"]
    environment = {**os.environ, "RELIABLE_MQ_BROKER": "127.0.0.1:1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready console=http://127.0.0.1:")
        with urllib.request.urlopen(f"{line.split('=')[1].strip()}/healthz") as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_memory_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_TRIM_SECONDS", 0.0)
    given: list[str] = []

    def trim() -> None:
        given.append("back")
        if len(given) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        asyncio.run(asyncio.wait_for(console._trim_again(trim), 10))
    assert given == ["back"] * 3
