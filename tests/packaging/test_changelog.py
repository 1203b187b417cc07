"""The change log has the form of Keep a Changelog, which readers and release tools know."""

import re
from pathlib import Path

LINES = (Path(__file__).parents[2] / "CHANGELOG.md").read_text().splitlines()
RELEASE = re.compile(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}")
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def test_what_is_not_released_stands_under_one_heading_above_all_releases() -> None:
    first, *others = [line for line in LINES if line.startswith("## ")]

    assert first == "## [Unreleased]"
    assert [line for line in others if not RELEASE.fullmatch(line)] == []


def test_each_kind_of_change_has_one_heading_in_each_release() -> None:
    kinds: list[str] = []
    for line in LINES:
        if line.startswith("## "):
            kinds = []
        if line.startswith("### "):
            kinds.append(line.removeprefix("### "))
            assert kinds.count(kinds[-1]) == 1, line
            assert kinds[-1] in KINDS
