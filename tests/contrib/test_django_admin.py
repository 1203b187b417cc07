"""The admin: rows to read, and two actions that leave an audit with the user's name."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings
from sqlalchemy import insert, select, update
from tests.contrib.django_project import project, set_up

from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.escalate.sql_skip_actions import SkipActions

set_up()

APPS = ("contenttypes", "auth", "sessions", "admin")
STUBS = "/admin/reliable_mq/messagestub/"


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[DjangoMQ]:
    with (
        project(f"sqlite:///{tmp_path / 'shop.db'}", *APPS) as made,
        override_settings(ALLOWED_HOSTS=["testserver"]),
    ):
        yield made


def user(name: str, *permissions: str, **more: Any) -> Client:
    """Return the browser of a person of the staff."""
    from django.contrib.auth.models import Permission, User

    person = User.objects.create_user(name, password="x", is_staff=True, **more)
    for each in permissions:
        person.user_permissions.add(Permission.objects.get(codename=each))
    browser = Client()
    browser.force_login(person)
    return browser


def parked(mq: DjangoMQ) -> tuple[int, str]:
    """Return number and id of a stub that waits for a person."""
    with mq.transaction() as tx:
        message_id = tx.send("orders", {"id": 1}, key="4711")
    stubs = mq.database.stubs
    with mq.database.engine.begin() as connection:
        connection.execute(update(stubs).values(count=9, resend_time=None, owner=None))
        return connection.execute(select(stubs.c.seq)).scalar_one(), message_id


def row(mq: DjangoMQ) -> Any:
    with mq.database.reading_engine.connect() as connection:
        return connection.execute(select(mq.database.stubs)).one()


def audit(mq: DjangoMQ) -> list[tuple[str, str, str, int]]:
    table = mq.database.audit.c
    columns = (table.actor, table.action, table.message_id, table.changed)
    with mq.database.reading_engine.connect() as connection:
        return [tuple(each) for each in connection.execute(select(*columns))]


def told(answer: Any) -> str:
    """Return a page; Django 5.1 has no `text`."""
    return str(answer.content.decode())


def act(browser: Client, action: str, seq: int) -> Any:
    return browser.post(STUBS, {"action": action, "_selected_action": [seq]}, follow=True)


@pytest.mark.parametrize("page", ["messagestub", "consumelog", "escalationrow", "auditrow"])
def test_each_list_is_shown_and_offers_no_change(mq: DjangoMQ, page: str) -> None:
    seq, message_id = parked(mq)
    browser = user("ann", is_superuser=True)

    shown = browser.get(f"/admin/reliable_mq/{page}/?q=4711")

    assert shown.status_code == 200
    assert (message_id in told(shown)) == (page == "messagestub")
    assert browser.get(f"/admin/reliable_mq/{page}/add/").status_code == 403
    if page == "messagestub":
        assert browser.get(f"{STUBS}{seq}/change/").status_code == 200
        assert browser.post(f"{STUBS}{seq}/delete/", {"post": "yes"}).status_code == 403


def test_a_retry_sends_again_and_is_in_the_audit(mq: DjangoMQ) -> None:
    seq, message_id = parked(mq)

    shown = act(user("ann", is_superuser=True), "retry", seq)

    assert "Retry: 1 message(s)" in told(shown)
    assert row(mq).resend_time is not None
    assert audit(mq) == [("ann", "stub retry", message_id, 1)]


def test_an_action_in_the_transaction_of_its_request_waits_for_no_lock(
    mq: DjangoMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given ATOMIC_REQUESTS on SQLite, where a request has the lock of the file."""
    seq, message_id = parked(mq)
    browser = user("ann", is_superuser=True)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    assert "Retry: 1 message(s)" in told(act(browser, "retry", seq))

    assert audit(mq) == [("ann", "stub retry", message_id, 1)]


def test_a_void_is_in_the_audit_and_a_second_one_is_told(mq: DjangoMQ) -> None:
    seq, message_id = parked(mq)
    browser = user("ann", is_superuser=True)

    assert "Void: 1 message(s)" in told(act(browser, "void", seq))
    assert "1 message(s) were left: 1 is VOIDED already" in told(act(browser, "void", seq))

    assert row(mq).status == 2
    assert audit(mq) == [("ann", "stub void", message_id, 1), ("ann", "stub void", message_id, 0)]


