"""What the relay and the scheduler read and write in the table of stubs; on both databases."""

from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import Row, select, update

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.relay import Relay, SendOutcome
from reliable_mq.outbox.sql_stub_rows import stub_of
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Position, Stub

AT = Position("broker-a", 2, 41)


class Table:
    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=2)
        self.database.create_tables()
        self.stubs = SqlStubs(self.database.engine, self.database.stubs)

    def write(self, name: str, **more: str) -> str:
        return self.written(name, **more).message_id

    def written(self, name: str, *, key: str = "", owner: str = "me", groups: str = "g") -> Stub:
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
            (stub,) = self.stubs.insert(connection, [stub], owner, 100.0, 5.0)
        return stub

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


def test_a_stub_waits_for_an_earlier_one_that_was_ours_and_is_nobodys_now(table: Table) -> None:
    first, last = table.write("first", key="k"), table.write("last", key="k")
    table.set(first, owner=None, lease_until=None)  # a scheduler had claimed it and let it go

    assert table.stubs.sendable([first, last], "me") == {last: True}


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


def test_a_failed_send_is_recorded_whatever_the_broker_says(table: Table) -> None:
    sent = table.write("a")

    table.stubs.record([SendOutcome(sent, 1, 110.0, error="no \0\udcff room")], "me", 101.0)

    assert table.row(sent).note == "no \\x00\\udcff room"


def test_many_sends_are_recorded_each_by_what_it_came_to(table: Table) -> None:
    sent = [table.write(f"{number}") for number in range(3)]
    failed = [table.write(f"failed {number}") for number in range(2)]
    lost = table.write("lost", owner="them")
    places = [Position("broker-b", 1, 7 + number) for number in range(3)]
    outcomes = [
        *(SendOutcome(each, 2, 160.0, place) for each, place in zip(sent, places, strict=True)),
        *(SendOutcome(each, 3, 110.0, error=f"why {each}") for each in failed),
        SendOutcome(lost, 9, 160.0, AT),
    ]

    table.stubs.record(outcomes, "me", 101.0)

    rows = [table.row(each) for each in sent]
    assert [Position(row.broker_name, row.queue_id, row.offset) for row in rows] == places
    assert {row.resend_time for row in rows} == {utc_datetime(160.0)}
    assert [table.row(each).note for each in failed] == [f"why {each}" for each in failed]
    counts = [table.row(each)._mapping["count"] for each in (*sent, *failed, lost)]
    assert counts == [2, 2, 2, 3, 3, 0]


def test_who_lost_the_stub_writes_nothing(table: Table) -> None:
    sent = table.write("a", owner="them")

    table.stubs.record([SendOutcome(sent, 9, 160.0, AT)], "me", 101.0)

    assert table.row(sent)._mapping["count"] == 0


def test_a_message_given_up_before_its_send_was_recorded_stays_given_up(table: Table) -> None:
    sent = table.write("a")
    table.set(sent, given_up=True, resend_time=utc_datetime(102.0), note="dead letter")

    table.stubs.record([SendOutcome(sent, 16, 160.0, AT)], "me", 103.0)

    row = table.row(sent)
    assert (row.given_up, row.resend_time) == (True, None)
    assert (row.note, row.broker_name) == ("dead letter", "broker-a")


def test_a_message_given_up_after_a_send_that_could_not_be_recorded_is_sent_no_more(
    table: Table,
) -> None:
    sent = table.write("a")
    table.set(sent, given_up=True, resend_time=None)

    assert table.stubs.sendable([sent], "me") == {}
    table.stubs.renew([sent], "me", 200.0)
    assert table.row(sent).resend_time is None


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


class MemoryBroker:
    """Stores everything and remembers in which order it came."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        self.calls.append([message.message_id.rstrip("0") for message in messages])
        return [
            SendResult(
                status=SendStatus.SEND_OK,
                message_id=message.message_id,
                offset_message_id="",
                queue=MessageQueue(message.topic, "b", 0),
                queue_offset=number,
            )
            for number, message in enumerate(messages)
        ]


def test_stubs_of_one_key_leave_in_the_order_of_their_rows_whoever_was_handed_over_first(
    table: Table,
) -> None:
    # Given a thread that was held up between its commit and the hand-over of its stub
    broker = MemoryBroker()
    relay = Relay(table.stubs, broker, lambda *_: 160.0, owner="me", lease=5.0)
    paid, shipped = table.written("paid", key="k"), table.written("shipped", key="k")
    relay.accept([shipped], 100.0)
    relay.accept([paid], 100.0)
    relay.invariants()

    # When the relay runs
    relay.run_once(101.0)

    # Then the order of the rows decides
    assert broker.calls == [["paid", "shipped"]]


def test_stubs_know_their_rows_when_they_are_written(table: Table) -> None:
    stubs = [
        Stub(seq=0, message_id=name * 32, topic="t", content=b"", ordering_key="k")
        for name in "CAB"
    ]
    with table.database.engine.begin() as connection:
        written = table.stubs.insert(connection, stubs, "me", 100.0, 5.0)

    assert [stub.seq for stub in written] == [table.row(s.message_id).seq for s in stubs]
    assert [stub.seq for stub in written] == [1, 2, 3]
    assert {stub.create_time for stub in written} == {100.0}


def test_a_dead_letter_whose_send_was_never_recorded_holds_up_no_later_one(table: Table) -> None:
    dead, later = table.write("dead", key="k", owner="them"), table.write("later", key="k")
    table.set(dead, given_up=True, resend_time=None)

    assert table.stubs.sendable([later], "me") == {later: False}
