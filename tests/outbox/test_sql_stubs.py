"""What the relay and the scheduler read and write in the table of stubs; on both databases."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Row, select, update

from reliable_mq.app.sql_database import Database
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.sql_stubs import SqlStubs, stub_of
from reliable_mq.outbox.stub import Position, Stub
from reliable_mq.sql_types import utc_datetime

AT = Position("broker-a", 2, 41)


class Table:
    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=2)
        self.database.create_tables()
        self.stubs = SqlStubs(self.database.engine, self.database.stubs)

    def write(self, name: str, *, key: str = "", owner: str = "me", groups: str = "g") -> str:
        stub = Stub(
            seq=0,
            message_id=name.ljust(32, "0"),
            topic="t",
            content=b"\x00body",
            ordering_key=key,
            properties={"region": "eu"},
            required_groups=(groups,) if groups else (),
            deliver_time=1000.5,
        )
        with self.database.engine.begin() as connection:
            self.stubs.write(connection, [stub], owner, 100.0, 5.0)
        return stub.message_id

    def row(self, message_id: str) -> Row[tuple[object, ...]]:
        table = self.database.stubs
        with self.database.engine.begin() as connection:
            return connection.execute(select(table).where(table.c.message_id == message_id)).one()

    def set(self, message_id: str, **values: object) -> None:
        table = self.database.stubs
        with self.database.engine.begin() as connection:
            connection.execute(
                update(table).where(table.c.message_id == message_id).values(**values)
            )


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    made = Table(database_url)
    yield made
    made.database.close()


def test_a_stub_comes_back_as_it_was_written(table: Table) -> None:
    first = table.write("a", key="k")

    stub = stub_of(table.row(first))

    assert stub.content == b"\x00body"
    assert stub.properties == {"region": "eu"}
    assert (stub.required_groups, stub.deliver_time, stub.position) == (("g",), 1000.5, None)
    assert (stub.seq, stub.count) == (1, 0)


def test_a_stub_waits_for_an_earlier_unsent_one_of_its_key_and_topic(table: Table) -> None:
    theirs = table.write("theirs", key="k", owner="them")
    mine, other = table.write("mine", key="k"), table.write("other", key="o")
    ids = [mine, other]

    assert table.stubs.sendable(ids, "me") == {mine: True, other: False}
    table.stubs.record([SendOutcome(theirs, 1, 200.0, AT)], "them", 101.0)
    assert table.stubs.sendable(ids, "me") == {mine: False, other: False}


def test_stubs_of_one_key_may_go_together_but_not_around_somebody_elses(table: Table) -> None:
    first = table.write("first", key="k")
    table.write("between", key="k", owner="them")
    last = table.write("last", key="k")

    assert table.stubs.sendable([first, last], "me") == {first: False, last: True}


def test_an_acknowledged_send_is_recorded_with_its_position(table: Table) -> None:
    sent = table.write("a")

    table.stubs.record([SendOutcome(sent, 1, 160.0, AT)], "me", 101.0)

    row = table.row(sent)
    assert (row.broker_name, row.queue_id, row.offset) == ("broker-a", 2, 41)
    assert (row._mapping["count"], row.status, row.owner, row.lease_until) == (1, 0, None, None)
    assert row.resend_time == utc_datetime(160.0)


def test_a_failed_send_is_recorded_with_its_reason(table: Table) -> None:
    sent = table.write("a")

    table.stubs.record([SendOutcome(sent, 1, 110.0, error="no broker")], "me", 101.0)

    row = table.row(sent)
    assert (row.note, row._mapping["count"], row.broker_name) == ("no broker", 1, None)
    assert (row.resend_time, row.owner) == (utc_datetime(110.0), None)


def test_who_lost_the_stub_writes_nothing(table: Table) -> None:
    sent = table.write("a", owner="them")

    table.stubs.record([SendOutcome(sent, 9, 160.0, AT)], "me", 101.0)

    assert table.row(sent)._mapping["count"] == 0


def test_a_message_given_up_before_its_send_was_recorded_stays_given_up(table: Table) -> None:
    sent = table.write("a")
    table.set(sent, count=16, resend_time=utc_datetime(102.0), note="dead letter")

    table.stubs.record([SendOutcome(sent, 1, 160.0, AT)], "me", 103.0)

    row = table.row(sent)
    assert (row._mapping["count"], row.resend_time) == (16, utc_datetime(102.0))
    assert (row.note, row.broker_name) == ("dead letter", "broker-a")


def test_without_a_required_group_the_acknowledgement_confirms(table: Table) -> None:
    sent = table.write("a", groups="")

    table.stubs.record([SendOutcome(sent, 1, 160.0, AT)], "me", 101.0)

    row = table.row(sent)
    assert (row.status, row.resend_time) == (1, None)


def test_a_stub_that_was_confirmed_before_its_send_was_recorded_is_not_due_again(
    table: Table,
) -> None:
    sent = table.write("a")
    table.set(sent, status=1, resend_time=None)

    table.stubs.record([SendOutcome(sent, 1, 160.0, AT)], "me", 101.0)

    row = table.row(sent)
    assert (row.status, row.resend_time, row.broker_name) == (1, None, "broker-a")
