"""What the judge leaves open when a pop in order is repeated, and the broker dies."""

from random import Random

import pytest
from tests.simulation.facts import Violation
from tests.simulation.kinds import ASKED, JUDGES
from tests.simulation.model import Model
from tests.simulation.ordered_pops import OrderedPops
from tests.simulation.plan import plan_of
from tests.simulation.watched_disk import WatchedDisk

GROUP, TOPIC, ATTEMPT = "poppers", "topic", "one"
PLACE = (GROUP, TOPIC, 0)
FIRST, AGAIN = (1, 1), (1, 2)
HIDDEN_MS = 1_000


@pytest.fixture
def orders() -> OrderedPops:
    disk = WatchedDisk(Random(0), lambda: 0.0)
    return OrderedPops(Model(JUDGES, plan_of(0, list(ASKED)), disk))


def _pop(orders: OrderedPops, offsets: list[int], popped_ms: int, attempt: str) -> None:
    orders.handed_out(PLACE, offsets, popped_ms, HIDDEN_MS, attempt, 0)


def _acknowledge(orders: OrderedPops, offset: int, popped_ms: int) -> bool:
    must_end = orders.asked_to_end(PLACE, offset, popped_ms, popped_ms + 10)
    orders.ended(PLACE, offset, popped_ms)
    return must_end


def test_what_is_acknowledged_is_not_handed_out_again(orders: OrderedPops) -> None:
    orders.asked((GROUP, TOPIC, ATTEMPT), FIRST, HIDDEN_MS)
    orders.answered((GROUP, TOPIC, ATTEMPT), FIRST)
    _pop(orders, [0], 0, ATTEMPT)
    assert _acknowledge(orders, 0, 0)
    with pytest.raises(Violation, match="goes on with"):
        _pop(orders, [0, 1], 5_000, "two")


@pytest.mark.parametrize("is_first_told", [True, False])
@pytest.mark.parametrize("offsets", [[0, 1], [1]])
def test_a_repeated_pop_without_an_answer_may_have_taken_the_place(
    orders: OrderedPops, is_first_told: bool, offsets: list[int]
) -> None:
    attempt = (GROUP, TOPIC, ATTEMPT)
    orders.asked(attempt, FIRST, HIDDEN_MS)
    if is_first_told:
        orders.answered(attempt, FIRST)
        _pop(orders, [0], 0, ATTEMPT)
    orders.asked(attempt, AGAIN, HIDDEN_MS + 5)
    if not is_first_told:
        orders.answered(attempt, FIRST)
        _pop(orders, [0], 0, ATTEMPT)

    orders.opened()  # it was killed before the second answer
    assert not _acknowledge(orders, 0, 0)
    _pop(orders, offsets, 5_000, "two")


def test_a_repeated_pop_with_an_answer_counts(orders: OrderedPops) -> None:
    attempt = (GROUP, TOPIC, ATTEMPT)
    for request, popped_ms in ((FIRST, 0), (AGAIN, 5)):
        orders.asked(attempt, request, HIDDEN_MS + popped_ms)
    for request, popped_ms in ((FIRST, 0), (AGAIN, 5)):
        orders.answered(attempt, request)
        _pop(orders, [0], popped_ms, ATTEMPT)
    orders.opened()
    assert _acknowledge(orders, 0, 5)
    with pytest.raises(Violation, match="goes on with"):
        _pop(orders, [0, 1], 5_000, "two")
