"""Some seconds of the chaos that `make chaos` lets reign for hours."""

import pytest
from tests.chaos.faults import plan
from tests.chaos.run import run

SEED, SECONDS = 20_261_121, 12.0


@pytest.mark.processes
def test_every_promise_is_kept_while_everything_is_killed_at_random() -> None:
    outcome = run(SEED, SECONDS, rate=25.0)

    assert outcome.holds, outcome.table()
    assert outcome.verdict.counts["orders"] > 20
    assert sum(outcome.faults.values()) > 4


def test_a_seed_repeats_its_faults() -> None:
    first, second = plan(7), plan(7)

    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]
