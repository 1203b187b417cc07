"""The contract of a database: what the promises ask of rows, keys and transactions.

    class TestMyDatabase(DatabaseContract):
        @pytest.fixture
        def database(self) -> Database:
            return Database("…", prefix="rmq_", connections=4)  # an empty one

See `contracts` for how it is run. What it holds is what the promises rest on: a unique key that
lets a second writer wait and then lose, updates fenced by an owner's name or token, savepoints that
take back exactly what was written in them, two transactions that see each other once they have
waited. First comes what senders ask, then what consumers ask.

A database that speaks PostgreSQL's or MySQL's protocol and SQL needs no more than its URL; one that
takes PostgreSQL's SQL under a name of its own is made known by `register_like_postgresql`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from threading import Barrier, Event
from typing import Any, TypeVar

import msgspec
import pytest
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from reliable_mq.confirm.sql_confirmation import StoredCopy, confirmation_of
from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.escalate.sql_settlement import settlement_of
from reliable_mq.idempotency.claim import ClaimStep
from reliable_mq.idempotency.sql_calls import CallDecision, KeyedCall, SqlCalls
from reliable_mq.idempotency.sql_consume_log import LogEntry, LogLookup, SqlConsumeLog
from reliable_mq.idempotency.sql_key_log import KeyEntry, SqlKeyLog
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.sql_stub_rows import stub_of
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Position, Stub
from reliable_mq.resend.due import ClaimedStubs, ClaimRequest, DueKind
from reliable_mq.resend.sql_due import SqlDue
from reliable_mq.retention.sql_keeping import retention_ledgers
from reliable_mq.testing.manual_clock import ManualClock

T = TypeVar("T")
LEASE = 10.0
A, B = "A" * 32, "B" * 32
WAITED_SECONDS = 0.3
"""How long a transaction has time to end that should wait for another one."""
ANYTHING = bytes(range(256)) * 4096
"""One MiB with every byte there is."""


class Undo(Exception):
    """Ends a savepoint or a transaction."""


class DatabaseContract:
    """What a database promises."""

    @pytest.fixture
    def database(self) -> Database:
        """Give a database that nobody else uses; its tables need not be there yet."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _prepared(self, database: Database) -> Iterator[None]:
        database.create_tables()
        self.tables = database
        self.stubs = SqlStubs(database.engine, database.stubs)
        self.due = SqlDue(self.stubs, database.logs, confirmation_of(database))
        self.log = SqlConsumeLog(database.logs, database.dialect)
        self.keys = SqlKeyLog(database.keys, database.logs, database.dialect)
        self.calls = SqlCalls(database.calls, database.watched_time)
        yield
        database.close()

    def commit(self, work: Callable[[Connection], T]) -> T:
        """Do something in a transaction of its own."""
        with self.tables.engine.begin() as connection:
            return work(connection)

    def write(self, *stubs: Stub, owner: str | None = "relay") -> list[Stub]:
        """Commit stubs at 100 s, under a lease of their relay."""
        return self.commit(lambda it: self.stubs.insert(it, stubs, owner, 100.0, LEASE))

    def stored(self) -> dict[str, Stub]:
        """Return the stubs that are committed."""
        rows = self.commit(lambda it: it.execute(select(self.tables.stubs)).all())
        return {row.message_id: stub_of(row) for row in rows}

    def status(self, name: str = A) -> StubStatus:
        """Return the status of a stub."""
        column = self.tables.stubs.c
        statement = select(column.status).where(column.message_id == name)
        return StubStatus(self.commit(lambda it: it.execute(statement).scalar_one()))

    def claim(
        self, owner: str, now: float, limit: int = 100, kind: DueKind = DueKind.UNSENT
    ) -> ClaimedStubs:
        """Let a scheduler claim what is due."""
        return self.due.claim(
            ClaimRequest(
                kind=kind,
                topic="orders",
                now=now,
                owner=owner,
                lease=LEASE,
                limit=limit,
                count_max=16,
            )
        )

    def receive(self, *entries: LogEntry, now: float = 100.0) -> list[LogLookup]:
        """Begin attempts, committed."""
        answers = self.commit(lambda it: self.log.receive(it, entries, now, LEASE))
        return [answers[each.message_id] for each in entries]

    def count(self) -> int:
        """Return how many consume-log rows there are."""
        rows = select(func.count()).select_from(self.tables.logs)
        return int(self.commit(lambda it: it.execute(rows).scalar_one()))

    # what senders ask

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

    # what consumers ask

    def test_a_row_is_inserted_once_per_group_and_message(self) -> None:
        inserted = [
            self.commit(partial(self.log.insert_consumed, entry=one, now=100.0))
            for one in (entry(A), entry(A, token="two"), entry(A, group="other"), entry(B))
        ]
        assert inserted == [True, False, True, True]

    def test_groups_and_messages_are_compared_letter_for_letter(self) -> None:
        names = ["e", "E", "é", "e "]
        entries = [entry(A, group=name) for name in names] + [entry(name) for name in names]

        inserted = [
            self.commit(partial(self.log.insert_consumed, entry=each, now=100.0))
            for each in entries
        ]

        assert all(inserted)

    def test_a_batch_is_inserted_only_as_a_whole(self) -> None:
        self.commit(lambda it: self.log.insert_consumed(it, entry(A), 100.0))

        with suppress(Undo):
            self.commit(self._insert_both)

        assert self.count() == 1

    def _insert_both(self, connection: Connection) -> None:
        if not self.log.insert_all_consumed(connection, [entry(A), entry(B)], 100.0):
            raise Undo

    def test_a_second_writer_waits_for_the_first_and_then_finds_its_row(self) -> None:
        inserted, go_on = Event(), Event()

        def first() -> bool:
            with self.tables.engine.begin() as connection:
                found = self.log.insert_consumed(connection, entry(A), 100.0)
                inserted.set()
                go_on.wait(10)
            return found

        def second() -> tuple[bool, LogLookup | None]:
            inserted.wait(10)
            with self.tables.engine.begin() as connection:
                one = entry(A, token="two")
                is_ours = self.log.insert_consumed(connection, one, 100.0)
                return is_ours, self.log.found(connection, one, 100.0)

        with ThreadPoolExecutor(2) as threads:
            began, rival = threads.submit(first), threads.submit(second)
            inserted.wait(10)
            assert not rival.done()
            go_on.set()
            assert began.result(20)
            is_ours, found = rival.result(20)
        assert not is_ours
        assert found is not None
        assert found.step is ClaimStep.ACKNOWLEDGE

    def test_a_savepoint_takes_back_what_was_written_in_it_and_nothing_else(self) -> None:
        def work(connection: Connection) -> None:
            self.log.insert_consumed(connection, entry(A), 100.0)
            with suppress(Undo), connection.begin_nested():
                self.log.insert_consumed(connection, entry(B), 100.0)
                raise Undo

        self.commit(work)

        assert self.count() == 1

    def test_a_running_attempt_is_left_alone_and_a_vanished_one_taken_over_in_doubt(self) -> None:
        assert self.receive(entry(A)) == [LogLookup(ClaimStep.RECEIVE_FIRST)]
        (held,) = self.receive(entry(A, token="two"), now=101.0)
        assert (held.step, held.wait) == (ClaimStep.LATER, LEASE - 1)
        (taken,) = self.receive(entry(A, token="two"), now=200.0)
        assert taken == LogLookup(ClaimStep.RECEIVE_FIRST, 2, in_doubt=True)

        assert not self.commit(lambda it: self.log.consume(it, entry(A), 201.0))
        assert self.commit(lambda it: self.log.consume(it, entry(A, token="two"), 201.0))

    def test_of_several_one_that_vanished_is_to_be_received_singly(self) -> None:
        self.receive(entry(A))

        found = self.receive(entry(A, token="two"), entry(B, token="two"), now=200.0)

        assert [each.step for each in found] == [ClaimStep.SINGLY, ClaimStep.RECEIVE_FIRST]
        assert found[0].in_doubt

    def test_a_failed_attempt_is_counted_and_a_released_one_is_not(self) -> None:
        self.receive(entry(A))
        self.commit(lambda it: self.log.fail(it, entry(A), 101.0, 105.0))
        assert self.receive(entry(A, token="two")) == [LogLookup(ClaimStep.RECEIVE_FIRST, 2)]
        self.commit(lambda it: self.log.release(it, entry(A, token="two"), 105.0))
        assert self.receive(entry(A, token="three")) == [LogLookup(ClaimStep.RECEIVE_FIRST, 2)]

    def test_a_renewed_lease_holds_longer(self) -> None:
        self.receive(entry(A))
        self.commit(lambda it: self.log.renew(it, [entry(A)], 300.0))

        (held,) = self.receive(entry(A, token="two"), now=200.0)

        assert (held.step, held.wait) == (ClaimStep.LATER, 100.0)

    def test_one_of_two_messages_has_their_business_key(self) -> None:
        assert self.commit(lambda it: self.keys.insert_consumed(it, key_entry(A), 100.0))
        assert not self.commit(lambda it: self.keys.insert_consumed(it, key_entry(B), 100.0))

        found = self.commit(lambda it: self.keys.found(it, key_entry(B), 100.0))

        assert found is not None
        assert (found.step, found.message_id) == (ClaimStep.ACKNOWLEDGE, A)

    def test_a_vanished_message_loses_its_business_key_to_the_next(self) -> None:
        self.commit(lambda it: self.keys.receive(it, [key_entry(A)], 100.0, LEASE))

        answers = self.commit(lambda it: self.keys.receive(it, [key_entry(B)], 200.0, LEASE))
        found = self.commit(lambda it: self.keys.found(it, key_entry("C" * 32), 200.0))

        assert answers["digest"].step is ClaimStep.RECEIVE_FIRST
        assert answers["digest"].in_doubt
        assert found is not None
        assert found.message_id == B

    def test_a_call_is_made_once_and_its_result_kept_as_it_was(self) -> None:
        result = bytes(range(256))
        call, again = KeyedCall("pay", "digest", "r-1", None, "one", 60.0), "two"
        rival = KeyedCall("pay", "digest", "r-1", None, again, 60.0)
        begin = partial(self.calls.begin, lease=LEASE, watched=ManualClock().watched)

        assert self.commit(lambda it: begin(it, call, 100.0)).answer is CallDecision.RUN
        assert self.commit(lambda it: begin(it, rival, 101.0)).answer is CallDecision.RUNNING
        assert self.commit(lambda it: self.calls.finish(it, call, result, 102.0))
        found = self.commit(lambda it: begin(it, rival, 103.0))
        assert (found.answer, found.result) == (CallDecision.REPLAY, result)
        assert self.commit(lambda it: begin(it, rival, 163.0)).answer is CallDecision.RUN


def stub(name: str, **more: Any) -> Stub:
    """Return a stub of the message `name` that waits for the group "payments"."""
    given = {"topic": "orders", "content": b"{}", "required_groups": ("payments",)}
    return Stub(seq=0, message_id=name, **{**given, **more})


def entry(name: str, token: str = "one", group: str = "payments") -> LogEntry:
    """Return a delivery of the message `name`."""
    return LogEntry(
        group=group,
        message_id=name,
        topic="orders",
        broker_name="broker-a",
        queue_id=1,
        offset=7,
        token=token,
    )


def key_entry(name: str) -> KeyEntry:
    """Return the same for the one business key of these tests."""
    return KeyEntry(
        group="payments",
        message_id="digest",
        topic="orders",
        broker_name="broker-a",
        queue_id=1,
        offset=7,
        token=name,
        holder=name,
        shown="order 7",
    )
