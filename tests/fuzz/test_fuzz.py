"""A few seconds of the fuzzer with fixed numbers, and the proof that it tells of what it finds."""

import re
import time
from pathlib import Path
from random import Random

import pytest
from tests.fuzz import __main__ as fuzz_main
from tests.fuzz import cases
from tests.fuzz.__main__ import main
from tests.fuzz.cases import play
from tests.fuzz.targets import TARGETS, Input

CASES = {"broker": 12, "store": 12, "timers": 2, "access": 12}


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found_in_the_first_cases(target: str) -> None:
    for number in range(CASES.get(target, 60)):
        assert not play(target, number).finding


@pytest.mark.parametrize("fault", ["raises", "hangs", "works", "takes memory"])
def test_a_fault_is_a_finding_that_shows_its_input(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def target(_random: Random, note: Input) -> None:
        began = time.process_time()
        note("input", b"abc")
        if fault == "hangs":
            while time.process_time() < began + 60:
                pass
        elif fault == "works":
            assert sum(range(10**6))
            return
        elif fault == "takes memory":
            assert b"x" * (cases.MEMORY_MAX + 2**20)
            return
        raise LookupError("planted")

    if fault == "hangs":
        monkeypatch.setattr(cases, "SECONDS_MAX", 0.1)
    if fault == "works":
        monkeypatch.setattr(cases, "CPU_SECONDS_MAX", 0.001)
    monkeypatch.setattr(cases, "TARGETS", {"planted": (1, target)})

    found = play("planted", 7).finding

    assert found.startswith("planted:7 found:")
    assert "input: b'abc'" in found
    errors = {"raises": "LookupError", "hangs": "Hang", "works": "seconds of work"}
    assert errors.get(fault, "bytes of memory") in found


def test_memory_that_an_earlier_case_left_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    size = cases.MEMORY_MAX + 2**22

    def target(random: Random, _note: Input) -> None:
        pieces = [bytearray(1_000) for _ in range(size // 1_000)]  # too small to be given back
        assert pieces

    monkeypatch.setattr(cases, "TARGETS", {"planted": (1, target)})

    for number in range(3):
        assert "bytes of memory" in play("planted", number).finding


def test_memory_that_cannot_be_measured_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "Path", lambda _path: Path("/nowhere"))

    with pytest.raises(cases.Unmeasured):
        play("frames", 0)


def test_the_fuzzer_ends_after_its_minutes_though_rounds_are_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six hundred rounds fit into its time as stated, and each takes longer."""
    monkeypatch.setattr(fuzz_main, "_ROUND_SECONDS", 0.001)
    arguments = ["--minutes", "0.01", "--jobs", "1", "--target", "store"]
    monkeypatch.setattr("sys.argv", ["fuzz", *arguments])

    assert main() == 0

    told = capsys.readouterr().out
    found = re.search(r"^(\d+) cases in .* nothing found$", told, re.MULTILINE)
    assert found is not None
    assert 0 < int(found[1]) < 600


def test_the_last_lines_say_what_was_done_with_each_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--minutes", "0.03", "--jobs", "1", "--start", "1", "--target", "frames"]
    monkeypatch.setattr("sys.argv", ["fuzz", *arguments])

    assert main() == 0

    told = capsys.readouterr().out
    assert re.search(
        r"^frames +\d+ cases +[\d.]+ s .* MiB at most \(CASE=frames:\d+\)", told, re.MULTILINE
    )
    assert re.search(r"^\d+ cases in .* nothing found$", told, re.MULTILINE)
