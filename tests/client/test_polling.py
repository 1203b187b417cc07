"""What polls return, what of it may be committed, and what a seek does to pulls under way."""

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.client.script import World, group_of

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.polling import Positions
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage

FIRST, SECOND, ELSEWHERE = (MessageQueue("t", "a", number) for number in range(3))
NOW = 100.0
LENGTH = 60


def polled(*queues: MessageQueue, held_count_max: int = 1000) -> tuple[ConsumerGroup, Positions]:
    subscription = Subscription(group="g", topics={"t": "*"}, ordered=False)
    settings = ClientSettings(held_count_max=held_count_max)
    group = group_of(World(), subscription, queues={"a": 2}, settings=settings, polled=True)
    for queue in queues:
        group.assign(queue).start_at(0)
    return group, Positions(group)


def fetch(assigned: AssignedQueue, count: int) -> None:
    first = assigned.next_offset
    until = min(first + count, LENGTH)
    assigned.add_pulled(
        [
            ReceivedMessage(topic="t", body=b"x", queue=assigned.queue, queue_offset=offset)
            for offset in range(first, until)
        ],
        until,
    )


def fetched(group: ConsumerGroup, count: int) -> None:
    for assigned in group.assigned:
        fetch(assigned, count)


def places(messages: list[ReceivedMessage]) -> list[tuple[int, int]]:
    return [(message.queue.queue_id, message.queue_offset) for message in messages]


def test_after_a_move_nothing_of_before_is_committed_and_everything_afterwards() -> None:
    group, positions = polled(FIRST)
    fetched(group, 4)
    positions.take_fetched(4, NOW)
    positions.poll_begins()
    group.assigned[0].committed_offset = 4

    fetch(positions.move(FIRST, 0), 4)
    assert positions.uncommitted() == {}  # it would undo the reset
    assert places(positions.take_fetched(9, NOW)) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert positions.uncommitted(positions.positions()) == {FIRST: 4}
    positions.poll_begins()
    assert positions.uncommitted() == {FIRST: 4}


def test_queues_take_turns_and_each_keeps_its_order() -> None:
    group, positions = polled(FIRST, SECOND)
    fetched(group, 3)
    assert places(positions.take_fetched(2, NOW)) == [(0, 0), (0, 1)]
    assert places(positions.take_fetched(4, NOW)) == [(1, 0), (1, 1), (1, 2), (0, 2)]
    assert positions.take_fetched(4, NOW) == []
    assert positions.positions() == {FIRST: 3, SECOND: 3}


def test_what_a_poll_returned_counts_as_handled_when_the_next_one_begins() -> None:
    group, positions = polled(FIRST)
    fetched(group, 5)
    positions.poll_begins()
    positions.take_fetched(3, NOW)
    assert positions.uncommitted() == {FIRST: 0}
    positions.poll_begins()
    assert positions.uncommitted() == {FIRST: 3}


def test_what_the_application_commits_itself_is_not_set_back_by_what_is_handled() -> None:
    group, positions = polled(FIRST)
    fetched(group, 5)
    positions.poll_begins()
    positions.take_fetched(4, NOW)
    positions.handle(positions.positions())
    assert positions.uncommitted() == {FIRST: 4}
    (assigned,) = group.assigned
    assigned.committed_offset = 4
    assert positions.uncommitted() == {}


def test_what_a_pull_under_way_brings_after_a_seek_is_returned_by_no_poll() -> None:
    group, positions = polled(FIRST)
    (before,) = group.assigned
    fetched(group, 10)
    positions.take_fetched(2, NOW)
    after = positions.seek(FIRST, 40)
    fetch(before, 10)  # its answer comes too late
    assert positions.take_fetched(10, NOW) == []
    fetch(after, 2)
    assert places(positions.take_fetched(10, NOW)) == [(0, 40), (0, 41)]


def test_a_paused_queue_keeps_what_was_fetched_and_fetches_no_more() -> None:
    group, positions = polled(FIRST, SECOND)
    fetched(group, 2)
    positions.pause([FIRST])
    assert positions.paused == {FIRST}
    assert [positions.may_pull(each) for each in group.assigned] == [False, True]
    assert places(positions.take_fetched(10, NOW)) == [(1, 0), (1, 1)]
    positions.resume([FIRST])
    assert all(positions.may_pull(each) for each in group.assigned)
    assert places(positions.take_fetched(10, NOW)) == [(0, 0), (0, 1)]


def test_no_more_is_fetched_than_the_flow_limits_allow_until_a_poll_takes_it() -> None:
    group, positions = polled(FIRST, held_count_max=5)
    fetched(group, 5)
    (assigned,) = group.assigned
    assert not positions.may_pull(assigned)
    positions.take_fetched(1, NOW)
    assert positions.may_pull(assigned)


def test_a_queue_that_is_taken_away_may_be_committed_until_it_is_given_up() -> None:
    group, positions = polled(FIRST)
    fetched(group, 5)
    positions.poll_begins()
    positions.take_fetched(5, NOW)
    positions.poll_begins()
    leaving = group.leave(FIRST)
    assert positions.uncommitted() == {FIRST: 5}
    positions.handle({FIRST: 3})
    assert positions.uncommitted() == {FIRST: 3}
    group.forget(leaving)
    positions.forget(FIRST)
    assert positions.uncommitted() == {}


def test_a_queue_of_somebody_else_is_refused() -> None:
    _, positions = polled(FIRST)
    for refused in (
        lambda: positions.seek(ELSEWHERE, 0),
        lambda: positions.pause([ELSEWHERE]),
        lambda: positions.handle({ELSEWHERE: 1}),
        lambda: positions.position(ELSEWHERE),
    ):
        with pytest.raises(UsageError, match="not assigned to this consumer"):
            refused()


def test_an_offset_below_zero_is_refused_and_changes_nothing() -> None:
    group, positions = polled(FIRST)
    fetched(group, 1)
    with pytest.raises(UsageError, match="must be from 0 to"):
        positions.seek(FIRST, -1)
    with pytest.raises(UsageError, match="must be from 0 to"):
        positions.handle({FIRST: -1})
    for beyond in (2**63, None, "1"):
        with pytest.raises(UsageError, match="must be from 0 to"):
            positions.seek(FIRST, beyond)  # type: ignore[arg-type]
    assert places(positions.take_fetched(1, NOW)) == [(0, 0)]


moves = st.one_of(
    st.tuples(st.just("fetch"), st.integers(0, 9)),
    st.tuples(st.just("fetch late"), st.integers(1, 9)),
    st.tuples(st.just("poll"), st.integers(1, 9)),
    st.tuples(st.just("seek"), st.integers(0, LENGTH)),
    st.tuples(st.just("pause"), st.booleans()),
)


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(moves, max_size=40))
def test_after_any_seek_each_message_from_there_on_is_returned_once_and_in_order(
    steps: list[tuple[str, int]],
) -> None:
    group, positions = polled(FIRST)
    old = current = group.assigned[0]
    expected = 0
    for step, number in steps:
        if step == "fetch":
            fetch(current, number)
        elif step == "fetch late":
            if old is not current:
                fetch(old, number)
        elif step == "seek":
            old, current = current, positions.seek(FIRST, number)
            expected = number
        elif step == "pause":
            (positions.pause if number else positions.resume)([FIRST])
        else:
            positions.poll_begins()
            assert positions.uncommitted() == {FIRST: expected}
            for message in positions.take_fetched(number, NOW):
                assert message.queue_offset == expected
                expected += 1
        assert positions.position(FIRST) == expected
        positions.invariants()
