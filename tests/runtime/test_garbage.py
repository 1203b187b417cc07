"""A process that holds much for long is not stopped to look at it again."""

import gc
from collections.abc import Iterator

import pytest

from reliable_mq.runtime.garbage import keep_collections_short


@pytest.fixture
def short_collections() -> Iterator[None]:
    """Let this process collect as the broker does, and as before afterwards."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    keep_collections_short()
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()


class Node:
    """What a cycle is made of."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.usefixtures("short_collections")
def test_what_survived_a_full_collection_is_not_looked_at_again() -> None:
    table = [[number] for number in range(10_000)]
    gc.collect()
    assert not any(each is table for each in gc.get_objects())


@pytest.mark.usefixtures("short_collections")
def test_cycles_that_nobody_holds_go_without_being_asked_for() -> None:
    kept: list[list[int]] = []
    for _ in range(200_000):
        Node()
        if len(kept) < 50_000:
            kept.append([])
    assert sum(isinstance(each, Node) for each in gc.get_objects()) < 5_000
