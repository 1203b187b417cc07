"""Where a message's business key is read: a field of its payload, or a function's answer."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from reliable_mq.errors import KeyInvalid, UsageError
from reliable_mq.idempotency.business_key import business_key
from reliable_mq.idempotency.key_reading import key_reader_of
from reliable_mq.message import MessageQueue, ReceivedMessage

MESSAGE = ReceivedMessage(
    topic="orders", body=b"", keys=("k-1",), queue=MessageQueue("t", "b", 0), queue_offset=0
)


class Customer:
    name = "ada"
    _secret = "s"


class Order:
    customer = Customer()
    lines: ClassVar[dict[str, Any]] = {"first": {"sku": "s-1"}}


def by_message(message: ReceivedMessage) -> str:
    return message.keys[0]


def by_order(order: Order) -> str:
    return order.customer.name


def by_text(order: "Order") -> str:
    return order.customer.name


def with_unknown(order: "NoSuchType") -> str:  # type: ignore[name-defined]  # noqa: F821
    return str(order.customer.name)


def with_default(order: Order, suffix: str = "!") -> str:
    return order.customer.name + suffix


@pytest.mark.parametrize(
    ("source", "shown", "needs_payload"),
    [
        ("customer.name", "ada", True),
        ("lines.first.sku", "s-1", True),
        (by_message, "k-1", False),
        (by_order, "ada", True),
        (by_text, "ada", True),
        (with_unknown, "ada", True),
        (with_default, "ada!", True),
        (lambda order: 5, "5", True),
    ],
)
def test_a_key_is_a_field_of_the_payload_or_the_answer_of_a_function(
    source: Any, shown: str, needs_payload: bool
) -> None:
    reader = key_reader_of(source, "payments")
    assert reader.read(Order(), MESSAGE) == business_key(shown)
    assert reader.needs_payload is needs_payload


def test_a_function_of_python_gets_the_payload() -> None:
    """A builtin tells nothing of its arguments."""
    assert key_reader_of(str, "payments").read(17, MESSAGE) == business_key("17")
    assert key_reader_of(max, "payments").read([3, 5], MESSAGE) == business_key(5)


def two(order: Order, other: Order) -> str:
    return "x"


def nothing() -> str:
    return "x"


async def later(order: Order) -> str:
    return "x"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "idempotent_by='' is not a field's name"),
        ("a..b", "idempotent_by='a..b' is not a field's name"),
        ("a. ", "is not a field's name"),
        (5, "idempotent_by=5 is not a field's name or function"),
        (two, "idempotent_by must be a function of one argument"),
        (nothing, "idempotent_by must be a function of one argument"),
        (later, "idempotent_by is an async def; it must be a plain def"),
    ],
)
def test_what_can_read_no_key_is_refused_with_the_name_of_the_consumer(
    source: Any, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        key_reader_of(source, "payments")
    assert str(refused.value).startswith("payments: ")
    assert said in str(refused.value)


def fails(_order: Order) -> str:
    raise ZeroDivisionError("no digit")


def refuses(_order: Order) -> str:
    raise KeyInvalid("not this one")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("customer.age", "there is no 'age' to read the key from"),
        ("customer._secret", "there is no '_secret' to read the key from"),
        ("lines.second", "there is no 'second' to read the key from"),
        ("lines.items", "there is no 'items' to read the key from"),
        ("customer", "a Customer cannot be a key"),
        (fails, "idempotent_by: .*no digit"),
        (refuses, "^not this one$"),
        (lambda _order: None, "the key is None"),
    ],
)
def test_a_message_without_a_key_is_invalid(source: str | Callable[..., Any], said: str) -> None:
    with pytest.raises(KeyInvalid, match=said):
        key_reader_of(source, "payments").read(Order(), MESSAGE)
