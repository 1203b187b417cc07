"""Links between the pages of the project lead somewhere."""

import re
from pathlib import Path

import pytest
from tests.documentation.staging import GENERATED

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("examples/**/*.md")]
MADE = {ROOT / "docs" / place for place in GENERATED}
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def _prose(page: Path) -> str:
    return _CODE_BLOCK.sub("", page.read_text())


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, by GitHub's rule."""
    headings = (re.sub(r"[^\w\- ]", "", each).lower() for each in _HEADING.findall(_prose(page)))
    return {each.strip().replace(" ", "-") for each in headings}


def _fault(page: Path, link: str) -> str | None:
    """Return why a link leads nowhere, None when it leads to a file or to a heading of a page."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if target in MADE:
        return None  # `tests/documentation` examines the built site
    if not target.exists():
        return f"{link}: no such file"
    if anchor and anchor not in _anchors(target):
        return f"{link}: no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    faults = (_fault(page, link) for link in _LINK.findall(_prose(page)))

    assert [fault for fault in faults if fault] == []


def test_a_link_to_no_file_and_a_link_to_no_heading_are_found() -> None:
    page = ROOT / "README.md"

    assert _fault(page, "docs/none.md") == "docs/none.md: no such file"
    outbox = "docs/reference/outbox.md"
    assert _fault(page, f"{outbox}#none") == f"{outbox}#none: no such heading"
    assert _fault(page, f"{outbox}#many-at-once") is None


_INVARIANT = re.compile(r"^\| ((?:[A-Z]\d+ ?)+) \| (`[^|]*) \|", re.MULTILINE)
_SOURCE = ROOT / "src/reliable_mq"


def _source_of(name: str) -> str:
    """Return the text of a module or a folder; a folder of the broker core stands without it."""
    found = next(path for path in (_SOURCE / name, _SOURCE / "broker_core" / name) if path.exists())
    return "".join(
        path.read_text() for path in ([found] if found.is_file() else found.rglob("*.py"))
    )


@pytest.mark.parametrize(("names", "places"), _INVARIANT.findall(_prose(ROOT / "ARCHITECTURE.md")))
def test_an_invariant_has_its_name_where_the_architecture_says_it_is_kept(
    names: str, places: str
) -> None:
    source = "".join(map(_source_of, re.findall(r"`([^`]+)`", places)))
    assert [name for name in names.split() if not re.search(rf"\b{name}\b", source)] == []


def test_no_two_invariants_have_one_name() -> None:
    rows = _INVARIANT.findall(_prose(ROOT / "ARCHITECTURE.md"))
    names = [name for found, _ in rows for name in found.split()]

    assert [name for name in {*names} if names.count(name) > 1] == []
