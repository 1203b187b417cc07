"""The totals of memory for all connections are those that the docs state."""

from pathlib import Path

import pytest

from reliable_mq import limits

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "broker.md"
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("incomplete frames", "RECEIVED_SIZE_MAX"),
        ("unread answers", "UNSENT_SIZE_MAX"),
    ],
)
def test_a_total_is_the_one_that_the_docs_state(what: str, name: str) -> None:
    (row,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| {what}")]
    assert row.split("|")[2].strip() == f"{getattr(limits, name) // MIB} MiB"
