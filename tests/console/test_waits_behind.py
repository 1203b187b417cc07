"""The page of a message names the one behind which it waits: an earlier one of its key."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text
from starlette.testclient import TestClient
from tests.console.conftest import Browse
from tests.console.planted_rows import NOW, ODD, insert_rows, log, stub
from tests.console.test_page_plans import READ_MAX, steps_read
from tests.console.test_planted_text import check

from reliable_mq import ReliableMQ

SENT = {"broker_name": "a", "queue_id": 0, "offset": 7}
OPEN = {"state": 0, "consume_date": None, "failure": "no such customer"}
MANY = 20_000
FLOOD = """
INSERT INTO rmq_message_stub (message_id, topic, message_key, ordering_key, content, content_type,
    status, count, resend_time, required_groups, create_date, update_date, broker_name)
SELECT lpad(n::text, 32, '0'), 'orders', '', 'c-1', 'x', '', n % 2, 1, :now, 'billing', :now, :now,
    CASE WHEN n % 4 < 2 THEN 'a' END
FROM generate_series(1, :rows) AS n
"""


def of_key(number: int, **values: Any) -> dict[str, Any]:
    """Return a stub of customer c-1. The rows are inserted in the order of their numbers."""
    return stub(number, **{"ordering_key": "c-1", **SENT, **values})


def waits(client: TestClient, row: dict[str, Any]) -> tuple[str, str]:
    """Return what waits, as the page of a message says it, and the message behind which."""
    page = client.get("/message", params={"id": row["message_id"]}).text
    before, found, link = page.partition(" waits behind an earlier message of its ordering key: ")
    words = html.unescape(re.sub(r"</?bdi>", "", before.rpartition("<p>")[2]))
    return (words, link.partition("/message?id=")[2].partition('"')[0]) if found else ("", "")


def test_the_page_leads_to_the_first_message_that_its_group_has_not_consumed(
    mq: ReliableMQ, browse: Browse
) -> None:
    consumed, first, second, last = (of_key(number) for number in range(1, 5))
    other = of_key(5, ordering_key="c-2")
    insert_rows(mq.database, "message_stub", consumed, first, second, last, other)
    insert_rows(mq.database, "consume_log", log(consumed), log(first, **OPEN))
    client = browse()
    assert waits(client, last) == ("For billing, it", first["message_id"])
    assert waits(client, second) == ("For billing, it", first["message_id"])
    assert waits(client, first) == ("", "")
    assert waits(client, other) == ("", "")


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"status": 1}, {}),
        ({"status": 2}, {}),
        ({"given_up": True, "given_up_by": "billing"}, {}),
        ({"given_up_by": "billing", "required_groups": "billing,stock"}, {}),
        ({"required_groups": "stock"}, {}),
        ({"broker_name": "b"}, {}),
        ({"topic": "other"}, {}),
        ({"deliver_time": NOW}, {}),
        ({}, {"deliver_time": NOW}),
        ({}, {"status": 1}),
        ({}, {"broker_name": None}),
    ],
)
def test_nothing_is_named_that_holds_nobody_up(
    mq: ReliableMQ, browse: Browse, first: dict[str, Any], last: dict[str, Any]
) -> None:
    rows = of_key(1, **first), of_key(2, **last)
    insert_rows(mq.database, "message_stub", *rows)
    assert waits(browse(), rows[1]) == ("", "")


def test_a_message_that_a_group_has_received_waits_for_the_other_groups_only(
    mq: ReliableMQ, browse: Browse
) -> None:
    first, last = (of_key(number, required_groups="billing,stock") for number in (1, 2))
    insert_rows(mq.database, "message_stub", first, last)
    client = browse()
    assert waits(client, last)[0] == "For billing and stock, it"
    insert_rows(mq.database, "consume_log", log(last, **OPEN))
    assert waits(client, last)[0] == "For stock, it"


def test_an_unsent_message_waits_behind_an_unsent_one(mq: ReliableMQ, browse: Browse) -> None:
    sent, first, last = of_key(1), of_key(2, broker_name=None), of_key(3, broker_name=None)
    insert_rows(mq.database, "message_stub", sent, first, last)
    client = browse()
    assert waits(client, last) == ("Its send", first["message_id"])
    assert waits(client, first) == ("", "")


@pytest.mark.parametrize("delayed", [1, 2])
def test_the_send_of_a_message_with_a_delay_waits_and_is_waited_for(
    mq: ReliableMQ, browse: Browse, delayed: int
) -> None:
    first, last = (
        of_key(number, broker_name=None, deliver_time=NOW if number == delayed else None)
        for number in (1, 2)
    )
    insert_rows(mq.database, "message_stub", first, last)
    assert waits(browse(), last) == ("Its send", first["message_id"])


@pytest.fixture
def unordered(mq: ReliableMQ) -> ReliableMQ:
    @mq.consumer("orders", group="stock", ordered=False)
    def count(_order: dict[str, Any]) -> None: ...

    return mq


def test_a_group_that_keeps_no_order_waits_for_none(unordered: ReliableMQ, browse: Browse) -> None:
    first, last = (of_key(number, required_groups="stock") for number in (1, 2))
    insert_rows(unordered.database, "message_stub", first, last)
    assert waits(browse(), last) == ("", "")


@pytest.fixture
def two(postgres_url: str, tmp_path: Path) -> Iterator[ReliableMQ]:
    """Give an application whose group keeps its log in another database than the stubs."""
    made = ReliableMQ(
        "shop",
        databases={"orders": postgres_url, "billing": f"sqlite:///{tmp_path}/billing.db"},
        broker=f"embedded:{tmp_path}/store",
    )
    made.create_tables()
    yield made
    made.close()


def test_logs_in_another_database_are_looked_at(two: ReliableMQ, browse: Browse) -> None:
    first, second, last = (of_key(number) for number in (1, 2, 3))
    insert_rows(two.databases["orders"], "message_stub", first, second, last)
    billing = two.databases["billing"]
    with billing.engine.begin() as connection:
        connection.execute(insert(billing.logs), log(first))
    assert waits(browse(two), last) == ("For billing, it", second["message_id"])


def test_odd_names_are_text(mq: ReliableMQ, browse: Browse) -> None:
    rows = [
        of_key(number, ordering_key=ODD, required_groups=ODD[:40], message_id=f"{number}{ODD}"[:32])
        for number in (1, 2)
    ]
    insert_rows(mq.database, "message_stub", *rows)
    page = browse().get("/message", params={"id": rows[1]["message_id"]}).text
    assert "waits behind" in page
    check(page)


def test_a_long_queue_of_one_key_costs_no_more(mq: ReliableMQ, browse: Browse) -> None:
    with mq.database.engine.begin() as connection:
        connection.execute(text(FLOOD), {"rows": MANY, "now": NOW})
    with mq.database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("VACUUM ANALYZE rmq_message_stub"))
    client = browse()
    for number, ahead in ((MANY - 4, 4), (MANY - 2, 2)):
        with steps_read(mq) as read:
            said = waits(client, {"message_id": f"{number:032d}"})
        assert said[1] == f"{ahead:032d}"
        assert max(read.values()) <= READ_MAX
