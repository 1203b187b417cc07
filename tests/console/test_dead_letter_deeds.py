"""Dead letters at a real broker: retried, voided, and sent again as a changed copy."""

import json
from datetime import UTC, datetime

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.console.conftest import visitor
from tests.console.doing_steps import done, ended, field, look, start
from tests.console.planted_rows import ODD, insert_rows, stub
from tests.console.test_doing import acts, states
from tests.console.test_planted_text import check
from tests.waiting import until

from reliable_mq import Client, Message, ReliableMQ
from reliable_mq.client.administering.thread_browser import Browser
from reliable_mq.console import console_app
from reliable_mq.console.deeds_copies import COPY_BYTES_MAX

pytestmark = pytest.mark.processes
RETRY, VOID, COPY = "dead-letter-retry", "dead-letter-void", "dead-letter-copy"


def give_up(broker: str, group: str, body: bytes = b'{"order": 1}', reason: str = "") -> str:
    """Store a dead letter, as a broker does; return its message id."""
    properties = {"RETRY_TOPIC": "orders"} | ({"DEAD_LETTER_REASON": reason} if reason else {})
    with Client(broker) as sender:
        letter = Message(topic=f"%DLQ%{group}", body=body, properties=properties, keys=("o-1",))
        return sender.send(letter).message_id


def copies(broker: str, group: str, message_id: str) -> int:
    """Return how many retries of a message a group has."""
    with Browser(broker) as browser:
        return len(browser.find(f"%RETRY%{group}", message_id))


