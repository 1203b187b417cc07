"""Long-running commands tell probes that they are ready and that they work."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.app import thread_connections

APPLICATION = """
from reliable_mq import ReliableMQ
mq = ReliableMQ("shop", broker="embedded:embedded", database="sqlite:///shop.db")
mq.create_tables()
@mq.consumer("orders", group="payments")
def pay(order: dict[str, int]) -> None: ...
"""
COMMANDS = {
    "namesrv": "namesrv --port 0",
    "broker": "broker --store store --port 0 --namesrv-port 0",
    "run": "run worker_shop:mq",
    "run --processes": "run workers_shop:mq --processes 2",
    "resend": "resend --db sqlite:///resend.db --broker 127.0.0.1:1",
}


@contextmanager
def running(words: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a command whose health file is `health` in the folder."""
    (folder / "worker_shop.py").write_text(APPLICATION)
    elsewhere = APPLICATION.replace("embedded:embedded", "127.0.0.1:1")
    (folder / "workers_shop.py").write_text(elsewhere)
    other = ReliableMQ("shop", database=f"sqlite:///{folder / 'resend.db'}")
    other.create_tables()
    other.close()
    around = os.environ | {"RELIABLE_MQ_HEALTH_FILE": "health", "PYTHONPATH": "."}
    command = [sys.executable, "-m", "reliable_mq.cli.main", *words.split()]
    started = subprocess.Popen(command, cwd=folder, env=around, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.mark.processes
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_keeps_its_health_file_young_and_removes_it_at_the_end(
    words: str, tmp_path: Path
) -> None:
    health = tmp_path / "health"
    with running(words, tmp_path) as command:
        until(health.exists)
        os.utime(health, (0, 0))
        until(lambda: health.stat().st_mtime > 0)

        command.send_signal(signal.SIGTERM)
        assert command.wait(60) == 0
    assert not health.exists()


def test_a_worker_whose_event_loop_is_blocked_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a handler that blocks the loop, then no beat is told; afterwards there is one again."""
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}", database=f"sqlite:///{tmp_path}/a.db")
    connections = mq._connections
    assert connections.loop_answers(), "nothing runs yet"
    gate, is_blocked = threading.Event(), threading.Event()

    async def block() -> None:
        is_blocked.set()
        gate.wait()

    blocking = connections.loop_thread.submit(block())
    is_blocked.wait()
    monkeypatch.setattr(thread_connections, "LOOP_ANSWER_SECONDS", 0.05)
    assert not connections.loop_answers()
    gate.set()
    blocking.result()
    monkeypatch.setattr(thread_connections, "LOOP_ANSWER_SECONDS", 60.0)
    assert connections.loop_answers()
    mq.close()
