"""A process that holds much for long is not stopped to look at it again."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from reliable_mq.runtime.garbage import collect_new, keep_collections_short

PROGRAM = """
import gc
from reliable_mq.runtime.garbage import keep_collections_short

class Node:
    def __init__(self):
        self.me = self

keep_collections_short()
kept = []
for _ in range(200_000):
    Node()
    if len(kept) < 50_000:
        kept.append([])
print(sum(isinstance(each, Node) for each in gc.get_objects()))
"""
"""Makes cycles, and tells how many are left."""


@pytest.fixture
def short_collections() -> Iterator[None]:
    """Let this process collect as the broker does, and as before afterwards."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    keep_collections_short()
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()


@pytest.mark.usefixtures("short_collections")
def test_what_survived_a_full_collection_is_not_looked_at_again() -> None:
    table = [[number] for number in range(10_000)]
    gc.collect()
    assert not any(each is table for each in gc.get_objects())


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Let nothing be collected that is not asked for."""
    was_on = gc.isenabled()
    gc.disable()
    yield
    if was_on:
        gc.enable()


@pytest.mark.usefixtures("short_collections", "no_collections")
def test_what_is_new_is_looked_at_when_that_is_asked_for_and_not_again() -> None:
    """The collector counts new objects less those that go. So it may look at none for long."""
    table = [[number] for number in range(1_000)]
    assert any(each is table for each in gc.get_objects())
    collect_new()
    assert not any(each is table for each in gc.get_objects())


@pytest.mark.usefixtures("no_collections")
def test_a_process_that_collects_in_its_own_way_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "callbacks", [])
    table: list[list[int]] = [[]]
    collect_new()
    assert any(each is table for each in gc.get_objects(generation=0))


def test_cycles_that_nobody_holds_go_without_being_asked_for() -> None:
    """In a process of its own: this one holds the objects of many tests, and looks long at them."""
    assert int(subprocess.check_output([sys.executable, "-c", PROGRAM])) < 5_000
