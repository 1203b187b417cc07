"""A program that is a fork behaves as one that Python was started for."""

import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.forked_programs import Programs
from tests.waiting import until

SAYS_ALL = """
import atexit, json, os, sys, threading
atexit.register(print, "over")
told = {"argv": sys.argv, "cwd": os.getcwd(), "first": sys.path[:2], "env": dict(os.environ)}
told["mine"] = [each for each in sys.modules if each.split(".")[0] == "tests"]
threading.Thread(target=print, args=(json.dumps(told),)).start()
sys.exit(3)
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs("json", "signal") as made:
        yield made


@pytest.mark.parametrize("form", ["file", "module", "code"])
def test_it_has_what_it_was_given_and_ends_in_order(
    programs: Programs, tmp_path: Path, form: str
) -> None:
    (tmp_path / "says.py").write_text(SAYS_ALL)
    words = {"file": ["says.py"], "module": ["-m", "says"], "code": ["-c", SAYS_ALL]}[form]
    env = {"PYTHONPATH": "/elsewhere", "A": "1"}
    done = programs.run([*words, "x"], cwd=tmp_path, env=env)
    said, last = done.stdout.splitlines()
    told = json.loads(said)
    assert (done.returncode, done.stderr, last) == (3, "", "over")
    assert told["argv"][1:] == ["x"]
    assert (told["cwd"], told["first"]) == (str(tmp_path), [str(tmp_path), "/elsewhere"])
    assert told["env"].items() >= env.items()
    assert told["mine"] == []


def test_an_error_is_told_and_signals_come(programs: Programs, tmp_path: Path) -> None:
    assert "ZeroDivisionError" in programs.run(["-c", "1 / 0"]).stderr
    log = tmp_path / "log"
    sleeps = "import signal; print('here', flush=True); signal.pause()"
    for ends, code in ((signal.SIGTERM, -15), (signal.SIGKILL, -9), (signal.SIGINT, -2)):
        program = programs.begin(["-c", sleeps], log, log)
        until(lambda: "here" in log.read_text())
        assert program.poll() is None
        program.send_signal(ends)
        assert program.wait() == program.poll() == code


def test_two_run_beside_each_other_and_what_runs_at_the_end_is_killed(tmp_path: Path) -> None:
    sleeps = "import signal; print('here', flush=True); signal.pause()"
    logs = [tmp_path / name for name in ("one", "two")]
    with Programs() as programs:
        made = [programs.begin(["-c", sleeps], log, log) for log in logs]
        until(lambda: all("here" in log.read_text() for log in logs))
        assert programs.run(["-c", "print(1)"]).stdout == "1\n"
    assert not any(Path(f"/proc/{each.pid}").exists() for each in made)


def test_threads_that_begin_programs_have_their_own(programs: Programs, tmp_path: Path) -> None:
    def is_own(number: int) -> bool:
        log = tmp_path / str(number)
        program = programs.begin(["-c", "import os; print(os.getpid())"], log, log)
        return program.wait() == 0 and log.read_text() == f"{program.pid}\n"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_own, range(24)))


def test_one_without_end_is_killed(programs: Programs) -> None:
    words = ["-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run(words, timeout=0.0)
    assert programs.run(["-c", "print(1)"]).stdout == "1\n"
