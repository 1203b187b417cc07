"""Namespaces: an application's own names inside, whole names at brokers."""

import asyncio
from collections.abc import Sequence

import pytest

from reliable_mq.client.connecting.namespace import NO_NAMESPACE, Namespace
from reliable_mq.client.consuming.allocation import Configured
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import Message, MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

SHOP = Namespace("shop")


@pytest.mark.parametrize(
    ("own", "whole"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%payments", "%RETRY%shop%payments"),
        ("%DLQ%payments", "%DLQ%shop%payments"),
        ("other%orders", "shop%other%orders"),
        ("shopping", "shop%shopping"),
    ],
)
def test_names_get_the_namespace_and_lose_it_as_javas_do(own: str, whole: str) -> None:
    assert SHOP.full_name(own) == whole
    assert SHOP.full_name(whole) == whole, "a whole name stays whole"
    assert SHOP.own_name(whole) == own


@pytest.mark.parametrize(
    "name",
    ["TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_x", "CID_RMQ_SYS_TRANS", ""],
)
def test_names_of_the_brokers_belong_to_nobody(name: str) -> None:
    assert SHOP.full_name(name) == name
    assert SHOP.own_name(name) == name


def test_without_a_namespace_nothing_is_copied() -> None:
    message = Message(topic="shop%orders", body=b"x")
    subscription = Subscription(group="g", topics={"t": "*"})
    assert NO_NAMESPACE.whole_message(message) is message
    assert NO_NAMESPACE.whole_subscription(subscription) is subscription
    assert NO_NAMESPACE.own_name("shop%orders") == "shop%orders"


def test_queues_that_are_given_by_hand_are_those_of_the_namespace() -> None:
    given = Configured((MessageQueue("orders", "a", 0),))
    subscription = Subscription(group="g", topics={"orders": "paid"}, allocation=given)
    whole = SHOP.whole_subscription(subscription)
    assert (whole.group, whole.topics) == ("shop%g", {"shop%orders": "paid"})
    assert whole.allocation == Configured((MessageQueue("shop%orders", "a", 0),))
    assert whole.retry_topic == "%RETRY%shop%g"


@pytest.mark.parametrize("name", ["a%b", "a b", "ü"])
def test_a_namespace_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        ClientSettings(namespace=name)


def test_a_plain_function_sees_own_names_too() -> None:
    seen: list[ReceivedMessage] = []

    def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        seen.extend(messages)
        return [CONSUMED] * len(messages)

    message = ReceivedMessage(
        topic="shop%t", body=b"x", queue=MessageQueue("%RETRY%shop%g", "a", 0), queue_offset=0
    )
    outcomes = SHOP.own_handler(handle)([message])
    assert not asyncio.iscoroutine(outcomes)
    assert (seen[0].topic, seen[0].queue.topic) == ("t", "%RETRY%g")
