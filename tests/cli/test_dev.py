"""`reliable-mq init` and `reliable-mq dev` as a developer uses them: real servers and signals."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.waiting import run_process, until

from reliable_mq.cli.init import FILES, write_project
from reliable_mq.cli.main import BAD_USAGE, DONE, FAILED
from reliable_mq.errors import UsageError

pytestmark = pytest.mark.packaging  # `make frameworks`

COMMAND = (sys.executable, "-m", "reliable_mq.cli.main")
MARK = "RELIABLE_MQ_DEV_TEST"

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    write_project(folder)
    return folder


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "RELIABLE_MQ" not in name}


def test_init_writes_a_project_and_says_what_is_next(tmp_path: Path) -> None:
    done = run_process(
        [*COMMAND, "init", "my shop"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == DONE
    assert "next: cd 'my shop'\n" in done.stdout
    assert "next: reliable-mq dev shop:mq\n" in done.stdout
    assert all((tmp_path / "my shop" / name).exists() for name in FILES)
    assert 'name = "my-shop"' in (tmp_path / "my shop" / "pyproject.toml").read_text()


def test_init_overwrites_nothing(project: Path) -> None:
    (project / "shop.py").write_text("mine")
    (project / "README.md").unlink()

    with pytest.raises(UsageError, match="exists: give a new folder"):
        write_project(project)
    assert (project / "shop.py").read_text() == "mine"
    assert not (project / "README.md").exists()


@pytest.mark.processes
def test_the_tests_of_a_new_project_pass(project: Path) -> None:
    done = run_process(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def processes_of(mark: str) -> list[str]:
    """Return the command lines of the living processes that have the mark in their environment."""
    return list(processes_by_id(mark).values())


def processes_by_id(mark: str) -> dict[int, str]:
    """Return them by their process ids."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if words != [b""]:  # a zombie
                    found[int(folder.name)] = b" ".join(words).decode().strip()
        except OSError:  # it has ended, or is another user's
            continue
    return found


