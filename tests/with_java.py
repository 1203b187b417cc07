"""Tests with programs of Apache's: their marks, and what skips them where those cannot run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import JarsUnreachable, missing_tools
from bench.reliable_mq_broker import ReliableMQBroker

Broker = ApacheRocketMQ | ReliableMQBroker
B = TypeVar("B", bound=Broker)

SERVERS = [
    pytest.mark.java,
    pytest.mark.processes,
    pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools())),
]
INTEROP = [*SERVERS, pytest.mark.interop]


@contextmanager
def skipped_without_java() -> Iterator[None]:
    """Skip the test that needs Java's tools, or jars that cannot be fetched."""
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    try:
        yield
    except JarsUnreachable as unreachable:
        pytest.skip(str(unreachable))


@contextmanager
def started(broker: B) -> Iterator[B]:
    """Run a broker of either kind, and kill it: nobody reads its files afterwards."""
    with skipped_without_java():
        broker.start()
    try:
        yield broker
    finally:
        broker.kill()
