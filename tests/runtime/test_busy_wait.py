"""Who looks for an answer before sleeping, for how long, and who does not."""

import math

from reliable_mq.runtime.busy_wait import (
    AGAIN_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    STOLEN_SECONDS,
    BusyWait,
)

LOOK = STOLEN_SECONDS / 4  # what one look takes
SECONDS = 10 * LOOK


class Waits:
    """A busy wait on a clock of its own."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.now = 100.0
        self.busy = BusyWait(seconds, lambda: self.now)

    def ask(self, *, comes_after: float) -> bool:
        """Ask for an answer that takes so many looks; return whether it was looked for."""
        self.now += AGAIN_SECONDS / 10
        if not self.busy.begin():
            return False
        looks = 0
        while looks < comes_after:
            looks += 1
            self.now += LOOK
            if not self.busy.should_continue():
                break
        else:
            self.busy.note_answer()
        self.busy.invariants()
        return True

    def ask_again_and_again(self, *, comes_after: float) -> int:
        """Ask for a second; return how often it was looked for."""
        end, count = self.now + 1.0, 0
        while self.now < end:
            count += self.ask(comes_after=comes_after)
        return count


def test_who_asks_again_and_again_looks_for_each_answer() -> None:
    waits = Waits()
    assert not waits.ask(comes_after=2), "the first question may be the only one"
    assert all(waits.ask(comes_after=2) for _ in range(1000))


def test_who_asks_now_and_then_sleeps() -> None:
    waits = Waits()
    for _ in range(3):
        waits.now += AGAIN_SECONDS
        assert not waits.ask(comes_after=2)


def test_who_wants_no_busy_wait_never_looks() -> None:
    assert Waits(0.0).ask_again_and_again(comes_after=1) == 0


def test_where_answers_take_longer_it_is_soon_hardly_looked_for_them() -> None:
    waits = Waits()
    first = waits.ask_again_and_again(comes_after=math.inf)
    later = [waits.ask_again_and_again(comes_after=math.inf) for _ in range(5)]
    assert first < 12, "pauses double"
    assert max(later) <= 2, "up to a second"


def test_an_answer_that_took_longer_once_is_forgotten() -> None:
    waits = Waits()
    waits.ask(comes_after=1)
    for _ in range(5):
        waits.now += PAUSE_SECONDS_MAX
        waits.ask(comes_after=1)
        waits.ask(comes_after=math.inf)
        assert not waits.ask(comes_after=1), "a pause"
        waits.now += PAUSE_SECONDS_MAX
        waits.ask(comes_after=1)
        assert all(waits.ask(comes_after=1) for _ in range(200))
    waits.ask(comes_after=math.inf)
    waits.now += PAUSE_SECONDS
    waits.ask(comes_after=1)
    assert waits.ask(comes_after=1), "the pause is as short as the first was"


def test_who_is_kept_from_looking_leaves_the_processor_to_others() -> None:
    waits = Waits()
    waits.ask(comes_after=1)
    waits.now += AGAIN_SECONDS / 10
    assert waits.busy.begin()
    waits.now += 2 * STOLEN_SECONDS
    assert not waits.busy.should_continue()
    assert not waits.ask(comes_after=1)
