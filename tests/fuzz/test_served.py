"""The fuzzer at real servers: some cases of each kind, and the flaws that it must find."""

import pytest
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.flaws import FLAWS
from tests.fuzz.served import play_served

# Cases that take about a second; `make fuzz MINUTES=60` plays others.
CASES = {"topics": 3, "registrations": 2}
FOUND = {
    "answers of any size": (1, {"a remark of"}),
    "registration in one part": (0, {"it does not start"}),
    "a file for each queue": (0, {"a send is refused", "Too many open files"}),
    "numbers without bounds": (2, {"the server ended"}),
    "registrations in one go": (0, {"of a bystander waited"}),
    "half frames are kept": (0, {"MiB of memory"}),
    "groups of any size": (0, {"MiB of memory"}),
}
"""Flaws of the lines 13 to 18, the case that finds each, and as what: one of the words given.

A broker without descriptors refuses a send, or ends when it writes its topics: what comes first is
left to the clock. `make fuzz FLAWS=1` plants all flaws.
"""


@pytest.mark.parametrize("kind", ATTACKS)
def test_nothing_is_found_at_real_servers(kind: str) -> None:
    assert not play_served(kind, CASES.get(kind, 0)).finding


@pytest.mark.parametrize(
    ("kind", "number"), [("fields", 0), ("partial", 0), ("silent", 179588922500000)]
)
def test_nothing_is_found_with_tls_and_access_control(kind: str, number: int) -> None:
    """The rest of the kinds: `make fuzz SECURED=1`."""
    assert not play_served(kind, number, is_secured=True).finding


@pytest.mark.parametrize("flaw", FOUND)
def test_the_fuzzer_finds_what_is_planted(flaw: str) -> None:
    case, as_what = FOUND[flaw]

    finding = play_served(FLAWS[flaw].found_by, case, flaw).finding

    assert any(words in finding for words in as_what), finding


def test_each_line_has_a_flaw_that_is_found() -> None:
    assert {FLAWS[flaw].line for flaw in FOUND} == {flaw.line for flaw in FLAWS.values()}
    assert {flaw.line for flaw in FLAWS.values()} == {13, 14, 15, 16, 17, 18}
