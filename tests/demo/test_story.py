"""The demo from its beginning to its end, also to an end that somebody asks for."""

from pathlib import Path

import pytest

from examples.demo.processes import Process, run_to_the_end

pytestmark = pytest.mark.processes

ASKED_TWICE = """
import os, signal
from pathlib import Path
from examples.demo import story

def play(*_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        print("processes are stopped", flush=True)

story._play = play
try:
    story.tell(1, 1, 0, 0, Path("."))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_second_request_to_end_does_not_interrupt_the_clearing_up(tmp_path: Path) -> None:
    # `make` passes the SIGTERM of `timeout` on, which its children have already had.
    root = str(Path(__file__).parents[2])
    demo = Process("demo", ["-c", ASKED_TWICE], {"PYTHONPATH": root}, tmp_path / "demo.log")

    run_to_the_end(demo, seconds_max=60)

    told = demo.log_file.read_text().splitlines()
    assert told == ["processes are stopped", "interrupted"]
