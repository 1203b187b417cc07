"""Filters, retries, resets of offsets and ordered topics, as Apache's Java client meets them.

The program runs against Apache's broker first: what it sees there is what it must see at ours.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import SERVER_JARS, JarsUnreachable, java_command, missing_tools
from bench.reliable_mq_broker import ReliableMQBroker

PROGRAM = Path(__file__).parent / "java" / "Consumption.java"
PROGRAM_SECONDS_MAX = 400
SETTINGS = {"enablePropertyFilter": "true"}

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.processes,
    pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools())),
]


def what_is_seen(name_server: str, broker: str, home: Path) -> dict[str, str]:
    """Return what the program prints, by step."""
    command = java_command(str(PROGRAM), class_path=f"{SERVER_JARS}/*", home=home)
    run = subprocess.run(
        [*command, name_server, broker],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return dict(line.split(": ", 1) for line in run.stdout.splitlines() if ": " in line)


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@contextlib.contextmanager
def until_the_end(broker: ApacheRocketMQ) -> Iterator[None]:
    try:
        yield
    finally:
        broker.stop()


def test_consumers_meet_at_our_broker_what_they_meet_at_apaches(tmp_path: Path) -> None:
    try:
        theirs = ApacheRocketMQ(made(tmp_path / "apache"), "ASYNC_FLUSH", SETTINGS)
        theirs.start()
    except JarsUnreachable as unreachable:
        pytest.skip(str(unreachable))
    ours = ReliableMQBroker(made(tmp_path / "ours"), settings=SETTINGS)
    with until_the_end(theirs), ours, ThreadPoolExecutor() as pool:  # the program mostly waits
        expected, seen = pool.map(
            lambda broker: what_is_seen(broker.name_server_address, broker.address, tmp_path),
            (theirs, ours),
        )
    assert seen == expected
    assert expected["filter"] == "[10, 12, 14, 16, 18, 100, 102] of 7"
