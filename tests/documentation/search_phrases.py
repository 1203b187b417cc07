"""What people type for a section that says it in other words, and the sections of each subject.

Receives `docs/search-phrases.toml`, `docs/subjects.toml` and the index of a built site. Writes them
into the index, where `docs/search-worker.js` reads them. Knows nothing of pages.
"""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path

from tests.documentation.staging import DOCS
from tests.documentation.subjects import FOLDER, begun, subjects

PHRASES = DOCS / "search-phrases.toml"
_HEAD = "var __index = "


def phrases() -> dict[str, str]:
    """Return the phrases by the section: its page, and the beginning of its anchor."""
    pages = tomllib.loads(PHRASES.read_text("utf-8"))
    found = {
        f"{page}#{anchor}": text
        for page, anchors in pages.items()
        for anchor, text in anchors.items()
    }
    return found | {f"{FOLDER}/{name}#": str(each["words"]) for name, each in subjects().items()}


def place(places: Iterable[str], section: str) -> str:
    """Return the place in the site that a section means.

    Raises:
        LookupError: no anchor of the page begins so, or several do.
    """
    page, _, beginning = section.partition("#")
    of_page = [
        each.partition("#")[2] for each in places if each.partition("#")[0] == f"{page}.html"
    ]
    found = begun(of_page, beginning)
    if len(found) != 1:
        raise LookupError(f"{section} begins {len(found)} anchors of the site")
    return f"{page}.html#{found[0]}".removesuffix("#")


def write_phrases(site: Path) -> None:
    """Write phrases and subjects into both forms of the index: for a server, and for a folder."""
    index = json.loads((site / "search.json").read_text("utf-8"))
    records = {each["location"]: each for each in index["items"]}
    for section, text in phrases().items():
        records[place(records, section)]["words"] = text
    for name, subject in subjects().items():
        record = records[place(records, f"{FOLDER}/{name}")]
        record["sections"] = [place(records, each) for each in subject["sections"]]
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (site / "search.json").write_text(text, "utf-8")
    (site / "search.js").write_text(f"{_HEAD}{text};", "utf-8")
