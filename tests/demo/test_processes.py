"""Processes of the demo: waited for by what they print, killed, explained by their log."""

from pathlib import Path

import pytest

from examples.demo.processes import DemoFailed, Process, run_to_the_end

pytestmark = pytest.mark.processes

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready at last")
time.sleep(60)
"""


def process(tmp_path: Path, code: str) -> Process:
    return Process("child", ["-c", code], {"GREETING": "hello"}, tmp_path / "child.log")


def test_a_process_is_ready_when_it_says_so_and_gone_when_it_is_killed(tmp_path: Path) -> None:
    child = process(tmp_path, STUBBORN)
    child.start()

    assert child.wait_for_line("ready", seconds_max=60) == "ready at last"
    assert child.is_running
    child.kill()
    assert not child.is_running
    assert child.kills == 1
    assert child.exit_code is None  # it did not end by itself


def test_a_second_start_does_not_see_the_ready_line_of_the_first(tmp_path: Path) -> None:
    child = process(tmp_path, STUBBORN)
    child.start()
    child.wait_for_line("ready", seconds_max=60)
    child.kill()
    silent = process(tmp_path, "print('nothing')")
    silent.start()

    with pytest.raises(DemoFailed, match="did not get ready"):
        silent.wait_for_line("ready", seconds_max=60)


def test_what_ends_badly_is_told_with_its_last_lines(tmp_path: Path) -> None:
    child = process(tmp_path, "import os; print(os.environ['GREETING']); raise SystemExit(3)")

    with pytest.raises(DemoFailed, match=r"(?s)ended with 3.*hello"):
        run_to_the_end(child, seconds_max=60)
    assert run_to_the_end(child, seconds_max=60, exit_codes=(3,)) == 3


def test_what_does_not_end_in_time_is_stopped(tmp_path: Path) -> None:
    child = process(tmp_path, "import time; time.sleep(60)")

    with pytest.raises(DemoFailed, match="did not end in time"):
        run_to_the_end(child, seconds_max=0.2)
    assert not child.is_running
