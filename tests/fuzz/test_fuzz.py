"""A few seconds of the fuzzer with fixed numbers, and the proof that it tells of what it finds."""

import time
from random import Random

import pytest
from tests.fuzz import cases
from tests.fuzz.cases import play
from tests.fuzz.targets import TARGETS, Input

CASES = {"broker": 12, "store": 12, "timers": 2}


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found_in_the_first_cases(target: str) -> None:
    for number in range(CASES.get(target, 60)):
        assert not play(target, number)


@pytest.mark.parametrize("fault", ["raises", "hangs", "takes memory"])
def test_a_fault_is_a_finding_that_shows_its_input(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def target(_random: Random, note: Input) -> None:
        note("input", b"abc")
        if fault == "hangs":
            time.sleep(60)
        elif fault == "takes memory":
            assert b"x" * (cases.MEMORY_MAX + 2**20)
            return
        raise LookupError("planted")

    if fault == "hangs":
        monkeypatch.setattr(cases, "SECONDS_MAX", 0.1)
    monkeypatch.setattr(cases, "TARGETS", {"planted": (1, target)})

    found = play("planted", 7)

    assert found.startswith("planted:7 found:")
    assert "input: b'abc'" in found
    error = {"raises": "LookupError", "hangs": "Hang", "takes memory": "bytes of memory"}[fault]
    assert error in found
