"""Some seconds of the chaos that `make chaos` lets reign for hours."""

from collections import Counter
from collections.abc import Iterable
from itertools import count, islice, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from bench.replica_logs import Copied
from tests.chaos import run as chaos
from tests.chaos.faults import OF_SLAVE, plan
from tests.chaos.judge import Verdict
from tests.chaos.run import Outcome, run
from tests.chaos.stage import Scene

SEED, SECONDS = 20_261_121, 12.0
ORDERS_MIN = 21


@pytest.mark.processes
def test_every_promise_is_kept_while_everything_is_killed_at_random() -> None:
    outcome = run(SEED, SECONDS, Scene(rate=25.0, slaves=1), orders_min=ORDERS_MIN)

    assert outcome.holds, outcome.table()
    assert outcome.copied is not None, outcome.table()
    assert outcome.copied.compared > 0, outcome.table()
    assert outcome.verdict.counts["orders"] >= ORDERS_MIN, outcome.table()
    assert sum(outcome.faults.values()) > 4


def stage_that_is_asked(
    monkeypatch: pytest.MonkeyPatch, question: str, answers: Iterable[int], every: float
) -> Any:
    """Return a stage on which nothing happens; each sleep lasts so many seconds of a made clock."""
    asked = iter(answers)
    moments = count(step=every)
    clock = SimpleNamespace(now=next(moments))
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    monkeypatch.setattr("time.sleep", lambda _: setattr(clock, "now", next(moments)))
    monkeypatch.setattr(chaos, question, lambda _: next(asked))
    return SimpleNamespace(tick=lambda: None, urls=[])


@pytest.mark.parametrize(("left", "rests"), [((9, 5, 5, 1, 1, 0), True), ((9, 5, 5, 5, 5), False)])
def test_a_slow_machine_may_take_its_time_to_rest_as_long_as_it_comes_further(
    monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...], rests: bool
) -> None:
    """Given what is left over, asked for every eighty seconds."""
    stage = stage_that_is_asked(monkeypatch, "left_over", left, every=80.0)

    assert chaos._wait_until_drained(stage) is rests


@pytest.mark.parametrize(("waiting", "is_sent"), [((7, 3, 0), True), (repeat(1), False)])
def test_what_no_broker_has_after_the_bound_is_told(
    monkeypatch: pytest.MonkeyPatch, waiting: Iterable[int], is_sent: bool
) -> None:
    """Given how many stubs wait, asked for every five seconds."""
    stage = stage_that_is_asked(monkeypatch, "unsent", waiting, every=5.0)

    assert (chaos._seconds_until_sent(stage) is not None) is is_sent


@pytest.mark.parametrize("copied", [Copied(9, 1, 0), Copied(9, 0, 1)])
def test_a_slave_that_lacks_a_byte_or_has_another_one_breaks_a_promise(copied: Copied) -> None:
    verdict = Verdict({}, {})
    outcome = Outcome(
        *(1, Scene(1.0, slaves=1), 1.0, verdict, Counter(), Counter()),
        *(0, 1.0, True, 0),
        copied=copied,
    )
    assert not outcome.holds
    assert "P3: bytes of the" in outcome.table()
    assert outcome._replace(copied=Copied(9, 0, 0)).holds


def test_only_a_stage_with_a_slave_has_its_faults() -> None:
    for has_slave in (False, True):
        drawn = islice(plan(7, has_slave=has_slave), 500)
        assert any(each.fault in OF_SLAVE for each in drawn) is has_slave


def test_a_seed_repeats_its_faults() -> None:
    first, second = plan(7), plan(7)

    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]
