"""The first page of the tutorial, step by step: two deaths, two orders, one payment each."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import run_process, until

from reliable_mq.testing.local_servers import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial" / "first_order.md").read_text()
pytestmark = [pytest.mark.processes, pytest.mark.packaging]


class Desk:
    """A folder with the code of the page, and the terminals that work in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "examples" / "tutorial" / "first", folder, dirs_exist_ok=True)
        self.name_server = free_port()
        address = {"RELIABLE_MQ_BROKER": f"127.0.0.1:{self.name_server}"}
        self.environment = {**os.environ, **address, "PYTHONUNBUFFERED": "1"}

    def say(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return run_process(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            timeout=120,
        )

    @contextmanager
    def terminal(self, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command of ours beside the others; it writes to a file with its name."""
        command = [sys.executable, "-m", "reliable_mq.cli.main", *words]
        with (self.folder / name).open("a") as printed:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                text=True,
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                process.wait()

    def printed(self, name: str) -> str:
        """Return what the commands of a terminal have written."""
        return (self.folder / name).read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_two_orders_are_paid_once_though_the_shop_and_the_worker_are_killed(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    died = desk.say("shop.py", "tea")
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "placed order 1\n"), died.stderr
    stubs = desk.say("-m", "reliable_mq.cli.main", "stub", "list", "--app", "shop:mq")
    assert "UNCONFIRMED" in stubs.stdout, stubs.stderr

    broker = ("broker", "--store", "store", "--port", "0")
    with (
        desk.terminal("broker", *broker, "--namesrv-port", str(desk.name_server)),
        desk.terminal("resend", "resend", "shop:mq"),
    ):
        until(lambda: desk.printed("broker").startswith("ready "), lambda: desk.printed("broker"))
        with desk.terminal("worker", "run", "shop:mq") as worker:
            until(lambda: "order 1 is paid\n" in desk.printed("worker"))
            assert desk.say("shop.py", "cake").stdout == "placed order 2\n"
            taken = f"taking the payment of order 2 in process {worker.pid}\n"
            until(lambda: taken in desk.printed("worker"), lambda: desk.printed("worker"))
            worker.kill()
        assert "order 2 is paid" not in desk.printed("worker")
        with desk.terminal("worker", "run", "shop:mq"):
            until(lambda: "order 2 is paid\n" in desk.printed("worker"))
            stubs_say = ("-m", "reliable_mq.cli.main", "stub", "list", "--app", "shop:mq")
            until(
                lambda: "UNCONFIRMED" not in desk.say(*stubs_say).stdout,
                lambda: desk.say(*stubs_say).stdout,
            )

    assert desk.say("shop.py", "payments").stdout == blocks("text")[-1]
    assert "placed order 1\nKilled\n" in blocks("text")


def test_the_page_shows_the_code_that_runs() -> None:
    shown = re.findall(r"^--8<--\n(.+)\n--8<--$", PAGE, re.MULTILINE)

    assert shown == ["examples/tutorial/first/shop.py"]
