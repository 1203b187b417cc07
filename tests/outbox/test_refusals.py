"""What could not be sent, found or stored later is refused in the transaction."""

from typing import Any

import pytest
from tests.outbox.benches import Bench

from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.outbox.schema import schema


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tag": "t" * 256}, "the tag has 256 characters, 255 are allowed"),
        ({"key": "k" * 256}, "the key has 256 characters"),
        ({"ordering_key": "k" * 256}, "the ordering_key has 256 characters"),
        ({"key": "a\0b"}, "the key 'a.x00b' holds a character that cannot be printed"),
        ({"tag": "paid\n"}, "the tag 'paid.n' holds"),
        ({"tag": "paid || refunded"}, "no consumer can subscribe to it"),
        ({"tag": "*"}, "no consumer can subscribe to it"),
        ({"tag": " paid"}, "no consumer can subscribe to it"),
        ({"properties": {"a": "\x01"}}, "separators"),
        ({"properties": {"a": "x" * 40_000}}, "at most|are allowed"),
        ({"properties": {"a": "x" * 32_000}}, "bytes, 31743 are allowed"),
        ({"properties": {"a": "\ud800"}}, "not valid Unicode"),
        ({"key": float("nan")}, "not nan"),
        ({"key": float("inf")}, "not inf"),
        ({"properties": {"": "a"}}, "give the property a name"),
        ({"properties": {"a": 1}}, "property 'a'=1: both must be str"),
        ({"properties": {1: "a"}}, "property 1='a': both must be str"),
    ],
)
def test_texts_that_a_column_a_filter_or_a_record_cannot_hold_are_refused(
    bench: Bench, options: dict[str, Any], says: str
) -> None:
    with bench.transaction() as tx:
        with pytest.raises(MessageRefused, match=says):
            tx.send("orders", {"id": 1}, **options)
        kept = tx.send("orders", {"id": 1}, tag="t" * 255, key="ü" * 255, ordering_key="k" * 255)

    assert bench.ids() == [kept]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": 5}, r"delay=5: a timedelta is needed"),
        ({"required_groups": ("no such,group",)}, "'no such,group' is not a legal name"),
        ({"message_id": "é" * 32}, "32 characters of a-z"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_with_what_to_write(
    bench: Bench, options: dict[str, Any], says: str
) -> None:
    with bench.transaction() as tx, pytest.raises(UsageError, match=says):
        tx.send("orders", {"id": 1}, **options)


@pytest.mark.parametrize(
    "topic",
    ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "a b", "", None],
)
def test_a_topic_that_no_broker_takes_messages_of_is_refused_before_its_groups_are_missed(
    bench: Bench, topic: Any
) -> None:
    missed: list[str] = []

    def groups(topic: str, _tag: str) -> tuple[str, ...]:
        missed.append(topic)
        return ()

    bench.outbox._composer._groups_of_topic = groups
    with bench.transaction() as tx, pytest.raises(MessageRefused, match="topic"):
        tx.send(topic, {"id": 1})

    assert (missed, bench.ids()) == ([], [])


@pytest.mark.parametrize("version", ["1", 1.0, True, None])
def test_a_version_of_a_schema_that_is_no_whole_number_is_refused(version: Any) -> None:
    with pytest.raises(UsageError, match=r"schema order: version=.* is not 1"):
        schema("order", version=version)
