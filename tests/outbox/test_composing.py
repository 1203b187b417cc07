"""What callers ask for becomes a stub, or is refused before anything is written."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reliable_mq.errors import ConfigurationError, MessageRefused, ReliableMQError, UsageError
from reliable_mq.message import new_message_id
from reliable_mq.message_digest import RESERVED
from reliable_mq.outbox.composing import Composer, checked_groups
from reliable_mq.outbox.stub import Stub

NOW = 1_700_000_000.25
RANGE = 3600.0
HOUR = timedelta(hours=1)


def composed(payload: Any = b"x", *, topic: str = "orders", **options: Any) -> Stub:
    def groups_of(topic: str, tag: str) -> tuple[str, ...]:
        return (f"of-{topic}-{tag}",)

    return Composer(groups_of, lambda size: b"\x07" * size, RANGE).stub(
        NOW, topic, payload, **options
    )


def test_a_stub_has_what_its_caller_asked_for() -> None:
    asked: dict[str, Any] = {
        "tag": "paid",
        "key": 17,
        "ordering_key": "c-1",
        "properties": {"region": "eu"},
    }
    options: dict[str, Any] = {"required_groups": ("audit",), "message_id": "M" * 32}
    stub = composed(b"x", content_type="application/x-own", delay=HOUR, **asked, **options)
    assert stub == Stub(
        seq=0,
        message_id="M" * 32,
        topic="orders",
        content=b"x",
        tag="paid",
        message_key="17",
        ordering_key="c-1",
        content_type="application/x-own",
        properties={"region": "eu"},
        required_groups=("audit",),
        deliver_time=NOW + 3600,
    )


def test_what_a_caller_leaves_out_is_empty_or_found() -> None:
    """The id begins with the time, and the groups are those of the topic and the tag."""
    assert composed({"id": 1}, tag="paid", key=None, ordering_key=None) == Stub(
        seq=0,
        message_id=new_message_id(1_700_000_000_250, b"\x07" * 10),
        topic="orders",
        content=b'{"id":1}',
        tag="paid",
        content_type="application/json",
        required_groups=("of-orders-paid",),
    )


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"topic": "not legal!"}, ReliableMQError, "topic"),
        ({"required_groups": "audit"}, UsageError, "required_groups='audit': a tuple of names"),
        ({"required_groups": 5}, UsageError, "required_groups=5: a tuple of names"),
        ({"required_groups": ("not legal!",)}, ConfigurationError, "consumer group"),
        ({"message_id": "M" * 31}, UsageError, "must have 32 characters"),
        ({"message_id": "M" * 31 + "!"}, UsageError, "must have 32 characters"),
        ({"message_id": 5}, UsageError, "must have 32 characters"),
        ({"properties": "region"}, UsageError, "a dict of names and texts"),
        ({"properties": {min(RESERVED): "x"}}, MessageRefused, f"{min(RESERVED)} is written by"),
        ({"tag": "a || b"}, MessageRefused, "no consumer can subscribe to it"),
        ({"delay": HOUR, "deliver_at": datetime.now(UTC)}, UsageError, "not both"),
    ],
)
def test_what_cannot_be_sent_is_refused(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        composed(**options)


def test_several_groups_may_be_any_collection_of_names() -> None:
    for groups in (("a", "b"), ["a", "b"], {"a": 1, "b": 2}):
        assert list(checked_groups(groups)) == ["a", "b"]  # type: ignore[arg-type]
    assert composed(required_groups=()).required_groups == ()


def test_a_message_with_an_ordering_key_must_not_wait_in_the_database() -> None:
    """Brokers keep the time of a message that is within their range."""
    tick = timedelta(milliseconds=1)
    assert composed(ordering_key="k", delay=HOUR).deliver_time == NOW + RANGE
    with pytest.raises(UsageError, match="timer_range_seconds=3600 ahead"):
        composed(ordering_key="k", delay=HOUR + tick)
    assert composed(delay=HOUR + tick).deliver_time == pytest.approx(NOW + 3600.001)
    assert composed(ordering_key="k", delay=timedelta(0)).deliver_time is None


def test_properties_leave_room_for_what_is_added_on_the_way() -> None:
    """A signature, brokers and their retries need a kibibyte."""

    def of_size(count: int) -> Stub:
        return composed(properties={"a": "x" * count}, required_groups=())

    with pytest.raises(MessageRefused, match=r"have (\d+) bytes, 31743 are allowed") as refused:
        of_size(31_743)
    beside = int(str(refused.value).split()[3]) - 31_743
    assert of_size(31_743 - beside).properties["a"]
    with pytest.raises(MessageRefused, match="have 31744 bytes, 31743 are allowed"):
        of_size(31_744 - beside)


def test_the_names_of_very_many_groups_are_refused_like_long_properties() -> None:
    groups = tuple(f"{number:03}".ljust(120, "g") for number in range(264))
    with pytest.raises(MessageRefused, match="are allowed"):
        composed(required_groups=groups)
    assert len(composed(required_groups=groups[:200]).required_groups) == 200


def many(payloads: Any, **options: Any) -> list[Stub]:
    composer = Composer(lambda *_: (), lambda size: b"\x07" * size, RANGE)
    return composer.stubs(NOW, "orders", payloads, options)  # type: ignore[arg-type]


def test_each_option_of_many_is_one_value_or_a_function_of_the_payload() -> None:
    stubs = many(
        ({"n": number} for number in range(2)),
        tag="paid",
        key=lambda order: order["n"],
        message_id=lambda order: str(order["n"]) * 32,
    )
    told = [(each.message_id, each.tag, each.message_key, each.content) for each in stubs]
    assert told == [("0" * 32, "paid", "0", b'{"n":0}'), ("1" * 32, "paid", "1", b'{"n":1}')]
    assert many([]) == []


@pytest.mark.parametrize(
    ("payloads", "options", "said"),
    [
        ("text", {}, "a str is one payload"),
        (b"bytes", {}, "a bytes is one payload"),
        ({"id": 1}, {}, "a dict is one payload"),
        (5, {}, "5 is not a list of payloads"),
        ([b"x"], {"message_id": "M" * 32}, "message_id must be a function"),
    ],
)
def test_many_messages_that_cannot_be_meant_are_refused(
    payloads: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        many(payloads, **options)


def test_an_option_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"^send has no option dely; did you mean delay\?$"):
        composed(b"x", dely=3)
    with pytest.raises(TypeError, match=r"^send has no option zzz; there are content_type, "):
        composed(b"x", zzz=3)


def test_a_key_that_has_no_text_or_a_space_is_refused_by_its_name() -> None:
    with pytest.raises(MessageRefused, match="a key is a text or a number, not an object"):
        composed(key=object())
    with pytest.raises(MessageRefused, match="the message key 'a b' contains a space"):
        composed(key="a b")
