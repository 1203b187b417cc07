"""When the next send is due."""

import pytest

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.resend.policy import ResendPolicy


def test_waits_follow_the_ladder_and_its_last_step_repeats() -> None:
    policy = ResendPolicy(waits=(1.0, 5.0, 30.0))

    assert [policy.next_time(count, 100.0) for count in (1, 2, 3, 4, 99)] == [
        *(101.0, 105.0, 130.0, 130.0, 130.0)
    ]


def test_a_later_send_never_waits_less() -> None:
    policy = ResendPolicy()
    waits = [policy.next_time(count, 0.0) for count in range(1, 40)]

    assert waits == sorted(waits)
    assert waits[0] == 10.0
    assert waits[-1] == 7200.0


def test_a_delayed_message_is_not_missed_before_it_could_be_there() -> None:
    policy = ResendPolicy(waits=(10.0,))

    assert policy.next_time(1, 100.0, deliver_time=500.0) == 510.0
    assert policy.next_time(1, 600.0, deliver_time=500.0) == 610.0


def test_a_stub_in_a_backlog_rests_longer_as_it_grows_old_but_minutes_at_most() -> None:
    policy = ResendPolicy(backlog_wait=5.0)

    rests = [policy.rest_of(age) for age in (0.0, 99.0, 100.0, 250.0, 3600.0, 1e9)]

    assert rests == [5.0, 5.0, 10.0, 20.0, 320.0, 320.0]
    assert ResendPolicy(backlog_wait=900.0).rest_of(1e9) == 900.0


@pytest.mark.parametrize("waits", [(), (0.0,), (-1.0, 5.0), (5.0, 1.0)])
def test_a_ladder_that_cannot_work_is_refused(waits: tuple[float, ...]) -> None:
    with pytest.raises(ConfigurationError):
        ResendPolicy(waits=waits)


def test_numbers_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        ResendPolicy(count_max=0)
    with pytest.raises(UsageError):
        ResendPolicy().next_time(0, 1.0)
