"""The limits of waiting follow what else the machine has to do."""

import asyncio
import os

import pytest
from tests import waiting


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Let the machine have two processors, and as many processes that want one as the test says."""
    now = {"average": 0.0}
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (now["average"], 0.0, 0.0))
    return now


@pytest.mark.parametrize(
    ("average", "seconds"), [(0.0, 60.0), (2.0, 60.0), (8.0, 240.0), (1000.0, 840.0)]
)
def test_a_limit_grows_with_the_load_up_to_what_a_test_may_take(
    load: dict[str, float], average: float, seconds: float
) -> None:
    load["average"] = average
    assert waiting.allowed_seconds(60.0) == seconds


def test_a_limit_that_is_longer_than_a_test_stays(load: dict[str, float]) -> None:
    load["average"] = 8.0
    assert waiting.allowed_seconds(2000.0) == 2000.0


def test_a_wait_goes_on_past_its_limit_while_others_use_the_machine(
    load: dict[str, float],
) -> None:
    load["average"] = 1e6
    looks = iter(range(5))
    waiting.until(lambda: next(looks) == 4, seconds=1e-5, look_seconds=0.0001)


def test_a_condition_that_never_comes_is_named_with_the_load(load: dict[str, float]) -> None:
    load["average"] = 1.4
    with pytest.raises(AssertionError, match=r"not within .* s \(load 1 on 2 .*: .*list\(\)"):
        waiting.until(lambda: list(), seconds=0.0)  # noqa: C408, PLW0108


def test_what_can_no_longer_come_is_not_waited_for() -> None:
    with pytest.raises(AssertionError, match="can no longer come"):
        waiting.until(lambda: False, possible=lambda: False)


def test_what_came_just_before_its_end_is_taken() -> None:
    answers = iter([False, True])
    waiting.until(lambda: next(answers), possible=lambda: False)


def test_a_scene_is_ended_at_its_limit_and_not_before_while_the_load_is_high(
    load: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SCENE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(waiting, "LIMIT_LOOK_SECONDS", 0.001)
    load["average"] = 1e6

    async def lowered() -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)
        load["average"] = 0.0
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        waiting.run_scene(lowered())
    assert load["average"] == 0.0
