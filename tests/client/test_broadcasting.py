"""A group that broadcasts: every member reads everything, and remembers itself how far it is."""

import logging
from collections.abc import Mapping

import pytest
from tests.client.script import World, group_of, says
from tests.client.scripted_consumer import ext, found, record
from tests.client.test_pulling import asked

from reliable_mq.client.connecting.membership import consumer_data
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_back, keep_ready, rebalance
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.offsets import commit
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.settling import settle
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import StoreError
from reliable_mq.message import MessageQueue
from reliable_mq.outcomes import Outcome, Reject, Retry
from reliable_mq.wire.codes import RequestCode, ResponseCode

QUEUE = MessageQueue("t", "a", 0)


class Kept:
    """Offsets as a file keeps them, and what was saved."""

    def __init__(self, known: Mapping[MessageQueue, int] | None = None) -> None:
        self.known = dict(known or {})
        self.saved: list[dict[MessageQueue, int]] = []
        self.is_full = False

    def find(self, queue: MessageQueue) -> int:
        return self.known.get(queue, -1)

    def remember_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.known |= offsets

    def save(self) -> None:
        if self.is_full:
            raise StoreError("the disk is full")
        self.saved.append(dict(self.known))

    def close(self) -> None:
        return None


def member(
    kept: Kept, *, queues: int = 1, ordered: bool = True, max_attempts: int = 3
) -> tuple[World, ConsumerGroup]:
    world = World()
    subscription = Subscription(
        group="g", topics={"t": "*"}, broadcasting=True, ordered=ordered, max_attempts=max_attempts
    )
    group = group_of(world, subscription, queues={"a": queues})
    group.local_offsets = kept
    return world, group


def reading(kept: Kept) -> tuple[World, ConsumerGroup, AssignedQueue]:
    world, group = member(kept)
    world.play(rebalance(group))
    world.play(keep_ready(group))
    (assigned,) = group.assigned
    return world, group, assigned


def test_a_member_takes_every_queue_whoever_else_is_there_and_no_retry_topic() -> None:
    world, group = member(Kept(), queues=4)
    changes = world.play(rebalance(group))
    assert [each.queue for each in changes.added] == [MessageQueue("t", "a", at) for at in range(4)]
    assert changes.settled
    assert world.calls_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == []


def test_brokers_are_told_that_it_broadcasts() -> None:
    _, group = member(Kept())
    data = consumer_data(group)
    assert data["messageModel"] == "BROADCASTING"
    assert [each["topic"] for each in data["subscriptionDataSet"]] == ["t"]


def test_it_goes_on_where_its_own_file_says_and_asks_no_broker_nor_locks_anything() -> None:
    world, _, assigned = reading(Kept({QUEUE: 7}))
    assert assigned.next_offset == 7
    assert world.calls == []


def test_a_pull_does_not_commit_at_the_broker() -> None:
    world, group, assigned = reading(Kept({QUEUE: 7}))
    world.answers[RequestCode.PULL_MESSAGE] = says(ResponseCode.PULL_NOT_FOUND, ext(7))
    world.play(pull_once(group, assigned))
    assert (asked(world).sys_flag, asked(world).commit_offset) == (0b10, 0)


def test_what_is_handled_is_saved_with_all_that_was_known_and_only_when_it_moved() -> None:
    elsewhere = MessageQueue("t", "gone for now", 0)
    kept = Kept({QUEUE: 7, elsewhere: 9})
    world, group, assigned = reading(kept)
    world.answers[RequestCode.PULL_MESSAGE] = found(9, record(7), record(8))
    world.play(pull_once(group, assigned))
    (message, *_) = group.take_ready(world.seconds)
    assigned.finish(message.queue_offset)
    assert world.play(commit(group, group.all_queues)) == 1
    assert kept.saved == [{QUEUE: 8, elsewhere: 9}]
    assert world.play(commit(group, group.all_queues)) == 0
    assert len(kept.saved) == 1
    assert not world.calls_of(RequestCode.UPDATE_CONSUMER_OFFSET)


def test_offsets_that_cannot_be_saved_are_saved_the_next_time() -> None:
    kept = Kept()
    world, group, assigned = reading(kept)
    assigned.add_pulled([], 5)
    kept.is_full = True
    with pytest.raises(StoreError):
        world.play(commit(group, group.all_queues))
    kept.is_full = False
    assert world.play(commit(group, group.all_queues)) == 1
    assert kept.saved == [{QUEUE: 5}]


def test_a_queue_is_given_back_with_its_offset_or_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept()
    world, group, assigned = reading(kept)
    assigned.add_pulled([], 5)
    kept.is_full = True
    world.play(give_back(group, group.leave(QUEUE)))
    assert group.all_queues == []
    assert "offsets were not kept: the disk is full" in caplog.text


@pytest.mark.parametrize("outcome", [Retry(reason="no"), Reject("no")])
def test_what_fails_is_tried_again_here_then_dropped_and_never_sent_anywhere(
    outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    world, group, assigned = reading(Kept())
    world.answers[RequestCode.PULL_MESSAGE] = found(1, record(0))
    world.play(pull_once(group, assigned))
    world.calls.clear()
    attempts = 0
    with caplog.at_level(logging.WARNING):
        while assigned.unfinished:
            (message,) = group.take_ready(world.seconds)
            attempts += 1
            world.play(settle(group, assigned, message, outcome))
            world.seconds += 60
            group.wake(world.seconds)
    assert attempts == (3 if isinstance(outcome, Retry) else 1)
    assert world.calls == []
    assert "is dropped" in caplog.text
    assert assigned.commit_offset == 1
