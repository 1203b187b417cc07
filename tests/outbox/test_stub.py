"""The life of a stub, and when it is due."""

import itertools
from datetime import timedelta

import pytest

from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import UsageError
from reliable_mq.message import CONTENT_TYPE
from reliable_mq.outbox.stub import (
    TRANSITIONS,
    DueState,
    GroupView,
    Position,
    Stub,
    StubEvent,
    due_state,
    groups_of,
    groups_text,
    message_of,
    next_status,
    statuses_before,
)

CONSUMED = GroupView(consumed=True, attempt_alive=False, passed=True)
PASSED = GroupView(consumed=False, attempt_alive=False, passed=True)
RUNNING = GroupView(consumed=False, attempt_alive=True, passed=True)
BACKLOG = GroupView(consumed=False, attempt_alive=False, passed=False)
GIVEN_UP = GroupView(consumed=False, attempt_alive=False, passed=True, given_up=True)
CONSUMED_AFTER_ALL = GroupView(consumed=True, attempt_alive=False, passed=True, given_up=True)
UNKNOWN = GroupView(consumed=False, attempt_alive=False, passed=None)


def stub(position: Position | None, *groups: str) -> Stub:
    return Stub(
        seq=1,
        message_id="A" * 32,
        topic="orders",
        content=b"{}",
        required_groups=groups,
        position=position,
    )


@pytest.mark.parametrize("status", StubStatus)
@pytest.mark.parametrize("event", StubEvent)
def test_an_event_is_in_the_table_or_is_refused(status: StubStatus, event: StubEvent) -> None:
    if (status, event) in TRANSITIONS:
        assert next_status(status, event) in StubStatus
    else:
        with pytest.raises(UsageError, match=status.name):
            next_status(status, event)


def test_a_confirmed_stub_stays_confirmed_whatever_happens() -> None:
    after = {TRANSITIONS[status, event] for status, event in TRANSITIONS if status == 1}

    assert after == {StubStatus.CONFIRMED}


def test_only_an_unconfirmed_stub_can_be_voided_and_a_confirmed_one_is_never_sent_again() -> None:
    assert statuses_before(StubEvent.VOID) == (StubStatus.UNCONFIRMED,)
    assert StubStatus.CONFIRMED not in statuses_before(StubEvent.RETRY)


def test_a_stub_without_a_position_is_sent() -> None:
    assert due_state(stub(None, "payments"), ()) is DueState.SEND


@pytest.mark.parametrize(
    ("views", "state"),
    [
        ((CONSUMED, CONSUMED), DueState.CONFIRM),
        ((CONSUMED, PASSED), DueState.SEND),
        ((PASSED, PASSED), DueState.SEND),
        ((CONSUMED, RUNNING), DueState.WAIT),
        ((CONSUMED, BACKLOG), DueState.WAIT),
        ((PASSED, BACKLOG), DueState.WAIT),
        ((PASSED, RUNNING), DueState.WAIT),
        ((CONSUMED, UNKNOWN), DueState.WAIT),
        ((GIVEN_UP, PASSED), DueState.SEND),
        ((GIVEN_UP, BACKLOG), DueState.WAIT),
        ((GIVEN_UP, RUNNING), DueState.WAIT),
        ((GIVEN_UP, CONSUMED), DueState.GIVE_UP),
        ((GIVEN_UP, GIVEN_UP), DueState.GIVE_UP),
        ((CONSUMED_AFTER_ALL, CONSUMED), DueState.CONFIRM),
    ],
)
def test_a_stub_with_a_position_is_sent_only_when_every_missing_group_went_past_it(
    views: tuple[GroupView, ...], state: DueState
) -> None:
    for order in itertools.permutations(views):
        assert due_state(stub(Position("b", 0, 7), "a", "b"), order) is state


def test_a_resend_carries_the_same_id_body_and_key() -> None:
    once = Stub(
        seq=1,
        message_id="B" * 32,
        topic="orders",
        content=b'{"a":1}',
        message_key="17",
        ordering_key="c1",
        content_type="application/json",
        properties={"region": "eu"},
    )

    message = message_of(once, timedelta(seconds=3))

    assert message.message_id == once.message_id
    assert message.body == once.content
    assert (message.keys, message.ordering_key) == (("17",), "c1")
    assert message.properties == {"region": "eu", CONTENT_TYPE: "application/json"}
    assert message.delay == timedelta(seconds=3)


def test_required_groups_survive_the_column() -> None:
    assert groups_of(groups_text(("loyalty", "a_b", "payments"))) == ("a_b", "loyalty", "payments")
    assert groups_of(groups_text(())) == ()