class Dev:
    """A running `reliable-mq dev`, in a terminal of its own."""

    def __init__(self, project: Path, *words: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.log = project.parent / "dev.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "dev", "shop:mq", *words],
                cwd=project,
                env={**plain_environment(), **environment, MARK: self.mark},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def count(self, text: str) -> int:
        return sum(text in line for line in self.lines())

    def wait_for(self, text: str, times: int = 1) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None or self.count(text) >= times, self.log.read_text()
            return self.count(text) >= times

        until(is_there, seconds=90)

    def ends_with(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def started(project: Path) -> Iterator[list[Dev]]:
    """Give a list for what a test starts: it is ended after the test."""
    running: list[Dev] = []
    yield running
    for each in running:
        if each.process.poll() is None:
            each.ends_with(signal.SIGTERM)


def place_order(project: Path) -> None:
    script = ". .reliable-mq/env && exec " + f"{sys.executable} shop.py"
    done = run_process(
        ["sh", "-c", script],
        cwd=project,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "is placed" in done.stdout, done.stderr


@only_linux
@pytest.mark.processes
def test_dev_runs_everything_reloads_on_a_change_and_leaves_no_process(
    project: Path, started: list[Dev]
) -> None:
    # Given all servers and processes of an application
    dev = Dev(project)
    started.append(dev)
    dev.wait_for("started; Ctrl-C ends all processes")
    dev.wait_for("is ready and consumes orders as payments")
    # When an order is placed from another terminal, then a worker handles it
    place_order(project)
    dev.wait_for("order 1 is paid")
    # When the worker is killed, then it is started again
    processes = processes_by_id(dev.mark)
    (worker,) = [each for each, words in processes.items() if words.endswith("run shop:mq")]
    os.kill(worker, signal.SIGKILL)
    dev.wait_for("worker was killed by SIGKILL; starting it again")
    dev.wait_for("is ready and consumes orders as payments", times=2)
    # When a file changes, then the new code handles the next order
    code = (project / "shop.py").read_text()
    (project / "shop.py").write_text(code.replace('"is paid"', '"is paid anew"'))
    dev.wait_for("changed: shop.py; starting again")
    dev.wait_for("is ready and consumes orders as payments", times=3)
    place_order(project)
    dev.wait_for("order 2 is paid anew")
    # When the code is broken, then dev says so in the user's frames, and waits
    (project / "shop.py").write_text("from reliable_mq import ReliableMQ\n1 / 0\n")
    dev.wait_for("the application cannot be used; waiting for a change")
    shown = "\n".join(line for line in dev.lines() if line.startswith("app "))
    assert re.findall(r'File "(.*)"', shown) == [str(project / "shop.py")]
    assert "error: the module 'shop' cannot be imported: ZeroDivisionError" in shown
    (project / "shop.py").write_text(code)
    dev.wait_for("is ready and consumes orders as payments", times=4)
    # Then every line has the name of its process
    assert all(re.match(r"[\w-]+ +\| ", line) for line in dev.lines())
    assert "\x1b" not in dev.log.read_text(), "a file gets no colours"
    # When Ctrl-C is pressed, then nothing is left
    assert len(processes_of(dev.mark)) >= 5
    assert dev.ends_with(signal.SIGINT) == DONE
    assert processes_of(dev.mark) == []
    assert dev.count("Traceback") == 1, "that of the broken code"


@only_linux
@pytest.mark.processes
def test_dev_uses_what_the_environment_names_and_starts_the_rest(
    project: Path, started: list[Dev], postgres_url: str
) -> None:
    addresses = project / ".reliable-mq" / "env"
    addresses.parent.mkdir()
    addresses.touch(0o644)
    dev = Dev(project, "--no-reload", RELIABLE_MQ_DATABASE=postgres_url)
    started.append(dev)
    dev.wait_for("started; Ctrl-C ends all processes")

    assert addresses.stat().st_mode & 0o777 == 0o600, "a URL may have a password"

    assert dev.count("postgres |") == 0
    assert dev.count("valkey   | ready") == dev.count("broker   | ready") == 1
    assert dev.ends_with(signal.SIGTERM) == DONE
    assert processes_of(dev.mark) == []


@only_linux
@pytest.mark.processes
def test_an_application_with_addresses_of_its_own_needs_no_server(
    project: Path, started: list[Dev]
) -> None:
    (project / "shop.py").write_text(
        "from reliable_mq import ReliableMQ\n"
        "mq = ReliableMQ('shop', broker='embedded:store', database='sqlite:///shop.db', redis='')\n"
        "@mq.consumer('orders', group='payments')\n"
        "def pay(order: dict) -> None: ...\n"
    )
    dev = Dev(project, "--also", "sleep 1000", RELIABLE_MQ_REDIS="")
    started.append(dev)
    dev.wait_for("is ready and consumes orders as payments")

    assert not [line for line in dev.lines() if line.startswith(("postgres", "broker", "resend"))]
    assert "sleep 1000" in processes_of(dev.mark)
    assert dev.ends_with(signal.SIGINT) == DONE
    assert processes_of(dev.mark) == []


@only_linux
@pytest.mark.processes
def test_ctrl_c_while_dev_starts_leaves_no_process(project: Path, started: list[Dev]) -> None:
    dev = Dev(project)
    started.append(dev)
    dev.wait_for("postgres | ready")

    assert dev.ends_with(signal.SIGINT) == DONE
    assert processes_of(dev.mark) == []


def test_a_step_that_fails_waits_for_a_change_and_a_wrong_command_ends_dev(
    project: Path, started: list[Dev]
) -> None:
    dev = Dev(project, "--before", "false", "--db", f"sqlite:///{project}/x.db", "--broker", "a:1")
    started.append(dev)
    dev.wait_for("false ended with code 1; waiting for a change")
    assert dev.ends_with(signal.SIGINT) == DONE
    wrong = Dev(project, "--before", "nosuch x", "--db", f"sqlite:///{project}/x.db")
    started.append(wrong)
    until(lambda: wrong.process.poll() is not None, seconds=60)
    assert wrong.process.returncode == FAILED
    assert wrong.lines()[-1] == "error: nosuch x cannot be started: No such file or directory"


def test_dev_needs_an_application(tmp_path: Path) -> None:
    done = run_process(
        [*COMMAND, "dev"],
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == BAD_USAGE
    assert done.stderr.startswith("error: no application is named: give MODULE:OBJECT")
    assert not (tmp_path / ".reliable-mq").exists()


@only_linux
@pytest.mark.processes
def test_when_dev_is_killed_its_processes_and_servers_end(
    project: Path, started: list[Dev]
) -> None:
    dev = Dev(project, "--also", "sh -c 'sleep 1000; true'")
    started.append(dev)
    dev.wait_for("is ready and consumes orders as payments")
    # dev, its guard, broker, worker, scheduler, sh, sleep; servers do not get our variables
    assert len(processes_of(dev.mark)) >= 7
    addresses = (project / ".reliable-mq" / "env").read_text()
    (database,) = re.findall(r"127\.0\.0\.1:(\d+)/postgres", addresses)

    dev.process.kill()

    until(lambda: processes_of(dev.mark) == [], seconds=60)
    until(lambda: refuses(int(database)), seconds=60)  # it hides its environment


def refuses(port: int) -> bool:
    """Return whether nobody listens on a port of this machine."""
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) != 0


@only_linux
@pytest.mark.processes
def test_dev_whose_terminal_is_closed_leaves_no_process(project: Path) -> None:
    ours, theirs = pty.openpty()
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*COMMAND, "dev", "shop:mq", "--db", f"sqlite:///{project}/x.db"],
        cwd=project,
        env={**plain_environment(), MARK: mark},
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while b"started; Ctrl-C ends" not in shown:
        shown += os.read(ours, 4096)

    os.close(ours)  # each line now fails
    process.send_signal(signal.SIGHUP)

    assert process.wait(60) == DONE
    assert processes_of(mark) == []


@only_linux
@pytest.mark.processes
def test_dev_ends_with_the_reader_of_its_output(project: Path) -> None:
    words = ["dev", "shop:mq", "--db", f"sqlite:///{project}/x.db"]
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=project, env={**plain_environment(), MARK: mark}, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == DONE
    finally:
        process.kill()

    assert processes_of(mark) == []
