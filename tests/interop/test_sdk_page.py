"""The page of the official clients has each story at each endpoint, and each of them holds."""

from pathlib import Path

from tests.interop.sdk_page import PAGE, outcomes, page, stories, table, versions
from tests.interop.sdk_servers import ENDPOINTS
from tests.interop.test_official_clients import LANGUAGES, OWN_LIMITS

REPORT = """<testsuites><testsuite>
<testcase name="{name}[apache-go]"/>
<testcase name="{name}[proxy-go]"><failure message="no"/></testcase>
<testcase name="{name}[ours-node]"><skipped message="no npm"/></testcase>
<testcase name="test_of_something_else[apache-go]"/>
</testsuite></testsuites>"""


def test_the_page_has_a_row_for_each_story_and_client() -> None:
    text = PAGE.read_text()
    rows = [each for each in text.splitlines() if each.startswith("| ")][1:]
    assert len(rows) == len(stories()) * len(LANGUAGES)
    for name in stories().values():
        assert f"| {name} |" in text
    for version in versions().values():
        assert version in text


def test_each_story_holds_at_each_endpoint() -> None:
    cells = " | ".join(["holds"] * len(ENDPOINTS))
    assert PAGE.read_text().count(f"| {cells} |") == len(stories()) * len(LANGUAGES)


def test_a_report_becomes_a_table(tmp_path: Path) -> None:
    name = next(iter(OWN_LIMITS))[0]
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format(name=name))
    found = outcomes([report])
    assert found == {
        (name, "apache", "go"): "holds",
        (name, "proxy", "go"): "**fails**",
        (name, "ours", "node"): "not tried",
    }
    (row,) = [each for each in table(found) if "Go 5" in each and "**fails**" in each]
    assert row.endswith("| holds | **fails** | not tried |")
    assert "[2]" in row  # what this client does by itself
    assert page(found, "2026-11-29").endswith("was seen.\n")
