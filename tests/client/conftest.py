"""Bundled brokers, shared ones and a test's own, and names that no other test uses."""

import itertools
from collections.abc import Iterator

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import Cluster, bundled

_names = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give a bundled broker that the tests of a module share."""
    with bundled() as running:
        yield running


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
