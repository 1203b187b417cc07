"""The broker dies under load and comes back: what it acknowledged is there (P3)."""

from pathlib import Path

import pytest
from bench.java_programs import build_client
from bench.kill_broker import kill_repeatedly
from bench.kill_runs import violations
from bench.positions import Position
from tests.with_java import skipped_without_java

KILLS = 3  # the full bar is 20: python -m bench.kill_broker --kills 20


def place(queue_offset: int, number: int) -> Position:
    return Position(0, queue_offset, f"{number:032X}", number)


@pytest.fixture(
    params=[
        pytest.param("java", marks=pytest.mark.java),
        pytest.param("python"),
    ]
)
def client(request: pytest.FixtureRequest) -> str:
    """The client whose load the broker dies under."""
    if request.param == "java":
        with skipped_without_java():
            build_client()
    return str(request.param)


@pytest.mark.processes
def test_every_acknowledged_message_survives_kills_in_order_and_once(
    tmp_path: Path, client: str
) -> None:
    report = kill_repeatedly(tmp_path, KILLS, seed=11, client=client)
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
