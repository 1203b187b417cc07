"""The page that says which stories of official clients hold at which endpoint.

    make sdks                                     plays them, and writes the page
    python -m tests.interop.sdk_page REPORT.xml…  writes it from reports of pytest (--junitxml)

Rows and columns are those of the test: its stories, languages and endpoints.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from bench.rival_servers import RIVALS
from tests.interop.sdk_servers import ENDPOINTS
from tests.interop.test_official_clients import LANGUAGES, NODE_CLIENT, OWN_LIMITS, TestStories

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "official_clients.md"
HEADINGS = {
    "apache": "Apache's proxy and broker, 5.4.0",
    "proxy": "our proxy, Apache's broker",
    "ours": "our broker",
}
NAMES = {"java": "Java", "go": "Go", "python": "Python", "node": "Node.js"}
_HEAD = """# Which official clients were tried, and what holds

Apache's official 5.x clients tell the same stories at three endpoints. A story is what an
application does: it sends, receives and compares. It must hold at Apache's own proxy and broker
first. So what a client cannot do by itself is not counted against us.

`make sdks` plays them, and writes this page.
"""
Case = tuple[str, str, str]
"""The name of a test, an endpoint and a language."""


def stories() -> dict[str, str]:
    """Return the names of the tests, and what each says."""
    found = inspect.getmembers(TestStories, inspect.isfunction)
    return {
        name: name.removeprefix("test_").replace("_", " ")
        for name, _ in sorted(found, key=lambda each: each[1].__code__.co_firstlineno)
        if name.startswith("test_")
    }


def versions() -> dict[str, str]:
    """Return the version of each client."""
    go = (ROOT / "tests" / "interop" / "sdk" / "go" / "go.mod").read_text()
    java = (ROOT / "bench" / "java" / "sdk" / "pom.xml").read_text()
    return {
        "java": re.findall(r"<rocketmq.version>(.+?)<", java)[0],
        "go": re.findall(r"rocketmq-clients/golang/v5 v(\S+)", go)[0],
        "python": RIVALS[0].partition("==")[2],
        "node": NODE_CLIENT.partition("@")[2],
    }


def outcomes(reports: Iterable[Path]) -> dict[Case, str]:
    """Return what became of each case in reports of pytest. A later report counts."""
    found: dict[Case, str] = {}
    for path in reports:
        for case in ElementTree.parse(path).iter("testcase"):
            name, _, words = case.attrib["name"].rstrip("]").partition("[")
            endpoint, _, language = words.partition("-")
            if name in stories() and language in LANGUAGES:
                tags = {each.tag for each in case}
                bad = next((each for each in ("error", "failure", "skipped") if each in tags), "")
                found[name, endpoint, language] = {"": "holds", "skipped": "not tried"}.get(
                    bad, "**fails**"
                )
    return found


def table(found: Mapping[Case, str]) -> list[str]:
    """Return the lines of the table: a row for each story and client."""
    rows = [f"| story | client | {' | '.join(HEADINGS[each] for each in ENDPOINTS)} |"]
    rows.append("|---" * (2 + len(ENDPOINTS)) + "|")
    made = versions()
    for name, says in stories().items():
        for number, language in enumerate(sorted(LANGUAGES, key=list(NAMES).index)):
            cells = [found.get((name, each, language), "not tried") for each in ENDPOINTS]
            mark = f" [{_note(name, language)}]" if (name, language) in OWN_LIMITS else ""
            client = f"{NAMES[language]} {made[language]}{mark}"
            rows.append(f"| {'' if number else says} | {client} | {' | '.join(cells)} |")
    return rows


def _note(name: str, language: str) -> int:
    return list(OWN_LIMITS).index((name, language)) + 1


def page(found: Mapping[Case, str], day: str) -> str:
    """Return the page."""
    notes = [f"{number}. {text}" for number, text in enumerate(OWN_LIMITS.values(), 1)]
    lines = [_HEAD, f"Played on {day}.\n", *table(found), "", "What clients do by themselves:", ""]
    return "\n".join([*lines, *notes]) + "\n"


def main(reports: Sequence[str]) -> None:
    """Write the page."""
    found = outcomes(map(Path, reports))
    PAGE.write_text(page(found, f"{datetime.now(UTC):%Y-%m-%d}"))
    print(f"{PAGE}: {len(found)} cases, {sum(each == 'holds' for each in found.values())} hold")


if __name__ == "__main__":
    main(sys.argv[1:])
