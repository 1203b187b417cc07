"""The plugin, as a project that installed reliable_mq has it."""

import os
import subprocess
import sys
from pathlib import Path

SUITE = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", database="sqlite:///shop.db")
seen = []

@mq.consumer("orders", group="payments")
def take_payment(order: dict) -> None:
    seen.append(order["id"])

def place(number):
    with mq.transaction() as tx:
        tx.send("orders", {"id": number})

def test_an_order_is_seen_once(message_world):
    world = message_world(mq, seed=7)
    world.faults.duplicate("orders")
    place(1)
    world.assert_sent("orders", {"id": 1})
    world.deliver()
    assert seen == [1]

def test_another_world_knows_nothing_of_the_first(message_world):
    world = message_world(mq, redis=False)
    world.assert_sent("orders", times=0)
"""


def test_a_suite_of_a_users_own_gets_its_worlds(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(SUITE)
    arguments = ["-q", "-p", "reliable_mq.testing.pytest_plugin", "-p", "no:cacheprovider"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "test_shop.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "2 passed" in done.stdout, done.stdout + done.stderr
