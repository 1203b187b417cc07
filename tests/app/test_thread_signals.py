"""A process that waits for a signal ends by itself when it can do nothing any more."""

import sys
from pathlib import Path

import pytest
from tests.waiting import run_process

pytestmark = pytest.mark.processes

SECONDS_MAX = 120
SHOP = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", broker="embedded:store", database="sqlite:///shop.db")
mq.create_tables()
start = mq.start


async def ends() -> None:
    raise SystemExit(3)


def start_and_die() -> None:
    start()
    mq._connections.loop_thread.submit(ends())


mq.start = start_and_die


@mq.consumer("orders", group="payments")
def pay(order: dict[str, int]) -> None: ...
"""


def test_a_worker_whose_loop_thread_died_ends_with_code_1(tmp_path: Path) -> None:
    """In a process of its own: the broker in it may be the first to end it."""
    (tmp_path / "shop.py").write_text(SHOP)

    ended = run_process(
        [sys.executable, "-m", "reliable_mq.cli.main", "run", "shop:mq"],
        cwd=tmp_path,
        capture_output=True,
        timeout=SECONDS_MAX,
    )

    assert ended.returncode == 1
    assert "the event loop has ended" in ended.stderr or "it stops" in ended.stderr
