"""Pages can be read: sentences are short, pages are not long, words say something."""

from pathlib import Path

import pytest
from tests.documentation.prose import LINES_MAX, ROOT, faults, main, pages
from tests.documentation.staging import GENERATED


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_short_sentences_and_no_empty_words(page: Path) -> None:
    assert list(faults(page.read_text())) == []


def test_no_page_of_evidence_and_no_decision_is_long_either() -> None:
    found = {
        page.name: len(page.read_text().splitlines()) for page in (ROOT / "docs").rglob("*.md")
    }
    assert {name: lines for name, lines in found.items() if lines > LINES_MAX} == {}


@pytest.mark.parametrize("place", GENERATED)
def test_what_the_code_says_of_itself_has_short_sentences_as_well(place: str) -> None:
    assert list(faults(GENERATED[place]())) == []


def test_the_readme_has_at_most_a_hundred_and_twenty_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a\n" * 401, "401 lines, at most 400"),
        (f"{'word ' * 21}", "half of the sentences have 21"),
        (f"A. B. C. D. E. F {'word ' * 61}.", "words, at most 35"),
        ("It is simply there.", "'simply' says nothing"),
    ],
)
def test_a_planted_fault_is_found(text: str, fault: str) -> None:
    assert any(fault in each for each in faults(text))


@pytest.mark.parametrize("folder", ["tutorial", "how-to", "reference", "explanation"])
def test_a_page_for_users_names_no_file_of_our_tests(folder: str) -> None:
    """Users have the wheel, not the checkout: a page says what they can do or see."""
    found = [page for page in (ROOT / "docs" / folder).glob("*.md") if "tests/" in page.read_text()]

    assert found == []


def test_code_and_tables_are_no_sentences() -> None:
    text = f"Short.\n\n| {'word ' * 99} |\n\n```\n{'word ' * 99}\n```\n"

    assert list(faults(text)) == []


def test_the_check_of_make_says_nothing_while_all_is_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main() == 0
    assert capsys.readouterr().out == ""
