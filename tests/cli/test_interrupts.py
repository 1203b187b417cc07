"""Ctrl-C while a command starts ends it with 130, and without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from reliable_mq.cli.entry import INTERRUPTED

INTERRUPTS = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupts())
signal.signal(signal.SIGINT, signal.{before})
from reliable_mq.cli.entry import run
sys.argv = ["reliable-mq", *{words!r}]
run()
"""
SHOP = """
import os, signal
from reliable_mq import ReliableMQ
os.kill(os.getpid(), signal.SIGINT)
mq = ReliableMQ("shop", database="sqlite:///shop.db")
"""
EVERY = ("run", "resend", "migrate", "create-tables", "stub list", "doctor", "periodic list")


def started(
    tmp_path: Path, words: str, at: str, before: str = "default_int_handler"
) -> subprocess.CompletedProcess[str]:
    """Start a command that is interrupted when it imports a module."""
    (tmp_path / "shop.py").write_text(SHOP)
    code = INTERRUPTS.format(name=at, words=words.split(), before=before)
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("module", ["typer", "reliable_mq.cli.migrate", "sqlalchemy", "alembic"])
def test_ctrl_c_during_an_import_says_nothing(tmp_path: Path, module: str) -> None:
    ended = started(tmp_path, "migrate --app shop:mq", module)

    assert (ended.returncode, ended.stdout, ended.stderr) == (INTERRUPTED, "", "")


@pytest.mark.parametrize("verb", EVERY)
def test_ctrl_c_while_an_application_is_imported_says_one_line_at_most(
    tmp_path: Path, verb: str
) -> None:
    ended = started(tmp_path, f"{verb} --app shop:mq", "shop")

    assert ended.returncode == INTERRUPTED, ended.stderr
    assert len(ended.stderr.strip().splitlines()) <= 1, ended.stderr


def test_a_command_in_the_background_of_a_shell_ignores_ctrl_c(tmp_path: Path) -> None:
    ended = started(tmp_path, "--version", "typer", before="SIG_IGN")

    assert ended.returncode == 0
    assert ended.stdout.startswith("reliable-mq ")
