"""How long a life may take is said once."""

import os
import time

import pytest
from tests.crash_matrix.roles import CLOSING_SECONDS_MAX, LIFE_SECONDS_MAX, Life, wait


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Let the machine have two processors, and as many processes that want one as the test says."""
    now = {"average": 0.0}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (now["average"], 0.0, 0.0))
    monkeypatch.setattr(Life, "ends_at", Life.ends_at)
    return now


@pytest.mark.parametrize(("before", "after"), [(4.0, 0.0), (4.0, 40.0)])
def test_all_limits_of_a_life_come_from_the_load_at_its_begin(
    load: dict[str, float], monkeypatch: pytest.MonkeyPatch, before: float, after: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    load["average"] = before
    Life.begin()
    load["average"] = after
    assert Life.seconds_left() == 2 * LIFE_SECONDS_MAX
    asked = []

    def is_there() -> bool:
        nonlocal now
        now += LIFE_SECONDS_MAX / 2
        asked.append(now)
        return False

    with pytest.raises(TimeoutError):
        wait(is_there)
    assert len(asked) == 5
    assert Life.seconds_left() == 0.0
    now = Life.ends_at
    assert Life.seconds_left(CLOSING_SECONDS_MAX) == CLOSING_SECONDS_MAX
