"""The columns of a stub's row: who may send it until when, and what a send writes down."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.outbox.benches import Bench
from tests.outbox.test_sql_stubs import AT, Table

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.sql_stubs import ROWS_MAX, SqlStubs, parts_of
from reliable_mq.outbox.sql_unowned import announce
from reliable_mq.outbox.stub import Stub

WRITTEN, LEASE_END = utc_datetime(100.0), utc_datetime(105.0)


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    made = Table(database_url)
    yield made
    made.database.close()


def new(name: str, **columns: Any) -> Stub:
    return Stub(seq=0, message_id=name.ljust(32, "0"), topic="t", content=b"x", **columns)


def written(table: Table, *stubs: Stub, owner: str | None = "me") -> list[Stub]:
    with table.database.engine.begin() as connection:
        return table.stubs.insert(connection, stubs, owner, 100.0, 5.0)


@pytest.mark.parametrize("count", [1, 2])
def test_a_new_stub_is_its_relays_until_the_lease_ends_and_then_the_schedulers(
    table: Table, count: int
) -> None:
    stubs = written(table, *(new(f"{number}") for number in range(count)))
    for stub in stubs:
        row = table.row(stub.message_id)
        assert (row.owner, row.lease_until, row.resend_time) == ("me", LEASE_END, LEASE_END)
        assert (row.create_date, row.update_date) == (WRITTEN, WRITTEN)
        assert (row.status, row._mapping["count"], row.seq) == (0, 0, stub.seq)
        assert (row.broker_name, row.deliver_time, row.missed) == (None, None, False)
        assert stub.create_time == 100.0


@pytest.mark.parametrize("count", [1, 2])
def test_a_new_stub_without_an_owner_has_no_lease(table: Table, count: int) -> None:
    for stub in written(table, *(new(f"{number}") for number in range(count)), owner=None):
        row = table.row(stub.message_id)
        assert (row.owner, row.lease_until, row.resend_time) == (None, None, LEASE_END)


def test_many_stubs_come_back_with_the_numbers_of_their_own_rows(table: Table) -> None:
    stubs = written(table, *(new(f"{number:04}") for number in range(ROWS_MAX + 1)))
    numbers = [stub.seq for stub in stubs]
    assert numbers == sorted(set(numbers))
    assert len(stubs) == ROWS_MAX + 1
    for stub in (stubs[0], stubs[-1]):
        assert table.row(stub.message_id).seq == stub.seq


@pytest.mark.parametrize("count", [0, 1, 3])
def test_rows_are_numbered_in_order_by_a_database_that_does_not_return_their_numbers(
    table: Table, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL is such a database."""
    monkeypatch.setattr(table.database.engine.dialect, "insert_returning", False)
    stubs = written(table, *(new(f"{9 - number}") for number in range(count)))
    assert [table.row(stub.message_id).seq for stub in stubs] == [stub.seq for stub in stubs]
    assert [stub.seq for stub in stubs] == sorted(stub.seq for stub in stubs)
    assert len(stubs) == count


def test_a_statement_has_so_many_rows_and_so_many_bytes_at_most() -> None:
    def sizes(*lengths: int, size_max: int = 10) -> list[list[int]]:
        rows = [{"content": bytes(length)} for length in lengths]
        return [[len(row["content"]) for row in part] for part in parts_of(rows, size_max)]

    assert sizes(4, 6, 1) == [[4, 6], [1]]
    assert sizes(4, 7) == [[4], [7]]
    assert sizes(11, 1, 11) == [[11], [1], [11]], "a large one goes alone"
    assert sizes(0, 0) == [[0, 0]]
    assert sizes() == []
    large = [{"content": bytes(3 * 1024 * 1024)} for _ in range(5)]
    assert [len(part) for part in parts_of(large)] == [2, 2, 1]
    assert [len(part) for part in sizes(*[0] * (2 * ROWS_MAX + 1))] == [ROWS_MAX, ROWS_MAX, 1]


def test_a_stub_that_is_left_to_the_scheduler_is_no_relays(table: Table) -> None:
    first, second = written(table, new("a"), new("b"))
    with table.database.engine.begin() as connection:
        table.stubs.leave_until(connection, {first.seq: 900.0})
    row = table.row(first.message_id)
    assert (row.owner, row.lease_until, row.missed) == (None, None, True)
    assert row.resend_time == utc_datetime(900.0)
    assert table.row(second.message_id).owner == "me"


