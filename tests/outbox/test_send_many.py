"""Many messages of one transaction in few statements."""

from operator import itemgetter
from typing import Any

import pytest
from sqlalchemy import event
from tests.outbox.benches import Bench

from reliable_mq.errors import MessageRefused, UsageError


@pytest.mark.parametrize("payloads", ["order", b"order", {"id": 1}])
def test_one_payload_is_not_taken_for_many(bench: Bench, payloads: Any) -> None:
    with bench.transaction() as tx, pytest.raises(UsageError, match="is one payload"):
        tx.send_many("orders", payloads)


def test_ten_thousand_messages_are_one_commit_and_few_statements(bench: Bench) -> None:
    statements: list[str] = []
    event.listen(
        bench.database.engine,
        "before_cursor_execute",
        lambda _c, _cursor, statement, *_: statements.append(statement),
    )
    payloads = [{"id": number} for number in range(10_000)]

    with bench.transaction() as tx:
        ids = tx.send_many("orders", iter(payloads), tag="paid", key=itemgetter("id"))

    assert bench.handed == ids
    assert len([each for each in statements if each.startswith("INSERT")]) <= 20
    rows = bench.stubs()
    assert [row.message_id for row in rows] == ids  # rows in the order of the payloads
    assert [row.message_key for row in rows] == [str(each["id"]) for each in payloads]
    assert {(row.tag, row.status, row.required_groups) for row in rows} == {("paid", 0, "payments")}


def test_every_option_may_be_a_function_of_the_payload(bench: Bench) -> None:
    options: dict[str, Any] = {
        "tag": itemgetter("tag"),
        "key": itemgetter("id"),
        "ordering_key": lambda order: f"c{order['id']}",
        "properties": lambda order: {"region": order["region"]},
        "message_id": lambda order: str(order["id"]) * 32,
        "required_groups": (),
    }
    orders = [{"id": 1, "tag": "a", "region": "eu"}, {"id": 2, "tag": "b", "region": "us"}]

    with bench.transaction() as tx:
        ids = tx.send_many("orders", orders, **options)

    assert ids == ["1" * 32, "2" * 32]
    assert [(row.tag, row.ordering_key, row.properties) for row in bench.stubs()] == [
        ("a", "c1", '{"region": "eu"}'),
        ("b", "c2", '{"region": "us"}'),
    ]


def test_one_that_is_refused_leaves_none_of_them_and_the_transaction_usable(bench: Bench) -> None:
    with bench.transaction() as tx:
        with pytest.raises(MessageRefused, match="cannot be written as JSON"):
            tx.send_many("orders", [{"id": 1}, {"id": object()}])
        kept = tx.send("orders", {"id": 3})

    assert bench.ids() == [kept]


def test_no_messages_are_no_statement(bench: Bench) -> None:
    with bench.transaction() as tx:
        assert tx.send_many("orders", []) == []

    assert bench.ids() == []


def test_one_id_for_all_is_refused_and_one_that_is_taken_fails_the_transaction(
    bench: Bench,
) -> None:
    one_id: dict[str, Any] = {"message_id": "A" * 32}
    with bench.transaction() as tx:
        with pytest.raises(UsageError, match="message_id must be a function"):
            tx.send_many("orders", [{"id": 1}], **one_id)
        kept = tx.send("orders", {"id": 1}, **one_id)

    def again() -> None:
        with bench.transaction() as tx:
            tx.send_many("orders", [{"id": 1}, {"id": 2}], message_id=lambda order: kept)

    with pytest.raises(MessageRefused, match="stands twice in one call"):
        again()

    assert bench.ids() == [kept]