def test_marked_dead_letters_go_to_their_group_again_once(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    ids = [give_up(broker, group, reason=ODD) for _ in range(3)]
    page = client.get(f"/dead-letters?group={group}")
    assert all(each in page.text for each in ids)
    check(page.text)
    marked = [f"{group} {each}" for each in ids[:2]]
    given_up = datetime.now(UTC)
    first, second = look(client, RETRY, ids=marked), look(client, RETRY, ids=marked)
    assert f"2 of topic orders, group {group}" in first.text
    said = first.text.partition('As it was at <time datetime="')[2].partition('"')[0]
    assert datetime.fromisoformat(said) >= given_up  # not the time of the newest letter
    started = start(client, first)
    assert ended(client, started)["counts"]["done"] == 2
    number = started.headers["location"].rpartition("/")[2]
    assert len(client.get(f"/audit?work={number}&format=json").json()) == 2
    until(lambda: [copies(broker, group, each) for each in ids] == [1, 1, 0])
    counts = ended(client, start(client, second))["counts"]  # the other person's preview
    assert counts == {"done": 0, "changed since the preview": 2, "refused": 0}
    assert [copies(broker, group, each) for each in ids] == [1, 1, 0]
    assert [act[1:3] for act in acts(shop)] == [("dlq retry", 1)] * 2
    assert look(client, RETRY, ids=marked).status_code == 409


def test_all_that_match_are_retried_in_parts(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    ids = [give_up(broker, group) for _ in range(5)]
    preview = look(client, RETRY, query={"group": group})
    late = give_up(broker, group)
    found = ended(client, start(client, preview, rate="200"))
    assert found["counts"]["done"] == 5
    until(lambda: sum(copies(broker, group, each) for each in ids) == 5)
    assert copies(broker, group, late) == 0
    rows = client.get(f"/dead-letters?group={group}&format=json").json()
    assert [row["message_id"] for row in rows] == [late]
    assert len(acts(shop)) == 5


def test_the_stubs_of_dead_letters_are_voided(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    ids = [give_up(broker, group) for _ in range(2)]
    insert_rows(shop.database, "message_stub", stub(1, message_id=ids[0], resend_time=None))
    assert done(client, VOID, query={"group": group}) == {"done": 1}
    assert states(shop) == {ids[0]: (2, 1)}
    rows = client.get(f"/dead-letters?group={group}&format=json").json()
    assert [row["message_id"] for row in rows] == [ids[1]]
    assert look(client, VOID, query={"group": group}).status_code == 409


def test_a_changed_copy_is_a_message_of_its_own_with_its_audit(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    letter = give_up(broker, group, b'{"amount": "ten"}', ODD)
    page = client.get("/dead-letters/copy", params={"group": group, "id": letter})
    check(page.text)
    assert "{&#34;amount&#34;: &#34;ten&#34;}" in page.text
    more = {name: field(page.text, f"more-{name}") for name in ("group", "id")}
    preview = look(client, COPY, more=more | {"body": '{"amount": 10}'})
    assert "Every group that reads the topic gets the copy" in preview.text
    started = start(client, preview)
    assert ended(client, started)["counts"]["done"] == 1, client.get(
        started.headers["location"]
    ).text
    column = shop.database.stubs.c
    with shop.database.engine.connect() as connection:
        wanted = select(column.message_id, column.content, column.message_key, column.properties)
        row = connection.execute(wanted).one()
    assert bytes(row.content) == b'{"amount": 10}'
    assert row.message_key == "o-1"
    assert json.loads(row.properties)["copy_of"] == letter
    assert row.message_id != letter
    ((_, action, changed, number),) = acts(shop)
    assert (action, changed) == ("dlq copy", 1)
    assert number
    other = visitor(console_app(shop, secret="shared"))
    sealed = {"sealed": field(preview.text, "sealed"), "why": "again", "rate": "1"}
    again = other.post(
        "/do/start", data=sealed | {"token": field(other.get("/topics").text, "token")}
    )
    assert ended(other, again)["counts"]["changed since the preview"] == 1
    assert len(states(shop)) == 1


def test_a_person_changes_a_copy_without_seeing_what_is_sensitive(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    shop.topic("orders", sensitive=["card_number"])
    letter = give_up(broker, group, b'{"amount": "ten", "card_number": "4111-2222"}')
    page = client.get("/dead-letters/copy", params={"group": group, "id": letter})
    assert "Leave <code>[masked]</code> where it is" in page.text
    more = {name: field(page.text, f"more-{name}") for name in ("group", "id")}
    wrong = look(client, COPY, more=more | {"body": '{"note": "[masked]"}'})
    assert wrong.status_code == 409
    assert "[masked] is at note, where the first payload has no value" in wrong.text
    assert "{&#34;note&#34;: &#34;[masked]&#34;}</textarea>" in wrong.text  # nothing is lost
    assert {name: field(wrong.text, f"more-{name}") for name in more} == more
    for value, said in (("[masked]", "the same"), ("4111-2222", "a changed"), ("1", "a changed")):
        guess = f'{{"amount": "ten", "card_number": "{value}"}}'
        told = look(client, COPY, more=more | {"body": guess})
        assert f"with {said} payload, {len(guess)} bytes" in told.text
    body = '{"amount": 10, "card_number": "[masked]"}'
    preview = look(client, COPY, more=more | {"body": body})
    assert f"with a changed payload, {len(body)} bytes" in preview.text
    started = start(client, preview)
    assert ended(client, started)["counts"]["done"] == 1
    with shop.database.engine.connect() as connection:
        content = connection.execute(select(shop.database.stubs.c.content)).scalar_one()
    assert bytes(content) == b'{"amount": 10, "card_number": "4111-2222"}'
    (copy,) = states(shop)
    shown = [page, wrong, preview, client.get(started.headers["location"])]
    shown += [client.get(f"/message?id={each}") for each in (letter, copy)]
    lists = ("audit", "dead-letters", "dead-letters?format=csv")
    shown += [client.get(f"/{each}") for each in lists]
    assert [answer.url for answer in shown if "4111-2222" in answer.text] == []


def test_a_copy_of_what_cannot_be_looked_into_is_refused(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    shop.topic("orders", sensitive=["card_number"])
    letter = give_up(broker, group, b"card_number=4111-2222")
    page = client.get("/dead-letters/copy", params={"group": group, "id": letter})
    assert page.status_code == 404
    assert "Deliver the dead letter again as it is" in page.text
    assert "4111-2222" not in page.text


@pytest.mark.parametrize("body", [b"\xff\x00", b"\xed\xa0\x80"])
def test_a_payload_that_is_no_text_is_not_changed_in_a_form(
    broker: str, group: str, client: TestClient, body: bytes
) -> None:
    letter = give_up(broker, group, body)
    page = client.get("/dead-letters/copy", params={"group": group, "id": letter})
    assert page.status_code == 404
    assert "its payload is no text" in page.text
    answer = look(client, COPY, more={"group": group, "id": letter, "body": "x"})
    assert answer.status_code == 409
    assert client.get("/dead-letters/copy", params={"group": ODD, "id": ODD}).status_code == 404
    assert client.get("/dead-letters/copy?group=g&id=%00").status_code == 400


def test_a_payload_that_no_form_can_send_back_is_not_changed(
    broker: str, group: str, client: TestClient
) -> None:
    long = give_up(broker, group, b"x" * (COPY_BYTES_MAX + 1))
    page = client.get("/dead-letters/copy", params={"group": group, "id": long})
    assert page.status_code == 404
    assert "its payload has 262,145 bytes, and a form changes 262,144 at most" in page.text
    assert len(page.text) < 20_000
    answer = look(client, COPY, more={"group": group, "id": long, "body": "x"})
    assert answer.status_code == 409
    # Of the longest one, each character is three in a form, and two in the preview.
    longest = give_up(broker, group, b'"' * COPY_BYTES_MAX)
    more = {"group": group, "id": longest, "body": '"' * (COPY_BYTES_MAX - 1) + "x"}
    place = {name: more[name] for name in ("group", "id")}
    assert client.get("/dead-letters/copy", params=place).status_code == 200
    preview = look(client, COPY, more=more)
    assert ended(client, start(client, preview))["counts"]["done"] == 1
