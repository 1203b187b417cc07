"""The cluster that a test runs over, of every kind in turn."""

from collections.abc import Iterator

import pytest
from tests.conformance.clusters import Cluster, of_kinds, running

EVERYWHERE = (
    *("bundled", "apache", "two apache"),
    *("mixed, our name server", "mixed, Apache's name server"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for `cluster` over every kind, unless its module names `CLUSTERS`."""
    if "cluster" in metafunc.fixturenames:
        kinds = getattr(metafunc.module, "CLUSTERS", EVERYWHERE)
        metafunc.parametrize("cluster", of_kinds(*kinds), indirect=True, scope="session")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a running cluster, which the tests of the session share."""
    with running(request.param) as found:
        yield found
