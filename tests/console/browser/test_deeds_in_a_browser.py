"""Work that people start, and a log-in at a provider, in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.console.browser.conftest import SCREENSHOTS, serving
from tests.console.browser.test_in_a_browser import SIZES, page_of
from tests.console.oidc_provider import Provider, settings
from tests.console.planted_rows import insert_rows
from tests.console.test_finding_deeds import RUN, finding, odd_stub, plant

from reliable_mq import Client, Message, ReliableMQ
from reliable_mq.console import console_app
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.testing.local_servers import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.processes]
LOOKS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ReliableMQBroker(tmp_path_factory.mktemp("broker"), "ASYNC_FLUSH") as running:
        with Client(running.name_server_address) as client:
            client.send(Message(topic="old-orders", body=b"1"))
        yield running.name_server_address


@pytest.fixture
def shop(broker: str, postgres_url: str) -> Iterator[ReliableMQ]:
    made = ReliableMQ("shop", database=postgres_url, broker=broker)
    made.topic("orders", groups=["billing"])
    made.create_tables()
    rows = [odd_stub(number) for number in range(1, 4)]
    insert_rows(made.database, "message_stub", *rows)
    plant(made, *(finding(row, Verdict.NOT_SENT) for row in rows))
    yield made
    made.close()


@pytest.fixture
def console(shop: ReliableMQ) -> Iterator[str]:
    with serving(console_app(shop), free_port()) as address:
        yield address


def check(page: "Page", name: str) -> None:
    """Check a page for accessibility, and that it is not wider than the window; keep a picture."""
    from axe_playwright_python.sync_playwright import Axe

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth") <= 0


def test_findings_are_repaired_without_scripts(
    chromium: "Browser", console: str, shop: ReliableMQ
) -> None:
    with page_of(chromium, java_script_enabled=False) as page:
        page.goto(f"{console}/runs")
        page.get_by_role("link", name=RUN).first.click()
        page.get_by_label("all that this filter matches, on all pages").check()
        page.get_by_role("button", name="Repair findings…").click()
        assert "3 messages to send again" in page.locator("main").inner_text()
        page.get_by_label("Reason, for the audit").fill("the outage of yesterday")
        page.get_by_role("button", name="Repair findings: 3").click()
        page.wait_for_url("**/works/*")
        while page.get_by_role("link", name="Refresh").count():
            page.get_by_role("link", name="Refresh").click()
        assert "ended: 3 of 3" in page.locator("main").inner_text()
        page.get_by_role("link", name="audit", exact=True).click()
        assert page.locator("tbody tr").count() == 3


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_the_pages_of_doing_have_no_violation_of_accessibility(
    chromium: "Browser", console: str, size: str, scheme: Any
) -> None:
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    with page_of(chromium, viewport=viewport, color_scheme=scheme, bypass_csp=True) as page:
        page.goto(f"{console}/findings?run={RUN}")
        check(page, f"findings-{scheme}-{size}")
        page.locator("tbody input[type=checkbox]").first.check()
        page.get_by_role("button", name="Void their messages…").click()
        check(page, f"preview-of-findings-{scheme}-{size}")
        page.goto(f"{console}/topics?name=old-orders")
        check(page, f"topics-{scheme}-{size}")
        page.locator("#do-topic").fill("old-orders")
        page.get_by_role("button", name="Delete the topic…").click()
        check(page, f"preview-of-delete-{scheme}-{size}")
        page.get_by_label("Reason, for the audit").fill("nobody needs it")
        page.get_by_label("Type old-orders").fill("orders")
        page.get_by_role("button", name="Delete the topic: 1").click()
        assert "type old-orders" in page.get_by_role("alert").inner_text()
        check(page, f"wrong-name-{scheme}-{size}")
        page.goto(f"{console}/runs")
        page.get_by_role("button", name="Start an increment…").click()
        check(page, f"preview-of-increment-{scheme}-{size}")


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_somebody_logs_in_at_the_provider(
    chromium: "Browser", shop: ReliableMQ, provider: Provider, size: str, scheme: Any
) -> None:
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    port = free_port()
    oidc = settings(provider, public_url=f"http://127.0.0.1:{port}")
    with (
        serving(console_app(shop, oidc=oidc), port) as address,
        page_of(chromium, viewport=viewport, color_scheme=scheme, bypass_csp=True) as page,
    ):
        page.goto(f"{address}/stubs?status=voided")
        check(page, f"log-in-at-a-provider-{scheme}-{size}")
        provider.person = "eve"
        page.get_by_role("link", name="Log in at 127.0.0.1").click()
        assert "you have no role" in page.get_by_role("alert").inner_text()
        check(page, f"log-in-refused-{scheme}-{size}")
        provider.person = "otto"
        page.goto(f"{address}/stubs?status=voided")
        page.get_by_role("link", name="Log in at 127.0.0.1").click()
        page.wait_for_url("**/stubs?status=voided")
        assert "otto" in page.locator("header").inner_text()


def test_the_policy_lets_a_log_in_leave_and_come_back(
    chromium: "Browser", shop: ReliableMQ, provider: Provider, tmp_path: Path
) -> None:
    port = free_port()
    oidc = settings(provider, public_url=f"http://127.0.0.1:{port}")
    with (
        serving(console_app(shop, oidc=oidc), port) as address,
        page_of(chromium, java_script_enabled=False) as page,
    ):
        page.goto(address)
        page.get_by_role("link", name="Log in at 127.0.0.1").click()
        page.wait_for_url(f"{address}/")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/log-in")