def test_a_lease_is_renewed_for_unsent_stubs_of_its_owner(table: Table) -> None:
    mine, theirs, other = table.write("mine"), table.write("theirs", owner="them"), table.write("o")
    sent, dead = table.write("sent"), table.write("dead")
    table.set(sent, broker_name="broker-a")
    table.set(dead, given_up=True)
    table.stubs.renew([mine, theirs, sent, dead], "me", 300.0)
    row, later = table.row(mine), utc_datetime(300.0)
    assert (row.lease_until, row.resend_time, row.owner) == (later, later, "me")
    for name in (theirs, other, sent, dead):
        assert table.row(name).lease_until == LEASE_END


def test_more_leases_are_renewed_than_fit_into_one_statement(table: Table) -> None:
    stubs = written(table, *(new(f"{number:04}") for number in range(1_001)))
    table.stubs.renew([stub.message_id for stub in stubs], "me", 300.0)
    rows = [table.row(stub.message_id) for stub in (stubs[0], stubs[999], stubs[1_000])]
    assert {row.lease_until for row in rows} == {utc_datetime(300.0)}


@pytest.mark.parametrize("more", [0, 2])
def test_a_message_that_arrives_at_another_time_says_so_with_the_reason(
    table: Table, more: int
) -> None:
    """A broker without timers rounds a delay up."""
    ids = [table.write(f"{number}") for number in range(more + 1)]
    levelled = SendOutcome(ids[0], 1, 160.0, AT, arrives=1200.0, note="rounded up")
    others = [SendOutcome(each, 1, 160.0, AT) for each in ids[1:]]
    table.stubs.record([*others, levelled], "me", 101.0)
    row = table.row(ids[0])
    assert (row.deliver_time, row.note) == (utc_datetime(1200.0), "rounded up")
    assert (row.broker_name, row.owner, row.update_date) == ("broker-a", None, utc_datetime(101.0))
    for each in ids[1:]:
        assert (table.row(each).deliver_time, table.row(each).note) == (utc_datetime(1000.5), None)


def test_who_lost_the_stub_does_not_change_when_it_arrives(table: Table) -> None:
    theirs = table.write("a", owner="them")
    outcome = SendOutcome(theirs, 1, 160.0, AT, arrives=1200.0, note="rounded up")
    table.stubs.record([outcome], "me", 101.0)
    assert table.row(theirs).deliver_time == utc_datetime(1000.5)


@pytest.mark.parametrize("more", [0, 2])
def test_a_send_that_failed_says_why_and_leaves_a_settled_stub_settled(
    table: Table, more: int
) -> None:
    failed = [table.write(f"{number}") for number in range(more + 1)]
    voided = table.write("voided")
    table.set(voided, status=2)
    outcomes = [SendOutcome(each, 3, 160.0, error="no route") for each in (*failed, voided)]
    table.stubs.record(outcomes, "me", 101.0)
    for each in failed:
        row = table.row(each)
        assert (row.note, row.resend_time, row.owner) == ("no route", utc_datetime(160.0), None)
        assert (row.status, row._mapping["count"], row.lease_until) == (0, 3, None)
    assert (table.row(voided).resend_time, table.row(voided).status) == (None, 2)


@pytest.mark.parametrize(("owner", "announced"), [(None, 2), ("relay", 0)])
def test_only_commits_of_stubs_without_an_owner_are_announced(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, owner: str | None, announced: int
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        "reliable_mq.outbox.sql_outbox.announce", lambda _, table: told.append(table.name)
    )
    bench = Bench(f"sqlite:///{tmp_path}/shop.db", owner=owner)
    with bench.transaction() as tx:
        tx.send("orders", {"id": 1})
        tx.send_many("orders", [{"id": 2}, {"id": 3}])
    assert told == ["rmq_message_stub"] * announced
    bench.database.close()


def test_postgresql_announces_on_the_channel_of_the_table_and_others_do_not(
    tmp_path: Any,
) -> None:
    bench = Bench(f"sqlite:///{tmp_path}/shop.db")
    said: list[Any] = []
    for name in ("postgresql", "sqlite", "mysql"):
        connection: Any = SimpleNamespace(dialect=SimpleNamespace(name=name), execute=said.append)
        announce(connection, bench.database.stubs)
    (statement,) = said
    compiled = statement.compile()
    assert "pg_notify" in str(compiled)
    assert list(compiled.params.values()) == ["rmq_message_stub", ""]
    bench.database.close()


def test_a_stub_of_a_savepoint_that_was_taken_back_is_not_sendable(table: Table) -> None:
    stubs = SqlStubs(table.database.engine, table.database.stubs)
    with table.database.engine.begin() as connection:
        (kept,) = stubs.insert(connection, [new("kept")], "me", 100.0, 5.0)
        savepoint = connection.begin_nested()
        (gone,) = stubs.insert(connection, [new("gone")], "me", 100.0, 5.0)
        savepoint.rollback()
    assert stubs.sendable([kept.message_id, gone.message_id], "me") == {kept.message_id: False}
