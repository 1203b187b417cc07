"""The built site: no link is broken, no other host is asked, it fits a phone, search is there."""

import html
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.documentation.build import build
from tests.documentation.deployment_pages import DEPLOY, NOT_PRINTED, ROOT, downloads, place_of
from tests.documentation.html_page import HtmlPage
from tests.documentation.navigation import navigation, places
from tests.documentation.search_later_rounds import LATER_ROUNDS
from tests.documentation.search_rounds import ROUNDS
from tests.documentation.searches import SEARCHES
from tests.documentation.site_search import answers, pages_found
from tests.documentation.staging import DOCS, pages

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, HtmlPage]:
    return {path: HtmlPage(path) for path in sorted(site.rglob("*.html"))}


def test_each_page_is_built(site: Path) -> None:
    wanted = {place.removesuffix(".md") + ".html" for place in pages()}

    assert {place for place in wanted if not (site / place).is_file()} == set()


def test_each_page_is_in_the_navigation_once() -> None:
    staged = pages()
    found = places(navigation(staged))

    assert sorted(found) == sorted(staged)


@cache
def file_at(folder: str, path: str) -> Path | None:
    """Return the file that a link leads to; the pages of a folder have a hundred links alike."""
    target = (Path(folder) / path).resolve()
    target = target / "index.html" if target.is_dir() else target
    return target if target.exists() else None


