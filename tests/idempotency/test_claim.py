"""The tables of the consumer's protocol."""

import itertools

import pytest

from reliable_mq.database.row_values import LogState
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.claim import (
    ROW_TRANSITIONS,
    STEP_OF_LEASE,
    STEP_OF_ROW,
    Claim,
    ClaimStep,
    LeaseAnswer,
    RowEvent,
    RowState,
    attempt_after,
    attempt_claimed,
    first_step,
    next_row,
    row_of,
)

RUNS = {ClaimStep.ONE_COMMIT, ClaimStep.RECEIVE_FIRST}


def test_every_answer_of_redis_and_every_found_row_has_a_step() -> None:
    assert STEP_OF_LEASE.keys() == set(LeaseAnswer)
    assert STEP_OF_ROW.keys() == set(RowState) - {RowState.ABSENT}


@pytest.mark.parametrize(("row", "event"), list(itertools.product(RowState, RowEvent)))
def test_an_event_is_in_the_table_or_is_refused(row: RowState, event: RowEvent) -> None:
    if (row, event) in ROW_TRANSITIONS:
        assert (next_row(row, event) is RowState.ABSENT) == (event is RowEvent.TAKE_BACK)
    else:
        with pytest.raises(UsageError, match=row.value):
            next_row(row, event)


def test_consumed_is_never_taken_back_but_by_who_finds_that_its_handler_committed_it() -> None:
    events = [event for row, event in ROW_TRANSITIONS if row is RowState.CONSUMED]

    assert events == [RowEvent.TAKE_BACK]


def test_an_attempt_that_died_leads_to_another_attempt_and_never_to_an_acknowledgement() -> None:
    dead = next_row(next_row(RowState.ABSENT, RowEvent.RECEIVE), RowEvent.EXPIRE)

    assert STEP_OF_ROW[dead] in RUNS
    assert STEP_OF_LEASE[LeaseAnswer.AGAIN] in RUNS


def test_only_a_row_that_says_consumed_is_acknowledged() -> None:
    assert [row for row, step in STEP_OF_ROW.items() if step is ClaimStep.ACKNOWLEDGE] == [
        RowState.CONSUMED
    ]
    assert ClaimStep.ACKNOWLEDGE not in STEP_OF_LEASE.values()


@pytest.mark.parametrize(
    ("is_consumed", "log_receipt", "step"),
    [
        (True, False, ClaimStep.ACKNOWLEDGE),
        (True, True, ClaimStep.ACKNOWLEDGE),
        (False, False, ClaimStep.RECEIVE_FIRST),
        (False, True, ClaimStep.RECEIVE_FIRST),
    ],
)
def test_what_redis_calls_done_is_what_the_row_says(
    is_consumed: bool, log_receipt: bool, step: ClaimStep
) -> None:
    done = Claim(LeaseAnswer.DONE)
    found = first_step(done, attempts_max=3, log_receipt=log_receipt, is_consumed=is_consumed)
    assert found is step


@pytest.mark.parametrize(
    ("state", "owner", "lease_until", "row"),
    [
        (None, None, None, RowState.ABSENT),
        (LogState.CONSUMED, "a", None, RowState.CONSUMED),
        (LogState.RECEIVED, "a", 10.5, RowState.RUNNING),
        (LogState.RECEIVED, "a", 10.0, RowState.IN_DOUBT),
        (LogState.RECEIVED, "a", None, RowState.IN_DOUBT),
        (LogState.RECEIVED, None, 99.0, RowState.FAILED),
    ],
)
def test_columns_say_what_a_row_is_at_a_time(
    state: int | None, owner: str | None, lease_until: float | None, row: RowState
) -> None:
    assert row_of(state, owner, lease_until, now=10.0) is row


def test_the_hot_path_is_one_commit_unless_the_receipt_is_wanted() -> None:
    first = Claim(LeaseAnswer.FIRST, attempt=1)

    assert first_step(first, attempts_max=16, log_receipt=False) is ClaimStep.ONE_COMMIT
    assert first_step(first, attempts_max=16, log_receipt=True) is ClaimStep.RECEIVE_FIRST


@pytest.mark.parametrize("lease", [LeaseAnswer.FIRST, LeaseAnswer.AGAIN])
def test_attempts_end(lease: LeaseAnswer) -> None:
    assert first_step(Claim(lease, 3), attempts_max=3, log_receipt=False) in RUNS
    assert first_step(Claim(lease, 4), attempts_max=3, log_receipt=False) is ClaimStep.GIVE_UP


def test_being_held_or_done_is_no_attempt() -> None:
    for lease in (LeaseAnswer.HELD, LeaseAnswer.DONE):
        claim = Claim(lease, 99)
        step = first_step(claim, attempts_max=3, log_receipt=True, is_consumed=True)
        assert step in {ClaimStep.LATER, ClaimStep.ACKNOWLEDGE}


def test_the_number_of_an_attempt_never_falls_whoever_lost_its_memory() -> None:
    assert attempt_after(RowState.ABSENT, 0, redis_attempt=0) == 1
    assert attempt_after(RowState.FAILED, 4, redis_attempt=1) == 5  # Redis was flushed
    assert (
        attempt_after(RowState.IN_DOUBT, 1, redis_attempt=7) == 7
    )  # the process died in Redis's sight


def test_claims_that_came_to_nothing_leave_the_last_attempt_to_the_row() -> None:
    counted = [
        attempt_claimed(Claim(LeaseAnswer.AGAIN, claims), attempts_max=3) for claims in (2, 3, 9)
    ]

    assert counted == [2, 3, 3]
    assert attempt_after(RowState.IN_DOUBT, 2, redis_attempt=3) == 3  # it was not made
    assert attempt_after(RowState.IN_DOUBT, 3, redis_attempt=3) == 4  # it was
    assert (
        attempt_claimed(Claim(LeaseAnswer.AGAIN, 2), attempts_max=1) == 2
    )  # and has no row that says so
    assert attempt_claimed(Claim(LeaseAnswer.AGAIN, 9), attempts_max=2) == 2
    assert attempt_claimed(Claim(LeaseAnswer.AGAIN, 9), attempts_max=1) == 2
    assert attempt_claimed(Claim(LeaseAnswer.UNREACHABLE), attempts_max=3) == 1
