"""The pages "Answers": for each subject, the sections of the site that answer something about it.

Receives `docs/subjects.toml` and the pages of the site. Returns a page for each subject. The search
shows the best of them among its first three results, so an answer in other words is one click away.
"""

import posixpath
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

SUBJECTS = Path(__file__).parents[2] / "docs" / "subjects.toml"
FOLDER = "answers"
_CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) (.+?)(?: #+)?$", re.MULTILINE)


@cache
def subjects() -> Mapping[str, dict[str, str | list[str]]]:
    """Return the title, words and sections of each subject, by the name of its page."""
    return tomllib.loads(SUBJECTS.read_text("utf-8"))


def anchor_of(heading: str) -> str:
    """Return the anchor that the site gives a heading; a broken link would show a difference."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@cache
def headings(page: str) -> Mapping[str, str]:
    """Return the headings of a page by their anchors; "" is that of the page itself."""
    found: dict[str, str] = {}
    for marks, title in _HEADING.findall(_CODE_BLOCK.sub("", page)):
        shown = re.sub(r"[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title))
        anchor = "" if len(marks) == 1 else anchor_of(shown)
        found.setdefault(anchor, title)
    return found


def begun(anchors: Iterable[str], beginning: str) -> list[str]:
    """Return which of these anchors a beginning means: one, unless it is wrong."""
    exact = [each for each in anchors if each == beginning]
    return exact or [each for each in anchors if beginning and each.startswith(beginning)]


def link(section: str, pages: Mapping[str, str]) -> str:
    """Return a link to a section, which is named by its page and the beginning of its anchor.

    Raises:
        LookupError: no section begins so, or several do.
    """
    name, _, beginning = section.partition("#")
    place = f"{name}.md"
    of_page = headings(pages[place]) if place in pages else {}
    found = begun(of_page, beginning)
    if len(found) != 1:
        raise LookupError(f"{SUBJECTS.name}: {section} begins {len(found)} headings")
    target = posixpath.relpath(place, FOLDER) + (f"#{found[0]}" if found[0] else "")
    title = of_page[found[0]]
    is_question = title.endswith("?") or "questions" in name or name.endswith("error_texts")
    shown = title if is_question or not found[0] else f"{of_page['']}: {title}"
    return f"[{re.sub(r'[][]', '', shown)}]({target})"


def page(name: str, pages: Mapping[str, str]) -> str:
    """Return the page of a subject."""
    subject = subjects()[name]
    links = "\n".join(f"- {link(each, pages)}" for each in subject["sections"])
    return f"# Answers: {subject['title']}\n\nEach line leads to an answer.\n\n{links}\n"


def index_page() -> str:
    """Return the page that leads to the subjects."""
    links = "\n".join(f"- [{each['title']}]({name}.md)" for name, each in subjects().items())
    return f"# Answers by subject\n\nEach page lists what is answered about a subject.\n\n{links}\n"


def answer_pages(pages: Mapping[str, str]) -> dict[str, str]:
    """Return all these pages by their places in the site."""
    made = {f"{FOLDER}/{name}.md": page(name, pages) for name in subjects()}
    return {f"{FOLDER}/index.md": index_page()} | made
