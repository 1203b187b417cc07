"""What senders ask of a database: stubs, the claims of schedulers, confirmations, retention."""

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from threading import Barrier, Event

import msgspec
import pytest
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from reliable_mq.confirm.sql_confirmation import StoredCopy, confirmation_of
from reliable_mq.database.row_values import StubStatus
from reliable_mq.escalate.sql_settlement import settlement_of
from reliable_mq.idempotency.sql_consume_log import SqlConsumeLog
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.stub import Position
from reliable_mq.resend.due import DueKind
from reliable_mq.retention.sql_keeping import retention_ledgers
from reliable_mq.testing.contract_database import (
    ANYTHING,
    LEASE,
    WAITED_SECONDS,
    A,
    B,
    ContractDatabase,
    Undo,
    entry,
    stub,
)


class SenderContract(ContractDatabase):
    """What a database promises to relays and schedulers."""

    def test_a_stub_comes_back_as_it_went_in(self) -> None:
        sent = stub(
            A,
            content=ANYTHING,
            tag="paid",
            message_key="ü 🙂",
            properties={"a b": "ü 🙂", "quote": "'\"\\"},
            deliver_time=2_000_000_000.123456,
        )

        (written,) = self.write(sent)

        assert self.stored() == {A: written}
        assert msgspec.structs.replace(written, seq=0, create_time=sent.create_time) == sent

    def test_stubs_have_numbers_in_the_order_in_which_they_were_given(self) -> None:
        first = self.write(stub(B), stub("C" * 32), stub(A))
        (last,) = self.write(stub("0" * 32))

        numbers = [each.seq for each in (*first, last)]
        assert numbers == sorted(numbers)
        assert {name: each.seq for name, each in self.stored().items()} == {
            each.message_id: each.seq for each in (*first, last)
        }

    def test_a_stub_is_there_if_and_only_if_what_it_was_written_in_was_committed(self) -> None:
        def work(connection: Connection) -> None:
            self.stubs.insert(connection, [stub(A)], "relay", 100.0, LEASE)
            with suppress(Undo), connection.begin_nested():
                self.stubs.insert(connection, [stub(B)], "relay", 100.0, LEASE)
                raise Undo

        def undone(connection: Connection) -> None:
            self.stubs.insert(connection, [stub("C" * 32)], "relay", 100.0, LEASE)
            raise Undo

        self.commit(work)
        with suppress(Undo):
            self.commit(undone)

        assert set(self.stored()) == {A}
        assert self.stubs.sendable([A, B, "C" * 32], "relay") == {A: False}

    def test_a_message_id_is_taken_once_and_compared_letter_for_letter(self) -> None:
        self.write(stub(A), stub("a" * 32), stub("a" * 31))

        with pytest.raises(IntegrityError):
            self.write(stub("a" * 32))

        assert len(self.stored()) == 3

    def test_what_one_scheduler_claims_no_other_has_until_the_lease_has_passed(self) -> None:
        self.write(stub(A))
        assert self.claim("one", 109.0).found == 0  # its relay has it

        assert [each.message_id for each in self.claim("one", 111.0).stubs] == [A]
        assert self.claim("two", 120.0).found == 0
        taken_over = self.claim("two", 122.0, kind=DueKind.SUSPECT)

        assert [each.message_id for each in taken_over.stubs] == [A]

    def test_a_scheduler_whose_lease_has_passed_writes_nothing(self) -> None:
        self.write(stub(A))
        self.claim("one", 111.0)
        self.claim("two", 122.0, kind=DueKind.SUSPECT)
        late = SendOutcome(A, 1, 200.0, position=Position("broker-a", 1, 7))

        self.stubs.record([late], "one", 123.0)
        assert self.stored()[A].position is None
        self.stubs.record([late], "two", 123.0)
        assert self.stored()[A].position == late.position

    def test_two_schedulers_at_once_share_what_is_due(self) -> None:
        names = [f"{number:032}" for number in range(40)]
        self.write(*map(stub, names))
        both_begin = Barrier(2)

        def work(owner: str) -> list[str]:
            both_begin.wait(10)
            claimed: list[str] = []
            while found := self.claim(owner, 111.0, limit=5).stubs:
                claimed += [each.message_id for each in found]
            return claimed

        with ThreadPoolExecutor(2) as threads:
            one, two = threads.map(work, ("one", "two"))

        assert sorted(one + two) == names

    def test_a_later_stub_of_an_ordering_key_waits_for_an_earlier_one(self) -> None:
        self.write(stub(A, ordering_key="k"))
        self.claim("one", 111.0)
        self.write(stub(B, ordering_key="k"))

        claims = self.claim("two", 112.0)

        assert [each.stub.message_id for each in claims.held] == [B]
        assert self.stubs.sendable([B], "two") == {B: True}

    def test_a_stub_is_confirmed_by_its_last_group_though_two_commit_at_once(self) -> None:
        self.write(stub(A, required_groups=("loyalty", "payments")))
        inserted, go_on = Event(), Event()

        def consume(group: str, connection: Connection) -> None:
            log = SqlConsumeLog(self.tables.logs, self.tables.dialect)
            log.insert_consumed(connection, entry(A, group=group), 120.0)
            confirmation_of(self.tables).confirm(connection, group, [A], 120.0)

        def first(connection: Connection) -> None:
            consume("payments", connection)
            inserted.set()
            go_on.wait(10)

        with ThreadPoolExecutor(2) as threads:
            began = threads.submit(self.commit, first)
            inserted.wait(10)
            rival = threads.submit(self.commit, partial(consume, "loyalty"))
            wait([rival], timeout=WAITED_SECONDS)  # it waits for the first, or sees too little
            go_on.set()
            began.result(20)
            rival.result(20)

        assert self.status() is StubStatus.CONFIRMED

    def test_a_group_that_is_not_the_last_confirms_nothing(self) -> None:
        self.write(stub(A, required_groups=("loyalty", "payments")))

        self.commit(lambda it: confirmation_of(self.tables).confirm(it, "payments", [A], 120.0))

        assert self.status() is StubStatus.UNCONFIRMED

    def test_a_confirmation_and_the_record_of_the_send_may_come_in_either_order(self) -> None:
        names, place = [A, B], Position("broker-a", 3, 70_000)
        self.write(stub(A, required_groups=("payments",)), stub(B, required_groups=("payments",)))
        positions = dict.fromkeys(names, StoredCopy("orders", "broker-a", 3, 70_000))
        sends = [SendOutcome(each, 1, 130.0, position=place) for each in names]

        def confirm(*ids: str) -> None:
            confirmation = confirmation_of(self.tables)
            self.commit(lambda it: confirmation.confirm(it, "payments", ids, 120.0, positions))

        confirm(A)
        self.stubs.record(sends, "relay", 121.0)
        confirm(B)

        column = self.tables.stubs.c
        facts = (column.status, column.count, column.owner, column.lease_until, column.resend_time)
        rows = self.commit(lambda it: it.execute(select(*facts)).all())
        assert set(map(tuple, rows)) == {(StubStatus.CONFIRMED.value, 1, None, None, None)}
        assert [each.position for each in self.stored().values()] == [place, place]

    def test_a_confirmation_does_not_touch_what_is_known_of_a_send(self) -> None:
        self.write(stub(A, required_groups=("payments",)), stub(B, required_groups=("payments",)))
        first, copy = Position("broker-a", 3, 7), StoredCopy("orders", "broker-b", 0, 0)
        self.stubs.record([SendOutcome(A, 1, 130.0, position=first)], "relay", 110.0)
        self.stubs.record([SendOutcome(B, 1, 110.0, error="no answer")], "relay", 110.0)

        confirmation, positions = confirmation_of(self.tables), {A: copy, B: copy}
        self.commit(lambda it: confirmation.confirm(it, "payments", [A, B], 120.0, positions))

        assert {each.message_id: each.position for each in self.stored().values()} == {
            A: first,
            B: None,
        }

    def test_the_same_dead_letter_is_escalated_once(self) -> None:
        self.write(stub(A))

        for _ in range(2):
            self.commit(
                lambda it: settlement_of(self.tables).exhaust(
                    it, A, group="payments", reason="no", now=120.0
                )
            )

        rows = select(func.count()).select_from(self.tables.escalations)
        assert self.commit(lambda it: it.execute(rows).scalar_one()) == 1

    def test_retention_removes_what_is_settled_and_old_and_one_at_a_time_has_the_duty(self) -> None:
        self.write(stub(A), stub(B))
        self.commit(lambda it: confirmation_of(self.tables).confirm(it, "payments", [A], 120.0))
        ledgers = retention_ledgers(self.tables)

        assert ledgers.take_duty(1000.0, "one", 60.0)
        assert not ledgers.take_duty(1001.0, "two", 60.0)
        assert ledgers.remove_stubs(500.0, "two", 1100.0, 10) is None
        removed = ledgers.remove_stubs(500.0, "one", 1100.0, 10)

        assert removed is not None
        assert (removed.rows, set(self.stored())) == (1, {B})
