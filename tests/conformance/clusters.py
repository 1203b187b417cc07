"""The clusters that the client is held to, as parameters and as context managers of tests."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
from bench.clusters import KINDS, OF_OURS, Cluster, Ours
from tests.with_java import skipped_without_java

__all__ = ["Cluster", "Ours", "of_kinds", "running"]


def of_kinds(*kinds: str) -> list[object]:
    """Return parameters for `cluster`; what needs Apache's servers belongs to `make interop`."""
    marks = (pytest.mark.interop, pytest.mark.java)
    return [kind if kind in OF_OURS else pytest.param(kind, marks=marks) for kind in kinds]


@contextmanager
def running(kind: str) -> Iterator[Cluster]:
    """Run a cluster that the name server tells of; skip the test where Java's parts are missing."""
    with tempfile.TemporaryDirectory(prefix="reliable-mq-cluster-") as directory, ExitStack() as up:
        with nullcontext() if kind in OF_OURS else skipped_without_java():
            cluster = up.enter_context(KINDS[kind](Path(directory)))
        cluster.wait_until_whole()
        yield cluster