def test_who_may_only_look_may_not_act(mq: DjangoMQ) -> None:
    seq, _ = parked(mq)
    browser = user("bob", "view_messagestub")

    assert browser.get(STUBS).status_code == 200
    assert 'value="void"' not in told(browser.get(STUBS))
    act(browser, "void", seq)

    assert row(mq).status == 0
    assert audit(mq) == []


def test_the_permission_to_settle_is_enough(mq: DjangoMQ) -> None:
    seq, message_id = parked(mq)

    act(user("eve", "view_messagestub", "settle_messages"), "void", seq)

    assert audit(mq) == [("eve", "stub void", message_id, 1)]


def test_the_page_of_a_stub_shows_its_payload_and_its_timeline(mq: DjangoMQ) -> None:
    with mq.transaction() as tx:
        tx.send("orders", {"item": "<b>tea</b>"}, key="4711")
    stubs = mq.database.stubs
    with mq.database.engine.begin() as connection:
        number = connection.execute(select(stubs.c.seq)).scalar_one()

    page = user("ann", "view_messagestub").get(f"{STUBS}{number}/change/").content.decode()

    assert "{&quot;item&quot;:&quot;&lt;b&gt;tea&lt;/b&gt;&quot;}" in page
    assert "<b>stub</b> committed: topic orders, key 4711" in page


def test_the_page_of_a_stub_has_no_sensitive_value(mq: DjangoMQ) -> None:
    mq.topic("cards", sensitive=["card_number"])
    with mq.transaction() as tx:
        tx.send("cards", {"card_number": "4111-2222", "n": 7}, required_groups=())
    stubs = mq.database.stubs
    with mq.database.engine.begin() as connection:
        number = connection.execute(select(stubs.c.seq)).scalar_one()

    page = user("ann", "view_messagestub").get(f"{STUBS}{number}/change/").content.decode()

    assert "{&quot;card_number&quot;:&quot;[masked]&quot;,&quot;n&quot;:7}" in page
    assert "4111-2222" not in page


def test_the_list_of_escalations_says_which_are_closed(mq: DjangoMQ) -> None:
    table = mq.database.escalations
    with mq.database.engine.begin() as connection:
        for each in ("open", "done"):
            connection.execute(
                table.insert().values(
                    kind="exhausted",
                    message_id=each,
                    consumer_group="",
                    topic="orders",
                    message_key="",
                    reason=each,
                    create_date=datetime(2026, 11, 28, tzinfo=UTC),
                    close_date=datetime(2026, 11, 28, tzinfo=UTC) if each == "done" else None,
                    close_reason="retry" if each == "done" else None,
                )
            )

    page = user("ann", "view_escalationrow").get("/admin/reliable_mq/escalationrow/").content

    assert page.count(b'class="field-close_reason">retry<') == 1
    assert page.count(b'class="field-close_reason">-<') == 1


def test_a_message_that_a_person_skipped_is_not_called_consumed(mq: DjangoMQ) -> None:
    now = datetime(2026, 11, 28, tzinfo=UTC)
    rows: dict[str, dict[str, Any]] = {
        "none": {"state": 0},
        "done": {"state": 1, "owner": "worker-1", "consume_date": now},
        "copy": {"state": 1, "duplicate_of": "done", "consume_date": now},
        "left": {"state": 0, "owner": "worker-1", "failure": "no such customer"},
    }
    table = mq.database.logs
    with mq.database.engine.begin() as connection:
        for number, (name, values) in enumerate(rows.items()):
            place = {"broker_name": "a", "queue_id": 0, "offset": number, "create_date": now}
            known = {"consumer_group": "billing", "message_id": name, "topic": "orders"}
            connection.execute(insert(table), {**known, **place, "attempt": 1, **values})
    (_,) = SkipActions({"main": mq.database}, "billing", actor="ada", why="refunded").skip(["left"])
    browser = user("ann", "view_consumelog")
    address = "/admin/reliable_mq/consumelog/"

    page = told(browser.get(address))

    assert page.count('class="field-outcome">SKIPPED<') == 1
    assert page.count('class="field-outcome">CONSUMED<') == 2
    assert page.count('class="field-outcome">RECEIVED<') == 1
    assert "skipped by ada: refunded" in page
    for state, found in (("SKIPPED", 1), ("CONSUMED", 2), ("RECEIVED", 1), ("x", 4)):
        chosen = told(browser.get(address, {"state": state}))
        assert chosen.count('class="field-outcome"') == found, state
    one = told(browser.get(f"{address}left/change/"))
    assert "SKIPPED" in one
    assert "CONSUMED" not in one
