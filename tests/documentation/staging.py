"""The pages of the site: those of docs/, of the root, of examples/, and those made from the code.

Receives the checkout. Returns every page by its place in the site, with links that lead within the
site. Writes nothing.
"""

import html
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path, PurePosixPath

from tests.documentation import (
    api_pages,
    commands_page,
    deployment_pages,
    errors_page,
    extras_page,
    limits_page,
    log_events_page,
    metrics_page,
    options_page,
    settings_page,
    tables_page,
)
from tests.documentation.subjects import answer_pages

from reliable_mq.cli.main import VERBS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OF_THE_ROOT = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "STYLE.md": "project/style.md",
}
GLOSSARY = "reference/glossary.md"
RECORDS = ("decisions/", "project/changelog.md")
"""Pages that a search for how things are does not find: they say how they came to be."""
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_BAR = re.compile(r"`([^`]*\\\|[^`]*)`")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s#]*)(#[^)\s]*)?\)")
_CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"^\| ([^|]+) \|", re.MULTILINE)
_DIAGRAM = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)

GENERATED: Mapping[str, Callable[[], str]] = {
    "reference/settings.md": settings_page.page,
    "reference/client_settings.md": settings_page.client_page,
    "reference/options.md": options_page.page,
    "reference/metrics.md": metrics_page.page,
    "reference/log_events.md": log_events_page.page,
    "reference/errors.md": errors_page.page,
    "reference/tables.md": tables_page.page,
    "reference/exit_codes.md": commands_page.exit_codes_page,
    "reference/limits.md": limits_page.page,
    "reference/extras.md": extras_page.page,
    "reference/commands/index.md": commands_page.index_page,
    **{f"reference/commands/{verb}.md": partial(commands_page.verb_page, verb) for verb in VERBS},
    "reference/api/index.md": api_pages.index_page,
    **{f"reference/api/{name}.md": partial(api_pages.page, name) for name in api_pages.PAGES},
    "reference/deployment/index.md": deployment_pages.index_page,
    **{
        f"reference/deployment/{name}.md": partial(deployment_pages.page, name)
        for name in deployment_pages.PAGES
    },
}
"""A page that is made from the code -> what makes it. None of them lies in docs/."""


def examples() -> list[Path]:
    """Return the folders of examples that are one program each."""
    return sorted(path.parent for path in (ROOT / "examples").glob("*/main.py"))


def sources() -> dict[Path, str]:
    """Return the place in the site of each page of the checkout."""
    found = {path: path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))}
    found |= {ROOT / name: place for name, place in OF_THE_ROOT.items()}
    return found


def _places() -> dict[Path, str]:
    """Return the place of everything that a link may lead to."""
    places = sources() | {ROOT / "README.md": "index.md", ROOT / "examples": "examples/index.md"}
    places |= {DOCS / place: place for place in GENERATED}
    for folder in examples():
        places |= dict.fromkeys((folder, folder / "main.py"), f"examples/{folder.name}.md")
    return places


@cache
def pages() -> Mapping[str, str]:
    """Return the text of each page by its place in the site."""
    places = _places()
    found = {
        place: _with_tables(_within_site(path.read_text(), path, place, places))
        for path, place in sources().items()
    }
    found = {
        place: f"{NOT_SEARCHED}{text}" if place.startswith(RECORDS) else text
        for place, text in found.items()
    }
    found |= {place: make() for place, make in GENERATED.items()}
    found = {place: _with_bars(text) for place, text in found.items()}
    found[GLOSSARY] = _with_anchors(found[GLOSSARY])
    found |= {f"examples/{each.name}.md": _example(each) for each in examples()}
    found["examples/index.md"] = "# Examples\n\nEach is run by the tests.\n\n" + "".join(
        f"- [{_title(each.name)}]({each.name}.md)\n" for each in examples()
    )
    return found | answer_pages(found)


def _within_site(text: str, page: Path, place: str, places: Mapping[Path, str]) -> str:
    """Let the links of a page lead to pages of the site; what is not in it becomes plain text."""

    def mend(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        if target not in places:
            return found[1]
        there = os.path.relpath(places[target], PurePosixPath(place).parent)
        return f"[{found[1]}]({there}{found[3] or ''})"

    return _outside_code(text, lambda prose: _LINK.sub(mend, prose))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    done, at = [], 0
    for block in _CODE_BLOCK.finditer(text):
        done += [change(text[at : block.start()]), block[0]]
        at = block.end()
    return "".join(done) + change(text[at:])


def _with_tables(text: str) -> str:
    """Show each state machine as a table: drawing one in a browser needs a library from outside."""

    def rows(found: re.Match[str]) -> str:
        lines = ["| state | event | next state |", "|---|---|---|"]
        for each in found[1].splitlines():
            before, _, rest = each.strip().partition(" --> ")
            after, _, event = rest.partition(": ")
            lines.append(f"| {before.replace('[*]', '(begin)')} | {event} | {after} |")
        return "\n".join(lines) + "\n"

    return _DIAGRAM.sub(rows, text)


def _with_bars(text: str) -> str:
    """Let code in a cell of a table have a bar: Markdown would show its backslash, too."""

    def as_html(found: re.Match[str]) -> str:
        return f"<code>{html.escape(found[1]).replace(chr(92) + '|', '&#124;')}</code>"

    def mend(prose: str) -> str:
        return "\n".join(
            _BAR.sub(as_html, line) if line.startswith("|") else line for line in prose.split("\n")
        )

    return _outside_code(text, mend)


def _with_anchors(text: str) -> str:
    """Give each word of the glossary an anchor: "half message" has #half-message."""

    def mend(found: re.Match[str]) -> str:
        words = [each.strip().replace(" ", "-") for each in found[1].split(",")]
        anchors = "".join(f'<a id="{word}"></a>' for word in words)
        return f"| {anchors}{found[1]} |"

    head, line, rows = text.partition("|---|---|\n")
    return head + line + _WORD.sub(mend, rows)


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _example(folder: Path) -> str:
    shown = f"examples/{folder.name}"
    return (
        f"# {_title(folder.name)}\n\n`{shown}/main.py` is run by the tests.\n\n"
        f'```python\n--8<-- "{shown}/main.py"\n```\n\n'
        f'It prints:\n\n```text\n--8<-- "{shown}/expected.txt"\n```\n'
    )
