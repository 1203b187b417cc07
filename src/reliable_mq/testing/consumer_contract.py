"""What consumers ask of a database: the consume log, business keys, calls that are made once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Event

from sqlalchemy import Connection

from reliable_mq.idempotency.claim import ClaimStep
from reliable_mq.idempotency.sql_calls import CallDecision, KeyedCall
from reliable_mq.idempotency.sql_consume_log import LogLookup
from reliable_mq.testing.contract_database import (
    LEASE,
    A,
    B,
    ContractDatabase,
    Undo,
    entry,
    key_entry,
)
from reliable_mq.testing.manual_clock import ManualClock


class ConsumerContract(ContractDatabase):
    """What a database promises to consumers."""

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
