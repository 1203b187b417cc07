"""When the next send is due."""

import pytest
from tenacity import RetryCallState
from tenacity.wait import wait_exception, wait_exponential, wait_fixed, wait_random

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.outbox.resend_policy import WAIT_MAX, WAIT_MIN, ResendPolicy, Wait, ladder


def test_waits_follow_the_ladder_and_its_last_step_repeats() -> None:
    policy = ResendPolicy(wait=ladder(1.0, 5.0, 30.0))

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
    policy = ResendPolicy(wait=ladder(10.0))

    assert policy.next_time(1, 100.0, deliver_time=500.0) == 510.0
    assert policy.next_time(1, 600.0, deliver_time=500.0) == 610.0


def test_a_stub_in_a_backlog_rests_longer_as_it_grows_old_but_minutes_at_most() -> None:
    policy = ResendPolicy(backlog_wait=5.0)

    rests = [policy.rest_of(age) for age in (0.0, 99.0, 100.0, 250.0, 3600.0, 1e9)]

    assert rests == [5.0, 5.0, 10.0, 20.0, 320.0, 320.0]
    assert ResendPolicy(backlog_wait=900.0).rest_of(1e9) == 900.0


@pytest.mark.parametrize(
    "waits", [(), (0.0,), (-1.0, 5.0), (5.0, 1.0), (float("nan"),), (float("inf"),)]
)
def test_a_ladder_that_cannot_work_is_refused(waits: tuple[float, ...]) -> None:
    with pytest.raises(ConfigurationError):
        ladder(*waits)


def test_numbers_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        ResendPolicy(count_max=0)
    with pytest.raises(UsageError):
        ResendPolicy().next_time(0, 1.0)


def test_waits_are_composed_as_tenacitys() -> None:
    policy = ResendPolicy(wait=wait_exponential(max=60) + wait_fixed(5))

    assert [policy.next_time(count, 0.0) for count in (1, 2, 4, 20)] == [6.0, 7.0, 13.0, 65.0]


def test_a_wait_that_draws_lots_stays_within_bounds() -> None:
    drawn = iter((5.0, 0.0, float("nan"), float("inf"), 7.0))
    policy = ResendPolicy(wait=lambda _state: next(drawn), count_max=1)

    assert [policy.wait_after(1) for _ in range(4)] == [WAIT_MIN, WAIT_MIN, WAIT_MAX, 7.0]
    jitter = ResendPolicy(wait=wait_fixed(10) + wait_random(0, 5))
    assert all(10.0 <= jitter.wait_after(1) <= 15.0 for _ in range(100))


def test_the_horizon_is_the_sum_of_the_waits_that_come_before_a_person() -> None:
    assert ResendPolicy(wait=ladder(10.0, 20.0), count_max=4).horizon() == 70.0


def broken(_state: RetryCallState) -> float:
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    "wait",
    [
        *(wait_fixed(0), wait_fixed(-1), lambda _state: float("nan"), lambda _state: WAIT_MAX * 2),
        *(wait_exception(lambda _error: 1.0), broken),
    ],
)
def test_a_wait_that_cannot_work_is_refused_at_once(wait: Wait) -> None:
    with pytest.raises(ConfigurationError, match="the wait after send 1"):
        ResendPolicy(wait=wait)


def test_a_ladder_may_have_steps_of_any_positive_length_and_equal_ones() -> None:
    policy = ResendPolicy(wait=ladder(0.2, 0.5, 0.5, 2.0))
    assert [policy.wait_after(count) for count in (1, 2, 3, 4)] == [0.2, 0.5, 0.5, 2.0]


def test_a_wait_is_at_most_thirty_days_and_at_least_a_tenth_of_a_second() -> None:
    """A random wait may be zero or too long: a stub must neither spin nor be forgotten."""
    month = 30 * 24 * 3600.0
    assert ResendPolicy(wait=wait_fixed(month)).wait_after(1) == month
    with pytest.raises(ConfigurationError, match="at most 2\\.592e\\+06 s"):
        ResendPolicy(wait=wait_fixed(month + 1))
    assert ResendPolicy(wait=wait_fixed(0.01)).wait_after(1) == 0.1
    waits = iter([1.0, 2 * month, 0.0])

    def random(_state: RetryCallState) -> float:
        return next(waits)

    policy = ResendPolicy(wait=random, count_max=1)
    assert [policy.wait_after(1) for _ in range(2)] == [month, 0.1]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_wait_that_is_not_positive_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="it must be positive"):
        ResendPolicy(wait=lambda _state: seconds)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["backlog_wait", "told_after"])
def test_other_times_are_positive_and_finite(name: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="must be positive seconds"):
        ResendPolicy(**{name: seconds})  # type: ignore[arg-type]
    policy = ResendPolicy(**{name: 0.25})  # type: ignore[arg-type]
    assert getattr(policy, name) == 0.25


def test_every_wait_up_to_the_last_send_is_computed_when_a_policy_is_made() -> None:
    asked: list[int] = []

    def only_three(state: RetryCallState) -> float:
        asked.append(state.attempt_number)
        return [10.0, 20.0, 30.0][state.attempt_number - 1]

    policy = ResendPolicy(wait=only_three, count_max=3)
    assert asked == [1, 2, 3]
    assert policy.horizon() == 60.0
    with pytest.raises(ConfigurationError, match="after send 4 cannot be computed"):
        ResendPolicy(wait=only_three, count_max=4)
    assert ResendPolicy(wait=only_three, count_max=1).horizon() == 10.0


@pytest.mark.parametrize(
    ("age", "rest"),
    [(1_599.0, 80.0), (1_600.0, 160.0), (3_199.0, 160.0), (3_200.0, 320.0), (6_400.0, 320.0)],
)
def test_a_rest_doubles_within_a_tenth_of_the_age_up_to_ten_minutes(
    age: float, rest: float
) -> None:
    assert ResendPolicy(backlog_wait=5.0).rest_of(age) == rest
    assert ResendPolicy(backlog_wait=300.0).rest_of(1e9) == 600.0
