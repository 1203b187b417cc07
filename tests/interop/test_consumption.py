"""Filters, retries, resets of offsets and ordered topics, as Apache's Java client meets them.

The program runs against Apache's broker first: what it sees there is what it must see at ours.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import SERVER_JARS
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.java_shell import run_source
from tests.with_java import INTEROP, started

SETTINGS = {"enablePropertyFilter": "true"}

pytestmark = INTEROP


def what_is_seen(name_server: str, broker: str, home: Path) -> dict[str, str]:
    """Return what the program prints, by step."""
    lines = run_source("Consumption", home, name_server, broker, jars=SERVER_JARS)
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def test_consumers_meet_at_our_broker_what_they_meet_at_apaches(tmp_path: Path) -> None:
    theirs = ApacheRocketMQ(tmp_path / "apache", "ASYNC_FLUSH", SETTINGS)
    ours = ReliableMQBroker(tmp_path / "ours", settings=SETTINGS)
    with started(theirs), ours, ThreadPoolExecutor() as pool:  # the program mostly waits
        expected, seen = pool.map(
            lambda broker: what_is_seen(broker.name_server_address, broker.address, tmp_path),
            (theirs, ours),
        )
    assert seen == expected
    assert expected["filter"] == "[10, 12, 14, 16, 18, 100, 102] of 7"
