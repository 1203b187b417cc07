"""Syncs on the loop: at once while the medium is quick, elsewhere while it is not."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import pytest

from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.runtime.syncs import (
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    PROMPT_SECONDS,
    SLOW_IN_A_ROW,
    VERY_SLOW_SECONDS,
    PromptSyncs,
)

QUICK, SLOW = PROMPT_SECONDS / 2, PROMPT_SECONDS * 2


class Medium:
    """A file on a medium whose syncs take as long as the test says; it is the clock, too."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes = QUICK
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        self.now += self.takes


class Others:
    """Who syncs elsewhere; it notes how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        self.asked += 1
        done()
        return True

    def close(self) -> None:
        self.asked = -1


class World:
    """Prompt syncs over a medium."""

    def __init__(self, *, has_others: bool = True) -> None:
        self.medium = Medium()
        self.others = Others()
        others = self.others if has_others else None
        self.syncs = PromptSyncs(others, lambda: self.medium.now)
        self.done = 0

    def sync(self, takes: float, times: int = 1) -> bool:
        self.medium.takes = takes
        file = cast("DiskFile", self.medium)
        return [self.syncs.start([file], self._done) for _ in range(times)][-1]

    def _done(self) -> None:
        self.done += 1


def test_a_quick_medium_is_synced_before_the_call_returns() -> None:
    world = World()

    assert world.sync(QUICK, 50)

    assert (world.medium.syncs, world.done, world.others.asked) == (50, 50, 0)


def test_a_few_slow_syncs_in_a_row_send_the_next_ones_elsewhere_for_a_while() -> None:
    world = World()
    world.sync(SLOW, SLOW_IN_A_ROW)
    world.sync(SLOW, 7)
    assert (world.medium.syncs, world.others.asked) == (SLOW_IN_A_ROW, 7)

    world.medium.now += PAUSE_SECONDS
    world.sync(QUICK, 5)

    assert (world.medium.syncs, world.others.asked) == (SLOW_IN_A_ROW + 5, 7)
    assert world.done == SLOW_IN_A_ROW + 12


def test_a_single_very_slow_sync_sends_the_next_ones_elsewhere() -> None:
    world = World()

    world.sync(2 * VERY_SLOW_SECONDS)
    world.sync(QUICK, 7)

    assert (world.medium.syncs, world.others.asked) == (1, 7)


def test_slow_syncs_among_quick_ones_change_nothing() -> None:
    world = World()
    for _ in range(20):
        world.sync(SLOW, SLOW_IN_A_ROW - 1)
        world.sync(QUICK)

    assert world.others.asked == 0


def test_a_medium_that_stays_slow_is_tried_less_and_less_often() -> None:
    world = World()
    world.sync(SLOW, SLOW_IN_A_ROW)
    begin, tries = world.medium.now, []
    while world.medium.now < begin + 600:
        before = world.medium.syncs
        world.sync(SLOW)
        if world.medium.syncs > before:
            tries.append(world.medium.now)
        world.medium.now += PAUSE_SECONDS / 4

    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(PAUSE_SECONDS_MAX, abs=1)


def test_without_others_the_caller_is_told_to_use_a_thread() -> None:
    world = World(has_others=False)
    world.sync(SLOW, SLOW_IN_A_ROW)

    assert not world.sync(SLOW)
    assert world.done == SLOW_IN_A_ROW


def test_others_are_closed_with_it() -> None:
    world = World()

    world.syncs.close()

    assert world.others.asked == -1
