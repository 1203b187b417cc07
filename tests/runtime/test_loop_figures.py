"""A scrape returns what the loop noted last, and never waits for the loop."""

import threading
from collections.abc import Iterator

import pytest
from tests.waiting import eventually, run_scene

from reliable_mq.runtime import loop_figures
from reliable_mq.runtime.loop_figures import LoopFigures
from reliable_mq.telemetry.families import Sample

AGE = "reliable_mq_broker_reading_age_seconds"
CONNECTIONS = "reliable_mq_broker_connections"


def test_a_scrape_of_a_loop_that_stands_returns_the_last_figures_and_their_age() -> None:
    """It is a scrape in another thread, while a callback keeps the loop."""
    found: list[dict[str, float]] = []

    async def scene() -> None:
        figures = LoopFigures(lambda: [Sample(CONNECTIONS, 3)], "broker")

        def scrape() -> None:
            found.append({each.name: each.value for each in figures.samples()})

        thread = threading.Thread(target=scrape)
        thread.start()
        thread.join()  # the loop stands until the scrape has ended

    run_scene(scene())
    assert found[0][CONNECTIONS] == 3
    assert found[0][AGE] >= 0


def test_a_bug_keeps_the_last_figures_and_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[int | Exception] = [1, 2, ZeroDivisionError("a bug"), ZeroDivisionError(), 3]

    def take() -> Iterator[Sample]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield Sample(CONNECTIONS, answer)

    async def scene() -> None:
        figures = LoopFigures(take, "broker")
        seen = []
        for _ in range(4):
            figures._note()
            seen.append({each.name: each.value for each in figures.samples()}[CONNECTIONS])
        assert seen == [2, 2, 2, 3]

    run_scene(scene())
    assert [getattr(record, "event", "") for record in caplog.records] == ["figures_failed"]


def test_figures_are_noted_again_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_figures, "NOTED_SECONDS", 0.001)
    takes: list[int] = []

    def take() -> Iterator[Sample]:
        takes.append(1)
        yield Sample(CONNECTIONS, len(takes))

    async def scene() -> None:
        LoopFigures(take, "broker")
        await eventually(lambda: len(takes) > 3)

    run_scene(scene())
