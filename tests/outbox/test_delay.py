"""Delays and the broker's levels."""

import pytest

from reliable_mq.errors import UsageError
from reliable_mq.limits import DELAY_LEVEL_SECONDS
from reliable_mq.outbox.delay import delay_level_of


@pytest.mark.parametrize("level", range(1, 19))
def test_the_time_of_a_level_is_that_level_and_a_little_more_is_the_next(level: int) -> None:
    seconds = DELAY_LEVEL_SECONDS[level - 1]

    assert delay_level_of(seconds) == level
    if level < 18:
        assert delay_level_of(seconds + 0.001) == level + 1


def test_no_delay_and_a_time_that_has_passed_are_level_zero() -> None:
    assert delay_level_of(0) == delay_level_of(-5) == 0


def test_a_delay_of_more_than_two_hours_is_refused() -> None:
    with pytest.raises(UsageError, match="of 7201 s is longer"):
        delay_level_of(7201)
