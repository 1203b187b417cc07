"""Pages of answers and phrases of the search: none of them leads nowhere, none is forgotten."""

import pytest
from tests.documentation.build import SEARCH
from tests.documentation.search_phrases import phrases, place
from tests.documentation.staging import pages, sources
from tests.documentation.subjects import headings, link, subjects

# Not of `pages()`: each process that collects would make all of them.
QUESTIONS = sorted(each for each in sources().values() if each.startswith("how-to/questions"))


@pytest.mark.parametrize("page", QUESTIONS)
def test_each_question_is_listed_under_a_subject(page: str) -> None:
    name = page.removesuffix(".md")
    beginnings = [
        each.partition("#")[2]
        for subject in subjects().values()
        for each in subject["sections"]
        if each.partition("#")[0] == name
    ]
    asked = [
        each for each, title in headings(pages()[page]).items() if each and title.endswith("?")
    ]
    listed = [each for each in asked if each.startswith(tuple(filter(None, beginnings)))]

    assert [each for each in asked if each not in listed] == []


@pytest.mark.parametrize("section", ["how-to/questions#how-do-i", "how-to/questions#nowhere", "no"])
def test_a_section_that_is_none_or_several_is_refused(section: str) -> None:
    with pytest.raises(LookupError, match=section):
        link(section, pages())
    with pytest.raises(LookupError, match=section):
        place(["how-to/questions.html#how-do-i-a", "how-to/questions.html#how-do-i-b"], section)


def test_a_heading_in_code_is_none() -> None:
    text = "# A page\n\n```sh\n# no heading\n```\n\n## `mq.send` and [a link](there.md)\n"

    assert headings(text) == {"": "A page", "mqsend-and-a-link": "`mq.send` and [a link](there.md)"}


def test_phrases_are_lists_of_what_is_typed() -> None:
    for section, text in phrases().items():
        assert all(each.strip() for each in text.split(",")), section
        assert text == text.strip(), section


def test_the_worker_has_no_lookbehind() -> None:
    """Safari before 16.4 would take none of the script."""
    text = SEARCH.read_text("utf-8")

    assert [each for each in ("(?<=", "(?<!") if each in text] == []
