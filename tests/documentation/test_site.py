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


SEARCHES = (
    ("exit code 3", "reference/exit_codes.html", 1),
    ("message size", "reference/limits.html", 2),
    ("TLS broker", "how-to/tls.html", 5),
    ("dead letter retry one group", "how-to/dead_letters.html", 1),
    ("order per customer", "how-to/ordering.html", 3),
    ("RELIABLE_MQ_APP", "reference/settings.html", 1),
    ("RELIABLE_MQ_RESEND_COUNT_MAX", "reference/settings.html", 1),
    ("dead_letters_open", "reference/metrics.html", 3),
    ("glosary", "reference/glossary.html", 1),
    ("idempo", "reference/consuming.html", 3),
    ("how do I back up the database", "how-to/backups.html", 5),
    ("kubernetes", "how-to/deployment.html", 3),
    ("run messages again for one group", "how-to/handle_again.html", 3),
    ("handler had a bug handle again", "how-to/handle_again.html", 3),
    ("sqlite production", "how-to/questions_production.html", 2),
    ("move from sqlite to postgresql", "how-to/move_database.html", 3),
    ("pause consumer", "how-to/pause_consumer.html", 1),
    ("queue grows alert", "how-to/on_call.html", 10),
    ("troubleshooting", "how-to/on_call.html", 5),
    ("postgresql failover patroni", "how-to/backups.html", 5),
    ("GDPR", "how-to/personal_data.html", 3),
    ("oom", "explanation/crashes.html", 5),
    ("transaction.on_commit", "how-to/django.html", 3),
    ("delayed message cancel", "how-to/delays.html", 4),
    ("kafka", "how-to/from_brokers.html", 1),
    ("when not to use", "explanation/comparison.html", 3),
    ("report a vulnerability", "explanation/security.html", 2),
    ("autoscale", "how-to/sizing.html", 5),
    ("sslmode", "reference/databases.html", 3),
    ("latency after commit", "how-to/questions.html", 3),
    ("high availability broker", "how-to/replication.html", 3),
    ("table grows nothing removed", "reference/retention.html", 3),
    ("account read only", "how-to/access_control.html", 3),
    ("name server down", "how-to/questions_production.html", 3),
    ("rewind consumer group", "how-to/questions.html", 3),
    ("charged twice after crash", "how-to/questions.html", 3),
    ("retries backoff per handler", "how-to/questions.html", 3),
    ("publish from a consumer", "how-to/questions.html", 3),
    ("messages stuck in outbox", "how-to/questions.html", 3),
    ("rename payload field", "how-to/questions.html", 3),
    ("broker startup time", "how-to/questions_production.html", 3),
    ("api stability", "how-to/questions_production.html", 3),
    ("storage space per message", "how-to/questions_production.html", 3),
    ("sqlite to postgres migration", "how-to/questions_production.html", 3),
    ("rollback to previous version", "how-to/questions_production.html", 3),
    # the words of other systems
    ("visibility timeout", "how-to/from_celery.html", 3),
    ("DLQ redrive", "how-to/dead_letters.html", 3),
    ("partition key", "how-to/questions.html", 1),
    ("prefetch count", "how-to/from_brokers.html", 3),
    ("migrate from rabbitmq pika", "how-to/from_brokers.html", 1),
    ("hello world", "tutorial/first_order.html", 3),
    # texts of errors
    ("ModuleNotFoundError: No module named 'psycopg'", "how-to/error_texts.html", 1),
    ('relation "rmq_message_stub" does not exist', "how-to/error_texts.html", 1),
    ("connection refused 127.0.0.1:9876", "how-to/error_texts.html", 1),
    ("NOAUTH Authentication required", "how-to/error_texts.html", 1),
    ("MissingGreenlet", "how-to/error_texts.html", 1),
    # what people ask whether there is
    ("handler got the same order twice", "how-to/questions_features.html", 1),
    ("check that all orders were processed", "how-to/questions_features.html", 1),
    ("events of the same user on the same worker", "how-to/questions.html", 3),
    ("consumers can not catch up", "how-to/questions_features.html", 3),
    ("message ttl", "how-to/questions_features.html", 3),
    ("multi-tenant one schema per customer", "how-to/questions_production.html", 3),
    ("do not retry on 404", "how-to/questions.html", 3),
    ("flask-sqlalchemy", "how-to/flask.html", 3),
    # names of other tools
    ("gevent", "how-to/questions_names.html", 1),
    ("datadog", "how-to/questions_names.html", 1),
    ("poetry add", "how-to/questions_names.html", 1),
    ("sso oidc console", "how-to/questions_names.html", 3),
    # our own errors, as they appear
    ("An embedded broker is for one process", "how-to/error_texts.html", 1),
    ("shop:app is of type FastAPI, not a ReliableMQ", "how-to/error_texts.html", 3),
    ("without users, the console answers this machine only", "how-to/error_texts.html", 1),
    ("CODE: 17 No topic route info", "how-to/error_texts.html", 1),
    # what people do with it
    ("what is a stub", "reference/glossary.html", 1),
    ("edit the payload of a dead letter", "how-to/questions_operating.html", 1),
    ("peek message without consuming", "how-to/questions_operating.html", 1),
    ("alert when worker is down", "how-to/questions_operating.html", 3),
    ("circular import models", "how-to/questions_patterns.html", 3),
    ("webhook delivery with retries", "how-to/questions_patterns.html", 3),
    ("two services share one database", "how-to/questions_production.html", 3),
    ("how often is a failed message retried", "how-to/questions.html", 3),
    ("how to check task status", "how-to/questions_operating.html", 3),
    ("which ports must the firewall allow", "how-to/questions_production.html", 1),
    ("send 10000 messages in one transaction fast", "how-to/questions_production.html", 1),
    ("use existing RocketMQ cluster 4.9", "how-to/questions_production.html", 1),
    ("pull vs POP which one to choose", "how-to/questions_patterns.html", 1),
    ("transactional inbox pattern", "how-to/questions_patterns.html", 1),
    ("run periodic task manually now", "how-to/questions_patterns.html", 1),
    ("use SQLAlchemy AsyncSession", "how-to/questions_features.html", 1),
    ("consumer returns a value what happens", "how-to/questions_features.html", 1),
    ("rollback inside mq.transaction block", "how-to/own_session.html", 3),
    ("alembic env.py async engine asyncio.run", "how-to/alembic.html", 3),
    ("relay stub could not be sent, the scheduler resends them", "how-to/error_texts.html", 1),
    ("message payload shows id null", "how-to/error_texts.html", 1),
    # what a stranger looked for, and did not find at once
    ("handler calls two services and the second one fails", "how-to/questions_patterns.html", 1),
    ("alembic multiple heads", "how-to/questions_features.html", 1),
    ("uuid primary key instead of integer", "how-to/questions_features.html", 1),
    ("return a result to the caller", "how-to/questions.html", 1),
    ("alert when a message is stuck", "how-to/questions.html", 1),
    ("two data centers", "how-to/questions_production.html", 1),
    ("publish to kafka", "how-to/questions_patterns.html", 1),
    ("message sent but handler never called", "how-to/questions_features.html", 1),
    ("IPv6", "how-to/questions_production.html", 1),
    ("unit test of a service that calls tx.send", "how-to/questions_patterns.html", 1),
    ("circuit breaker for an external api", "how-to/questions_patterns.html", 1),
    ("maximum number of topics", "how-to/questions_operating.html", 1),
    ("secrets from a file or vault", "how-to/questions_features.html", 1),
    ("clock drift between servers", "how-to/questions.html", 1),
    ("batch insert 100000 messages", "how-to/questions_production.html", 3),
    ("should I back up the broker", "how-to/questions_production.html", 1),
    ("switch from the bundled broker to RocketMQ", "how-to/questions_production.html", 1),
    ("connect the debugger to a running worker", "how-to/questions_operating.html", 1),
    ("how to drain a node before shutdown", "how-to/questions_operating.html", 3),
)
"""What people type, the page that they look for, and among how many it must be."""


@pytest.fixture(scope="module")
def found(site: Path) -> dict[str, list[str]]:
    """Give the places that each search finds. All are asked at once: Node reads the index once."""
    queries = [query for query, _, _ in SEARCHES]
    return dict(zip(queries, pages_found(site, *queries), strict=True))


@pytest.mark.parametrize(("query", "page", "among"), SEARCHES)
def test_search_finds_the_page_for_the_words_of_a_user(
    found: dict[str, list[str]], query: str, page: str, among: int
) -> None:
    places = found[query]

    assert page in [each.split("#")[0] for each in places[:among]], places


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
