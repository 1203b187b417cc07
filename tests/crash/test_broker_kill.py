"""The broker dies under load and comes back: what it acknowledged is there (P3)."""

from pathlib import Path

import pytest
from bench.java_programs import JarsUnreachable, Position, build_client, missing_tools
from bench.kill_broker import kill_repeatedly, violations

KILLS = 4  # the full bar is 20: python -m bench.kill_broker --kills 20


def place(queue_offset: int, number: int) -> Position:
    return Position(0, queue_offset, f"{number:032X}", number)


@pytest.mark.java
@pytest.mark.processes
@pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools()))
def test_every_acknowledged_message_survives_kills_in_order_and_once(tmp_path: Path) -> None:
    try:
        build_client()
    except JarsUnreachable as unreachable:
        pytest.skip(str(unreachable))
    report = kill_repeatedly(tmp_path, KILLS, seed=11)
    assert report.violations == []
    assert report.kills == KILLS
    assert report.stored >= report.acknowledged > 0


def test_a_stored_message_that_was_not_acknowledged_breaks_no_promise() -> None:
    assert violations([place(0, 1)], [place(0, 1), place(1, 2)]) == []


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        ([place(0, 1)], "not in their place"),
        ([place(0, 1), place(1, 3)], "not in their place"),
        ([place(0, 1), place(1, 2), place(2, 2)], "stored twice"),
        ([place(0, 1), place(1, 2), place(3, 4)], "do not follow"),
        ([place(0, 1), place(1, 2), place(2, 5), place(3, 4)], "sent earlier"),
    ],
)
def test_the_comparison_names_what_was_broken(stored: list[Position], complaint: str) -> None:
    acknowledged = [place(0, 1), place(1, 2)]
    assert complaint in "; ".join(violations(acknowledged, stored))
