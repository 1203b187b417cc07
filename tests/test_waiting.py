"""The limits of waiting follow what else the machine has to do."""

import asyncio
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import waiting

ROOT = Path(__file__).parents[1]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Let the machine have two processors, and as many processes that want one as the test says."""
    now = {"average": 0.0}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    monkeypatch.setattr(os, "getloadavg", lambda: (now["average"], 0.0, 0.0))
    return now


@pytest.mark.parametrize(
    ("average", "seconds"), [(0.0, 60.0), (2.0, 60.0), (8.0, 240.0), (1000.0, 600.0)]
)
def test_a_limit_grows_with_the_load_up_to_what_a_wait_may_take(
    load: dict[str, float], average: float, seconds: float
) -> None:
    load["average"] = average
    assert waiting.allowed_seconds(60.0) == seconds


def test_a_limit_that_is_longer_than_that_stays(load: dict[str, float]) -> None:
    load["average"] = 8.0
    assert waiting.allowed_seconds(2000.0) == 2000.0


def test_a_wait_goes_on_past_its_limit_while_others_use_the_machine(
    load: dict[str, float],
) -> None:
    load["average"] = 1e6
    looks = iter(range(5))
    waiting.until(lambda: next(looks) == 4, seconds=1e-5, look_seconds=0.0001)


@pytest.mark.parametrize(("took", "pause"), [(0.0, 0.01), (0.02, 0.08), (3.0, 0.2)])
def test_a_look_that_takes_long_is_followed_by_a_longer_pause(
    monkeypatch: pytest.MonkeyPatch, took: float, pause: float
) -> None:
    """Else the looks take the processor from what is waited for."""
    pauses: list[float] = []
    now = [0.0]

    def condition() -> bool:
        now[0] += took
        return len(pauses) == 2

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", pauses.append)
    waiting.until(condition)
    assert pauses == pytest.approx([pause] * 2)


def test_what_a_busy_machine_used_up_of_a_limit_stays_so_when_the_load_falls(
    load: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    load["average"] = 8.0  # four for each processor
    budget = waiting.Budget(60.0)
    now = 200.0
    assert budget.is_left(), "50 seconds are used up"
    load["average"] = 0.0
    assert budget.is_left(), "as much as before"
    now = 209.0
    assert budget.is_left()
    now = 210.0
    assert not budget.is_left()


@pytest.mark.parametrize(
    ("budget_of", "clock_seconds"),
    [
        (lambda: waiting.Budget(60.0), 600.0),
        (lambda: waiting.Budget(700.0), 700.0),
        (lambda: waiting.Budget(180.0, waiting.SCENE_CLOCK_SECONDS_MAX), 780.0),
    ],
)
def test_no_load_lets_a_limit_grow_beyond_what_pytest_gives_a_test(
    load: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    budget_of: Callable[[], waiting.Budget],
    clock_seconds: float,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    load["average"] = 1e6
    budget = budget_of()
    now = clock_seconds - 0.1
    assert budget.is_left()
    now = clock_seconds
    assert not budget.is_left()
    with (ROOT / "pyproject.toml").open("rb") as file:
        pytest_seconds = tomllib.load(file)["tool"]["pytest"]["ini_options"]["timeout"]
    assert clock_seconds <= pytest_seconds - 100


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
        lowered_at = time.monotonic() + 2 * waiting.SCENE_SECONDS_MAX
        await waiting.eventually(lambda: time.monotonic() > lowered_at)
        load["average"] = 0.0
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="the scene has no end"):
        waiting.run_scene(lowered())
    assert load["average"] == 0.0


def test_a_scene_that_is_ended_names_the_waits_that_were_pending_and_how_far_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "SCENE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(waiting, "LIMIT_LOOK_SECONDS", 0.001)
    stored = [1, 2]

    async def scene() -> None:
        with waiting.pending(lambda: "not this, it is over"):
            await asyncio.sleep(0)
        other = asyncio.create_task(waiting.eventually(lambda: len(stored) > 4, lambda: stored))
        with waiting.pending(lambda: f"{len(stored)} of 5 are read"):
            await asyncio.Event().wait()
        await other

    with pytest.raises(TimeoutError) as ended:
        waiting.run_scene(scene())
    said = str(ended.value).partition("pending: ")[2]
    assert "2 of 5 are read" in said
    assert "len(stored) > 4" in said
    assert "but [1, 2]" in said
    assert "it is over" not in said


def test_a_time_out_of_a_scenes_own_stays_as_it_is() -> None:
    async def scene() -> None:
        raise TimeoutError("of the broker")

    with pytest.raises(TimeoutError, match=r"^of the broker$"):
        waiting.run_scene(scene())


async def yes() -> bool:
    return True


def test_an_asynchronous_condition_is_waited_for_on_a_loop_only() -> None:
    with pytest.raises(AssertionError, match="eventually"):
        waiting.until(yes)


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_process_is_run_to_its_end_as_subprocess_does() -> None:
    ended = waiting.run_process(
        python("print(input()); raise SystemExit(3)"), timeout=60, input="a", capture_output=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "a\n", "")
    with pytest.raises(subprocess.CalledProcessError):
        waiting.run_process(python("raise SystemExit(3)"), timeout=60, check=True)


def test_a_process_gets_the_whole_of_an_input_that_it_reads_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "LIMIT_LOOK_SECONDS", 0.001)
    reads = "import sys; print(len(sys.stdin.read()))"
    given = "x" * 4_000_000
    ended = waiting.run_process(python(reads), timeout=60, input=given, capture_output=True)
    assert ended.stdout == "4000000\n"


def test_a_process_goes_on_past_its_limit_while_others_use_the_machine(
    load: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LIMIT_LOOK_SECONDS", 0.001)
    load["average"] = 1e6
    much = "print('x' * 100_000)"
    assert waiting.run_process(python(much), timeout=0.001, capture_output=True).stdout == (
        "x" * 100_000 + "\n"
    )


def test_a_process_without_end_is_killed_and_its_error_shows_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LIMIT_LOOK_SECONDS", 0.01)
    hangs = ["sh", "-c", "echo $$ > pid; echo half done; echo warned >&2; exec tail -f /dev/null"]
    with pytest.raises(waiting.NotEnded) as ended:
        waiting.run_process(hangs, timeout=2, cwd=tmp_path, capture_output=True)
    said = str(ended.value)
    assert said.startswith("no end of ['sh', ")
    assert "not within " in said
    assert said.endswith("half done\n\nwarned\n")
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
