"""Every deed of the console in a real browser: its list, its preview, its work to the end.

Each page on the way is checked for accessibility, light and dark, small and large.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.console.browser.conftest import serving
from tests.console.browser.test_deeds_in_a_browser import check
from tests.console.browser.test_in_a_browser import SIZES, page_of
from tests.console.planted_rows import insert_rows, log, stub
from tests.console.test_dead_letter_deeds import give_up
from tests.console.test_delete_deeds import filled
from tests.console.test_doing import acts, parked
from tests.console.test_finding_deeds import RUN, finding, odd_stub, plant
from tests.console.test_guard import PASSWORD
from tests.console.test_increment_deed import says

from reliable_mq import Client, ReliableMQ
from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.console import console_app, deeds_increment
from reliable_mq.console.all_deeds import DEEDS
from reliable_mq.console.users import Role, add_user
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.testing.local_servers import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.processes]
LOOKS = [("small", "dark"), ("huge", "light")]


class Way(NamedTuple):
    """How a person comes to a deed: the page, what they fill in by its label, what they mark."""

    path: str
    fields: Mapping[str, str] = MappingProxyType({})
    marks_all: bool = False
    types: str = ""


WAYS = {
    "stub-retry": Way("/stubs?escalated=yes", marks_all=True),
    "stub-void": Way("/stubs?escalated=yes", marks_all=True),
    "attempt-skip": Way("/consume-logs?group=stock", marks_all=True),
    "dead-letter-retry": Way("/dead-letters?group={group}", marks_all=True),
    "dead-letter-void": Way("/dead-letters?group={group}", marks_all=True),
    "dead-letter-copy": Way("/dead-letters?group={group}"),
    "finding-repair": Way(f"/findings?run={RUN}", marks_all=True),
    "finding-void": Way(f"/findings?run={RUN}", marks_all=True),
    "increment-start": Way("/runs"),
    "topic-pause": Way("/topics", {"Topic": "orders"}),
    "topic-resume": Way("/topics", {"Topic": "orders"}),
    "topic-delete": Way("/topics", {"Topic": "{topic}"}, types="{topic}"),
    "group-pause": Way("/queues?group={group}"),
    "group-resume": Way("/queues?group={group}"),
    "group-reset": Way(
        "/queues?group={group}", {"Topic to reset": "{topic}", "Read again from": "end"}
    ),
    "group-delete": Way("/queues?group={group}", types="{group}"),
}


@pytest.fixture
def console(shop: ReliableMQ, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Give the address of a console, whose increments are a short program."""
    program = tmp_path / "increment.py"
    says(program, code=0)
    monkeypatch.setattr(deeds_increment, "COMMAND", (sys.executable, str(program)))
    with serving(console_app(shop), free_port()) as address:
        yield address


@pytest.fixture
def names(shop: ReliableMQ, broker: str, group: str) -> dict[str, str]:
    """Plant what each deed is for; return the names of a topic and a group."""
    topic = filled(broker, group)
    letter = give_up(broker, group, reason="ValueError: no such customer")
    rows = [parked(1), odd_stub(2), stub(3, message_id=letter, resend_time=None)]
    insert_rows(shop.database, "message_stub", *rows)
    plant(shop, finding(rows[1], Verdict.NOT_SENT))
    failed = log(rows[2], consumer_group="stock", state=0, consume_date=None, failure="no stock")
    insert_rows(shop.database, "consume_log", failed)
    return {"topic": topic, "group": group}


def prepare(deed: str, shop: ReliableMQ, broker: str, group: str) -> None:
    """Do what must be done before a deed makes sense."""
    if deed == "topic-resume":
        shop.resending.pause("orders", by="ada", note="the bank is away")
    if deed == "group-resume":
        with Client(broker) as client:
            client.admin.groups.update(group, GroupChange(may_consume=False))


def test_no_deed_is_left_out() -> None:
    assert {*WAYS} == {each.name for each in DEEDS}


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
@pytest.mark.parametrize("name", WAYS)
def test_a_deed_is_done_from_its_list_to_its_end(
    chromium: "Browser",
    console: str,
    shop: ReliableMQ,
    broker: str,
    names: dict[str, str],
    name: str,
    size: str,
    scheme: Any,
) -> None:
    way, title = WAYS[name], next(each.title for each in DEEDS if each.name == name)
    prepare(name, shop, broker, names["group"])
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    with page_of(chromium, viewport=viewport, color_scheme=scheme, bypass_csp=True) as page:
        page.goto(console + way.path.format(**names))
        if name == "dead-letter-copy":
            page.get_by_role("link", name="Change and send a copy").click()
            page.get_by_label("Payload").fill('{"order": 2}')
        for label, text in way.fields.items():
            page.locator(".doing").get_by_label(label).fill(text.format(**names))
        if way.marks_all:
            page.get_by_label("all that this filter matches, on all pages").check()
        check(page, f"{name}-form-{scheme}-{size}")
        page.get_by_role("button", name=f"{title}…", exact=True).click()
        check(page, f"{name}-preview-{scheme}-{size}")
        finish(page, way.types.format(**names), title)
        check(page, f"{name}-work-{scheme}-{size}")
    assert acts(shop)


def finish(page: "Page", types: str, title: str) -> None:
    """Go on from a preview to the end of the work; the page of the work refreshes itself."""
    page.get_by_label("Reason, for the audit").fill("the outage of yesterday")
    if types:
        page.get_by_label(f"Type {types}").fill(types)
    page.get_by_role("button", name=f"{title}: ").click()
    page.wait_for_url("**/works/*")
    page.get_by_text("ended: ").wait_for()


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_a_person_logs_in_with_a_password_and_sees_what_the_role_may(
    chromium: "Browser", shop: ReliableMQ, tmp_path: Path, size: str, scheme: Any
) -> None:
    users = tmp_path / "users.json"
    add_user(users, "vera", Role.VIEWER, PASSWORD)
    insert_rows(shop.database, "message_stub", parked(1))
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    with (
        serving(console_app(shop, users=users), free_port()) as address,
        page_of(chromium, viewport=viewport, color_scheme=scheme, bypass_csp=True) as page,
    ):
        page.goto(f"{address}/stubs?escalated=yes")
        for password in ("a wrong password", PASSWORD):
            check(page, f"log-in-{len(password)}-{scheme}-{size}")
            page.get_by_label("User").fill("vera")
            page.get_by_label("Password").fill(password)
            page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/stubs?escalated=yes")
        assert page.locator("tbody tr").count() == 1
        assert page.get_by_role("button", name="Send stubs again…").count() == 0
        check(page, f"stubs-of-a-viewer-{scheme}-{size}")
