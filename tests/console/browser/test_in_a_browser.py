"""Every page in a real browser: light and dark, small and large, by keyboard, without scripts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from tests.console.browser.conftest import AHEAD, BEHIND, SCREENSHOTS, SECRET, STORY
from tests.console.planted_rows import ODD

from reliable_mq.console.all_lists import ROW_LISTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.processes]

PAGES = {
    "overview": "/",
    "find": "/find",
    "found": f"/find?q={quote(ODD[:20], safe='')}",
    "message": f"/message?id={STORY}",
    "masked": f"/message?id={SECRET}",
    "behind": f"/message?id={BEHIND}",
    "of-request": "/stubs?correlation_id=request-17",
    "planted": f"/message?id={quote(ODD[:32], safe='')}",
    "wrong": "/stubs?status=lost",
    "nothing": "/stubs?topic=none",
    "not-found": "/none",
    **{each.name: f"/{each.name}" for each in ROW_LISTS},
}
SIZES = {"small": (360, 740), "usual": (1440, 900), "huge": (3840, 2160)}


@contextmanager
def page_of(chromium: "Browser", **options: Any) -> Iterator["Page"]:
    """Open a page, and check at the end that it made no error and left this machine for nothing."""
    context = chromium.new_context(**options)
    page = context.new_page()
    errors: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: hosts.add(request.url.split("/")[2].partition(":")[0]))
    yield page
    context.close()
    assert [each for each in errors if "status of 40" not in each] == []
    assert hosts <= {"127.0.0.1"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_violation_of_accessibility(
    chromium: "Browser", served: str, name: str, scheme: Any, size: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    with page_of(chromium, viewport=viewport, color_scheme=scheme, bypass_csp=True) as page:
        page.goto(served + PAGES[name])
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}-{size}.png", full_page=True)
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
        assert wide <= 0


def test_the_policy_blocks_nothing_that_a_page_needs(chromium: "Browser", served: str) -> None:
    with page_of(chromium) as page:
        for path in PAGES.values():
            page.goto(served + path)
            assert page.locator("h1").count() == 1
            assert page.evaluate("getComputedStyle(document.body).display") == "flex"


def test_a_key_leads_to_the_search_and_enter_to_the_message(
    chromium: "Browser", served: str
) -> None:
    with page_of(chromium) as page:
        page.goto(f"{served}/stubs")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "q"
        page.keyboard.type("order-4711")
        page.keyboard.press("Enter")
        page.wait_for_url("**/message?id=*")
        assert page.locator("h1").inner_text() == STORY
        assert page.locator(".station").count() == 7


def test_a_message_that_waits_leads_to_the_one_before_it(chromium: "Browser", served: str) -> None:
    with page_of(chromium) as page:
        page.goto(f"{served}/message?id={BEHIND}")
        page.get_by_text("waits behind an earlier message").get_by_role("link").click()
        page.wait_for_url(f"**/message?id={AHEAD}")


def test_the_first_tab_leads_past_the_menu(chromium: "Browser", served: str) -> None:
    with page_of(chromium) as page:
        page.goto(f"{served}/stubs")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"


def test_everything_can_be_read_without_scripts(chromium: "Browser", served: str) -> None:
    with page_of(chromium, java_script_enabled=False) as page:
        page.goto(f"{served}/")
        assert "Act now" in page.locator("h1").inner_text()
        page.goto(f"{served}/message?id={STORY}")
        assert "the payment provider timed out" in page.locator("main").inner_text()
        page.goto(f"{served}/stubs")
        page.locator("#f-topic").fill("orders")
        page.get_by_role("button", name="Filter").click()
        assert "topic=orders" in page.url
        assert page.locator("tbody tr").count() > 10


def test_a_filter_is_saved_and_removed_by_its_buttons(chromium: "Browser", served: str) -> None:
    with page_of(chromium, java_script_enabled=False) as page:
        page.goto(f"{served}/stubs?topic=orders")
        page.get_by_text("Save this filter").click()
        page.locator("#save-name").fill("orders of today")
        page.get_by_role("button", name="Save in this browser").click()
        assert page.url.endswith("/stubs?topic=orders")
        page.goto(f"{served}/")
        page.get_by_role("link", name="orders of today").click()
        assert page.url.endswith("/stubs?topic=orders")
        page.get_by_role("button", name="Remove the saved filter orders of today").click()
        assert page.get_by_role("link", name="orders of today").count() == 0


def test_a_page_with_saved_filters_and_a_trace_has_no_violation(
    chromium: "Browser", served: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with page_of(chromium, bypass_csp=True, viewport={"width": 360, "height": 740}) as page:
        page.goto(f"{served}/stubs?topic=orders")
        page.get_by_text("Save this filter").click()
        page.locator("#save-name").fill("orders")
        page.get_by_role("button", name="Save in this browser").click()
        for path in ("/stubs?topic=orders", "/", f"/message?id={STORY}"):
            page.goto(served + path)
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
            assert wide <= 0
        link = page.get_by_role("link", name="4bf92f35")
        assert "traces.example" in str(link.get_attribute("href"))


def test_no_page_has_a_sensitive_value(chromium: "Browser", served: str) -> None:
    with page_of(chromium) as page:
        page.goto(f"{served}/message?id={SECRET}")
        assert "[masked]" in page.locator(".payload").inner_text()
        assert "4111-2222" not in page.content()


def test_the_overview_refreshes_itself(chromium: "Browser", served: str) -> None:
    with page_of(chromium) as page:
        page.clock.install()
        page.goto(f"{served}/")
        with page.expect_response("**/overview/live"):
            page.clock.fast_forward(6_000)
        page.wait_for_function(
            "document.querySelector('[data-live-note]').textContent.includes('again every')"
        )
        assert page.locator("h1").count() == 1
