"""The circuit breaker, by the clock of the test."""

import itertools

import pytest
from tenacity import wait_exponential, wait_fixed

from reliable_mq.idempotency.breaker import TRANSITIONS, Circuit, CircuitBreaker, CircuitEvent


@pytest.fixture
def breaker() -> CircuitBreaker:
    return CircuitBreaker(wait_fixed(10))


def test_calls_pass_until_one_fails_and_again_after_one_succeeded(breaker: CircuitBreaker) -> None:
    assert breaker.allows(0)
    breaker.record_failure(0)
    assert not breaker.allows(9.9)
    assert breaker.allows(10)
    breaker.succeeded()
    assert breaker.allows(10)
    breaker.invariants()


def test_exactly_one_call_tries_whether_it_is_over(breaker: CircuitBreaker) -> None:
    breaker.record_failure(0)

    assert [breaker.allows(10), breaker.allows(10), breaker.allows(99)] == [True, False, False]
    breaker.invariants()


def test_a_try_that_fails_opens_it_for_longer() -> None:
    breaker = CircuitBreaker(wait_exponential(multiplier=1, max=60))
    opened = []
    now = 0.0
    for _ in range(4):
        breaker.record_failure(now)
        breaker.invariants()
        later = next(now + step / 2 for step in range(200) if breaker.allows(now + step / 2))
        opened.append(later - now)
        now = later

    assert opened == [1, 2, 4, 8]


def test_calls_that_were_on_their_way_count_as_one_outage(breaker: CircuitBreaker) -> None:
    for moment in (0, 1, 2, 3):
        breaker.record_failure(moment)

    assert breaker.allows(10)


def test_every_event_has_a_place_except_a_try_that_nobody_allowed() -> None:
    missing = set(itertools.product(Circuit, CircuitEvent)) - TRANSITIONS.keys()

    assert missing == {
        (Circuit.CLOSED, CircuitEvent.TRY),
        (Circuit.HALF_OPEN, CircuitEvent.TRY),
    }


def test_by_itself_it_is_open_for_half_a_second_and_longer_each_time_up_to_a_quarter_minute() -> (
    None
):
    breaker, now = CircuitBreaker(), 0.0
    for shortest in (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0):
        breaker.record_failure(now)
        assert not breaker.allows(now + shortest - 0.01)
        now += shortest + 0.25  # at most so much is added by chance
        assert breaker.allows(now)
