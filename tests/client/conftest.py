"""Brokers for the end-to-end tests: the bundled one, and Apache's where Java is at hand."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import JarsUnreachable, missing_tools
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import Cluster, bundled

_names = itertools.count(1)


@pytest.fixture(
    scope="module",
    params=["bundled", pytest.param("apache", marks=pytest.mark.java)],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a running broker of either kind."""
    if request.param == "bundled":
        with bundled() as broker:
            yield broker
        return
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    with tempfile.TemporaryDirectory() as directory:
        try:
            with ApacheRocketMQ(Path(directory), "ASYNC_FLUSH") as apache:
                yield apache
                apache.kill()
        except JarsUnreachable as unreachable:
            pytest.skip(str(unreachable))


@pytest.fixture
def broker() -> Iterator[ReliableMQBroker]:
    """Give a bundled broker of this test's own, which it may kill."""
    with bundled() as running:
        yield running


@pytest.fixture
def topic() -> str:
    """Give a topic that no other test uses."""
    return f"topic-{next(_names)}"


@pytest.fixture
def group() -> str:
    """Give a consumer group that no other test uses."""
    return f"group-{next(_names)}"
