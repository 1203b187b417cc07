"""Bundled brokers, shared ones and a test's own."""

from collections.abc import Iterator

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import Cluster, bundled


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
