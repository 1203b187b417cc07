"""Who waits for replies: each ends in time, under one timer that is hardly ever set."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from reliable_mq.errors import ConnectionLost, RequestTimeout
from reliable_mq.runtime.link import GRAIN_SECONDS, Waiters
from reliable_mq.wire.command import Command, reply, request


class Loop:
    """As much of an event loop as waiters need, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []
        self._futures = asyncio.new_event_loop()

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return self._futures.create_future()

    def call_at(self, when: float, ring: Callable[[], None]) -> "Timer":
        self.timers.append(Timer(when, ring))
        return self.timers[-1]

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.is_set and timer.when <= end]:
            timer = min(due, key=lambda each: each.when)
            timer.is_set, self.now = False, max(self.now, timer.when)
            timer.ring()
        self.now = end

    def close(self) -> None:
        self._futures.close()


class Timer:
    def __init__(self, when: float, ring: Callable[[], None]) -> None:
        self.when, self.ring, self.is_set = when, ring, True

    def cancel(self) -> None:
        self.is_set = False


@pytest.fixture
def loop() -> Any:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def waiters(loop: Loop) -> Waiters:
    return Waiters("broker:10911", loop)  # type: ignore[arg-type]


def answer_to(opaque: int) -> Command:
    command = request(1)
    command.opaque = opaque
    return reply(command)


def test_each_call_times_out_when_its_own_time_is_over(loop: Loop, waiters: Waiters) -> None:
    futures = {seconds: waiters.add(seconds, 310, float(seconds)) for seconds in (3, 1, 2)}
    for seconds in (1, 2, 3):
        loop.pass_time(1.0 - GRAIN_SECONDS)
        assert not futures[seconds].done()
        waiters.invariants()
        loop.pass_time(GRAIN_SECONDS)
        with pytest.raises(RequestTimeout, match=f"not answer request 310 in {seconds} s"):
            futures[seconds].result()


def test_a_late_reply_and_one_that_nobody_waits_for_are_dropped(
    loop: Loop, waiters: Waiters
) -> None:
    future = waiters.add(1, 310, 1.0)
    loop.pass_time(1.0)
    waiters.answer(answer_to(1))
    waiters.answer(answer_to(7))
    assert isinstance(future.exception(), RequestTimeout)


def test_a_thousand_calls_that_are_answered_set_the_timer_once(
    loop: Loop, waiters: Waiters
) -> None:
    for opaque in range(1000):
        future = waiters.add(opaque, 310, 3.0)
        loop.pass_time(0.001)
        waiters.answer(answer_to(opaque))
        assert future.done()
        waiters.remove(opaque)
    assert len(loop.timers) == 1
    loop.pass_time(60)
    assert not any(timer.is_set for timer in loop.timers), "nobody waits: nothing wakes up"


def test_thousands_who_time_out_one_after_another_are_not_looked_at_thousands_of_times(
    loop: Loop, waiters: Waiters
) -> None:
    futures = [waiters.add(opaque, 310, 1.0 + opaque / 10_000) for opaque in range(2000)]
    loop.pass_time(1.3)
    assert all(isinstance(future.exception(), RequestTimeout) for future in futures)
    assert len(loop.timers) <= 0.2 / GRAIN_SECONDS + 2


def test_a_lost_connection_ends_all_and_leaves_no_timer(loop: Loop, waiters: Waiters) -> None:
    futures = [waiters.add(opaque, 310, 3.0) for opaque in range(3)]
    waiters.fail(lambda: ConnectionLost("gone"))
    assert [type(future.exception()) for future in futures] == [ConnectionLost] * 3
    assert waiters.waiting == 0
    assert not any(timer.is_set for timer in loop.timers)


def test_a_call_that_was_given_up_is_forgotten_when_the_timer_rings(
    loop: Loop, waiters: Waiters
) -> None:
    given_up = waiters.add(1, 10, 1.0)
    waits = waiters.add(2, 10, 5.0)
    given_up.cancel()
    loop.pass_time(1.5)
    assert len(waiters.calls) == 1
    waiters.answer(answer_to(2))
    assert waits.done()
    assert len(waiters.calls) == 0, "and an answered one at once"