def fault(page: HtmlPage, link: str, built: dict[Path, HtmlPage], site: Path) -> str | None:
    """Return why a link leads nowhere; None: it leads to a page and its anchor, or to a host."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    is_from_root = page.path.name == "404.html" or parts.path.startswith("/")
    folder = site if is_from_root else page.path.parent
    target = file_at(str(folder), parts.path.lstrip("/")) if parts.path else page.path
    if target is None:
        return f"{page.path.relative_to(site)}: {link}: no such page"
    anchor = unquote(parts.fragment)
    if anchor and target in built and anchor not in built[target].anchors:
        return f"{page.path.relative_to(site)}: {link}: no such anchor"
    return None


def test_each_word_of_the_glossary_has_an_anchor(site: Path, built: dict[Path, HtmlPage]) -> None:
    page = built[site / "reference" / "glossary.html"]
    rows = (DOCS / "reference" / "glossary.md").read_text().count("\n| ") - 1  # without the head

    assert len(page.anchors) >= rows
    assert {"stub", "half-message", "figure", "sample"} <= set(page.anchors)


def test_no_link_is_broken(site: Path, built: dict[Path, HtmlPage]) -> None:
    faults = [fault(page, link, built, site) for page in built.values() for link in page.links]

    assert [each for each in faults if each] == []
    assert len(faults) > len(built)


def test_a_broken_link_is_found(site: Path, built: dict[Path, HtmlPage]) -> None:
    page = built[site / "index.html"]

    assert fault(page, "nowhere.html", built, site) == "index.html: nowhere.html: no such page"
    assert fault(page, "#nowhere", built, site) == "index.html: #nowhere: no such anchor"


def test_no_page_loads_anything_from_another_host(built: dict[Path, HtmlPage], site: Path) -> None:
    loaded = {each for page in built.values() for each in page.resources}
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]

    assert [each for each in loaded if urlsplit(each).netloc] == []
    assert [
        each for text in styles for each in re.findall(r"url\(['\"]?(?:https?:)?//", text)
    ] == []
    assert loaded


def test_each_resource_of_a_page_is_there(built: dict[Path, HtmlPage], site: Path) -> None:
    faults = {fault(page, link, built, site) for page in built.values() for link in page.resources}

    assert faults - {None} == set()


def test_each_page_fits_a_phone(built: dict[Path, HtmlPage]) -> None:
    assert {page.meta.get("viewport", "").split(",")[0] for page in built.values()} == {
        "width=device-width"
    }


def test_each_page_says_its_language_its_title_and_what_it_is(built: dict[Path, HtmlPage]) -> None:
    for path, page in built.items():
        assert page.language == "en", path
        assert len(page.titles) == 1, path
        assert page.headings == 1, path
        assert page.meta.get("description"), path
        assert page.silent_images == [], path
    assert len({page.titles[0] for page in built.values()}) == len(built)


def test_each_file_for_deployment_can_be_loaded_and_is_printed(
    site: Path, built: dict[Path, HtmlPage]
) -> None:
    tracked = {path for path in DEPLOY.rglob("*") if path.is_file() and path.name != "secret.env"}
    folder = site / "reference" / "deployment"
    linked = {
        (page.path.parent / unquote(link)).resolve()
        for page in built.values()
        if page.path.parent == folder
        for link in page.links
    }
    text = html.unescape(
        re.sub("<[^>]+>", "", "".join(path.read_text() for path in folder.glob("*.html")))
    )

    assert tracked <= set(downloads().values())
    for place, path in downloads().items():
        assert (site / place).read_bytes() == path.read_bytes()
        assert (site / place).resolve() in linked, place
        name = path.relative_to(ROOT).as_posix()
        lines = [each.strip() for each in path.read_text().splitlines() if each.strip()]
        assert place_of(name) == place
        if name not in NOT_PRINTED:
            assert [each for each in lines if each not in text] == [], name


def test_code_in_a_table_shows_no_backslash_before_a_bar(site: Path) -> None:
    shown = [path for path in site.rglob("*.html") if "\\|" in path.read_text().split("<pre")[0]]
    text = (site / "reference" / "metrics.html").read_text()

    assert shown == []
    assert "failed&#124;later" in text or "failed|later" in text


def test_search_knows_every_page_without_a_server(site: Path) -> None:
    text = (site / "search.js").read_text("utf-8")  # a script: a page may load it from a file

    shown = {place.removesuffix(".md") + ".html" for place in pages()}
    records = {each for each in shown if each.startswith(("decisions/", "project/changelog"))}
    assert {place for place in shown - records if place not in text} == set()
    assert {place for place in records if f'"location":"{place}' in text} == set()


@pytest.fixture(scope="module")
def found(site: Path) -> dict[str, list[str]]:
    """Give the places that each search finds. All are asked at once: Node reads the index once."""
    queries = [query for query, *_ in (*SEARCHES, *ROUNDS, *LATER_ROUNDS)]
    return dict(zip(queries, pages_found(site, *queries), strict=True))


@pytest.mark.parametrize(("query", "page", "among"), SEARCHES)
def test_search_finds_the_page_for_the_words_of_a_user(
    found: dict[str, list[str]], query: str, page: str, among: int
) -> None:
    places = found[query]

    assert page in [each.split("#")[0] for each in places[:among]], places


@pytest.mark.parametrize(("query", "page"), [*ROUNDS, *LATER_ROUNDS])
def test_search_leads_to_the_answer_of_a_question_in_other_words(
    found: dict[str, list[str]], query: str, page: str
) -> None:
    places = found[query][:3]

    assert page in [each.split("#")[0] for each in places], places
    assert sum(each.startswith("answers/") for each in places) <= 1, places


def test_search_answers_partial_matches_after_full_ones_and_nothing_for_nonsense(
    site: Path,
) -> None:
    partial, nothing, empty, script = pages_found(
        site, "exit codes xyzzyplugh", "xyzzyplugh", "", "<script> $& .* \\ [ ("
    )

    assert partial[0] == "reference/exit_codes.html"
    assert nothing == empty == []
    assert script is not None


def test_search_speaks_the_messages_of_the_theme(site: Path) -> None:
    """A new version of the theme that expects others must be noticed here."""
    ready, result = answers(site, "exit codes")
    (bundle,) = site.glob("assets/javascripts/bundle.*.min.js")
    read = bundle.read_text("utf-8")

    assert ready == {"type": 1}
    assert result["type"] == 3
    data = result["data"]
    assert isinstance(data, dict)
    first = data["items"][0]
    title = next(each for each in first["matches"] if each["field"] == "title")
    shown = title["value"]["highlight"]["ranges"]
    assert shown == [{"start": 0, "end": 4, "value": 4}, {"start": 5, "end": 10, "value": 5}]
    assert data["pagination"]["total"] >= len(data["items"]) == 10
    assert data["pagination"]["next"] == {"id": 0, "size": 10, "from": 10}
    for word in ("postMessage({type:0", "postMessage({type:2", ".pagination.next", ".highlight"):
        assert word in read, word
