"""Waits that grow while nothing is found."""

import math

import pytest

from reliable_mq.errors import UsageError
from reliable_mq.outbox.thread_relay import IdleBackoff


def test_waits_double_up_to_the_longest_and_begin_anew_when_something_was_found() -> None:
    pace = IdleBackoff(0.5, 3.0)
    assert [pace.pause() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    pace.reset()
    assert [pace.pause() for _ in range(2)] == [0.5, 1.0]


def test_a_pace_may_be_steady() -> None:
    pace = IdleBackoff(2.0, 2.0)
    assert [pace.pause() for _ in range(3)] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("shortest", "longest"), [(0, 1), (-1, 1), (2, 1), (math.nan, 1), (1, math.nan)]
)
def test_waits_that_are_not_positive_and_in_order_are_refused(
    shortest: float, longest: float
) -> None:
    with pytest.raises(UsageError, match="positive and in order"):
        IdleBackoff(shortest, longest)
