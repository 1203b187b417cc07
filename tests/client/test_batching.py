"""Many messages, few requests, and no ordering key out of order."""

from hypothesis import given
from hypothesis import strategies as st
from tests.client.script import World, random_bytes, route_table, routes_answer

from reliable_mq.client.sending.batching import Item, plan, plan_many
from reliable_mq.client.sending.outgoing import prepared_message
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.queue_choice import queue_of_key
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import MessageRefused, NoRoute
from reliable_mq.message import Message, MessageQueue
from reliable_mq.wire.codes import RequestCode

QUEUES = {topic: tuple(MessageQueue(topic, "a", at) for at in range(4)) for topic in ("t", "u")}

messages = st.lists(
    st.builds(
        Message,
        topic=st.sampled_from(["t", "u"]),
        message_id=st.just("ID"),
        body=st.integers(1, 400).map(bytes),
        ordering_key=st.sampled_from(["", "", "k1", "k2", "k3"]),
        delay_level=st.sampled_from([0, 0, 0, 2]),
    ),
    max_size=60,
)


def items_of(batch: list[Message]) -> list[Item]:
    return [(at, prepared_message(message, 0, random_bytes)) for at, message in enumerate(batch)]


@given(messages=messages, count_max=st.integers(1, 10))
def test_every_message_is_planned_once_within_the_limits_and_in_order(
    messages: list[Message], count_max: int
) -> None:
    groups = plan(items_of(messages), QUEUES.__getitem__, count_max=count_max, size_max=1500)
    positions = [position for group in groups for position in group.positions]
    assert sorted(positions) == list(range(len(messages)))
    for group in groups:
        planned = [out for batch in group.batches for out in batch]
        assert [out.message for out in planned] == [messages[at] for at in group.positions]
        for batch in group.batches:
            assert 1 <= len(batch) <= count_max
            assert len({out.message.topic for out in batch}) == 1
            assert len(batch) == 1 or sum(out.batch_size for out in batch) <= 1500
            assert len(batch) == 1 or not any(out.message.delay_level for out in batch)
        keyed = [at for at in group.positions if messages[at].ordering_key]
        assert keyed == sorted(keyed), "one key must leave in the order it was given in"


@given(messages=messages)
def test_one_ordering_key_is_in_one_group_bound_to_its_queue(messages: list[Message]) -> None:
    groups = plan(items_of(messages), QUEUES.__getitem__, count_max=5, size_max=1500)
    for group in groups:
        for at in group.positions:
            message = messages[at]
            if message.ordering_key:
                assert group.queue == queue_of_key(message.ordering_key, QUEUES[message.topic])
            else:
                assert group.queue is None


def test_messages_without_a_key_are_spread_over_the_queues() -> None:
    groups = plan(
        items_of([Message(topic="t", body=b"x")] * 400),
        QUEUES.__getitem__,
        count_max=256,
        size_max=1_000_000,
    )
    assert [len(group.positions) for group in groups] == [100] * 4


def test_a_refused_message_and_a_topic_without_route_fail_alone() -> None:
    world = World({RequestCode.GET_ROUTEINFO_BY_TOPIC: routes_answer({"t": {"a": 4}})})
    settings = ClientSettings()
    routes = route_table(settings)
    batch = [
        Message(topic="t", body=b"x"),
        Message(topic="t", body=b""),
        Message(topic="unknown", body=b"x"),
        Message(topic="t", body=b"y"),
    ]
    producer = SendFlows(settings, routes, random_bytes)
    planned = world.play(plan_many(producer, routes, settings, batch))
    assert [group.positions for group in planned.groups] == [(0, 3)]
    assert isinstance(planned.failures[1], MessageRefused)
    assert isinstance(planned.failures[2], NoRoute)
