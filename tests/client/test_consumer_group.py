"""A member's queues take turns, however many of them have nothing."""

from tests.client.script import World, group_of

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.subscription import Sql, Subscription
from reliable_mq.message import MessageQueue, ReceivedMessage


def reading(queues: int) -> tuple[ConsumerGroup, list[AssignedQueue]]:
    subscription = Subscription(group="g", topics={"t": "*"}, ordered=False)
    group = group_of(World(), subscription, queues={"a": queues})
    assigned = [group.assign(MessageQueue("t", "a", number)) for number in range(queues)]
    for one in assigned:
        one.start_at(0)
    return group, assigned


def fill(assigned: AssignedQueue, count: int) -> None:
    begin = assigned.next_offset
    messages = [
        ReceivedMessage(topic="t", body=b"x", queue=assigned.queue, queue_offset=begin + at)
        for at in range(count)
    ]
    assigned.add_pulled(messages, begin + count)


def next_queue(group: ConsumerGroup) -> int | None:
    taken = group.take_ready(0.0)
    group.invariants()
    return taken[0].queue.queue_id if taken else None


def test_busy_queues_take_turns() -> None:
    group, assigned = reading(3)
    for one in assigned:
        fill(one, 2)
    assert [next_queue(group) for _ in range(7)] == [0, 1, 2, 0, 1, 2, None]


def test_a_queue_that_gets_something_waits_for_no_busy_one_for_long() -> None:
    group, assigned = reading(10)
    fill(assigned[0], 100)
    assert [next_queue(group) for _ in range(5)] == [0] * 5
    fill(assigned[7], 1)
    assert 7 in [next_queue(group) for _ in range(len(assigned) + 2)]


def test_a_queue_is_found_when_those_that_were_busy_have_nothing_left() -> None:
    group, assigned = reading(10)
    fill(assigned[0], 1)
    assert next_queue(group) == 0
    fill(assigned[3], 1)
    assert next_queue(group) == 3


def test_a_queue_that_leaves_has_no_turn() -> None:
    group, assigned = reading(2)
    for one in assigned:
        fill(one, 3)
    assert next_queue(group) == 0
    group.leave(assigned[1].queue)
    assert [next_queue(group) for _ in range(3)] == [0, 0, None]


def test_what_becomes_of_the_callers_dict_of_topics_changes_no_subscription() -> None:
    topics: dict[str, str | Sql] = {"t": "*"}
    subscription = Subscription(group="g", topics=topics)
    topics["no topic!"] = ""
    assert subscription.topics == {"t": "*"}
