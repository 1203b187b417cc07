"""The sentences of the pages: `python -m tests.documentation.prose` prints what is wrong with them.

Our own small check, because Vale's package downloads its program at its first run. It counts the
words of sentences, and finds words that promise more than they say.
"""

import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.house.figures import sentences

ROOT = Path(__file__).parents[2]
WORDS_MEDIAN_MAX = 20
WORDS_MAX = 35
LINES_MAX = 400
SPARED = ("CHANGELOG.md", "docs/evidence/", "docs/decisions/")
"""Records and data: they are not rewritten."""
EMPTY_WORDS = re.compile(
    r"\b(simply|obviously|easily|trivially|seamless(?:ly)?|powerful|blazing(?:ly)?"
    r"|effortless(?:ly)?|leverag\w+|utili[sz]e\w*|in order to)\b",
    re.IGNORECASE,
)


def pages() -> list[Path]:
    """Return the pages that people read to use or change the package."""
    found = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    return [each for each in found if not each.relative_to(ROOT).as_posix().startswith(SPARED)]


def faults(text: str) -> Iterator[str]:
    """Yield what is wrong with the text of a page."""
    if (lines := len(text.splitlines())) > LINES_MAX:
        yield f"{lines} lines, at most {LINES_MAX}: divide the page"
    found = sentences(text)
    lengths = [len(each.split()) for each in found]
    if lengths and (median := statistics.median(lengths)) > WORDS_MEDIAN_MAX:
        yield f"half of the sentences have {median:g} words or more, at most {WORDS_MEDIAN_MAX}"
    for each, length in zip(found, lengths, strict=True):
        if length > WORDS_MAX:
            yield f"{length} words, at most {WORDS_MAX}: {' '.join(each.split())[:100]}…"
        for word in EMPTY_WORDS.findall(each):
            yield f"{word!r} says nothing: {' '.join(each.split())[:100]}"


def main() -> int:
    """Print all faults; return the exit code."""
    found = [
        f"{path.relative_to(ROOT)}: {each}" for path in pages() for each in faults(path.read_text())
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
