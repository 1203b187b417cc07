"""Every pattern of outages of a topic's broker, with a death at every place: when is all sent?"""

import itertools
from collections.abc import Iterator

import pytest
from tests.model.gate import BACKLOG_WAIT, LEASE, GateWorld, MemoryDue, MemoryTopics

from reliable_mq.resend.topic_gate import PROBE_LEASE, PROBE_SECONDS_MAX

BLOCKS, BLOCK_SECONDS = 6, 7
TURNS = 3
"""Turns of the scheduler between a due time and the send: noticed, opened, sent."""
DEADLY = (0, 1, 2, 3, 5, 8)
KEYS = [("a", "a", "b", "b"), ("a", "", "a", "b")]


def bound(deadly: int) -> float:
    """Return the seconds after the last fault within which all is sent, as the docs say."""
    if not deadly:
        return PROBE_SECONDS_MAX + BACKLOG_WAIT + TURNS
    # What the dead one had in hand goes when its lease is over, one in each turn.
    return max(PROBE_LEASE, LEASE) + BACKLOG_WAIT + 8 + TURNS


def broken(due: type[MemoryDue], topics: type[MemoryTopics]) -> Iterator[object]:
    """Yield the stories after which something is sent late or out of order."""
    outages = list(itertools.product((False, True), repeat=BLOCKS))
    for keys, deadly, away in itertools.product(KEYS, DEADLY, outages):
        world = GateWorld(due(), topics(), deadly=deadly)
        for is_away in away:
            world.broker.is_away = is_away
            for key in keys:
                world.due.write(key, world.now)
            for _ in range(BLOCK_SECONDS):
                world.turn()
        world.broker.is_away = False
        calm = world.now
        while world.due.waiting() and world.now < calm + bound(deadly):
            world.turn()
        in_order = all(names == sorted(names) for key, names in world.broker.keys.items() if key)
        if world.due.waiting() or not in_order:
            yield keys, deadly, away, len(world.due.waiting())


def test_whatever_the_outages_everything_is_sent_within_the_bound_and_in_order() -> None:
    assert list(broken(MemoryDue, MemoryTopics)) == []


class SpendsTheProbe(MemoryTopics):
    """A probe that sent nothing is lost."""

    def release_probe(self, topic: str, now: float) -> None:
        """Do nothing."""


class HurriesNothing(MemoryDue):
    """What waits for a topic that opens waits on."""

    def make_due(self, topic: str, now: float) -> bool:
        return False


FLAWS: dict[str, tuple[type[MemoryDue], type[MemoryTopics]]] = {
    "a probe that sent nothing is spent": (MemoryDue, SpendsTheProbe),
    "nothing is made due": (HurriesNothing, MemoryTopics),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_of_the_gate_is_found(flaw: str) -> None:
    assert any(broken(*FLAWS[flaw]))
