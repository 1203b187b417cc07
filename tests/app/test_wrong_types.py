"""What an application is given that is of a wrong type: one sentence of ours, where it is given."""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reliable_mq import Reject, ReliableMQ, Retry
from reliable_mq.errors import ConfigurationError, UsageError


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ReliableMQ]:
    made = application(tmp_path)
    made.create_tables()
    yield made
    made.close()


def application(folder: Path, **options: Any) -> ReliableMQ:
    url = f"sqlite:///{folder}/a.db"
    return ReliableMQ("shop", broker="127.0.0.1:9", database=url, **options)


def handler(payload: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("max_attempts", None, "max_attempts of Consumer is of type NoneType: give an integer"),
        ("max_attempts", 2.5, "give an integer"),
        ("batch", "3", "batch of Consumer is of type str: give an integer"),
        ("concurrency", "8", "give an integer"),
        ("lease", "5", "lease of Consumer is of type str: give a finite number"),
        ("lease", timedelta(seconds=5), "give a finite number"),
        ("ordered", "no", "ordered of Consumer is of type str: give True or False"),
        ("log_receipt", None, "give True or False"),
        ("tag", ["paid"], "write several tags as one text, 'paid'"),
        ("tag", "paid|refunded", r"tags are separated by \|\|, as 'a \|\| b'"),
        ("tag", "a || b|c", r"tags are separated by \|\|"),
        ("tag", "a|||b", r"tags are separated by \|\|"),
        ("group", ["payments"], "a handler has one topic and one group"),
    ],
)
def test_an_option_of_a_consumer_is_refused_when_it_is_declared(
    mq: ReliableMQ, option: str, value: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        mq.consumer("orders", **{"group": "payments", option: value})(handler)

    mq.consumer("orders", group="payments", tag="paid || refunded||new")(handler)


def test_what_is_no_function_is_refused_where_it_is_decorated(mq: ReliableMQ) -> None:
    nothing: Any = 5
    with pytest.raises(UsageError, match="a handler is a def or an async def, not 5"):
        mq.consumer("orders", group="payments")(nothing)
    with pytest.raises(UsageError, match="decorate a def or an async def, not 5"):
        mq.idempotent(key="request")(nothing)


class Called:
    async def __call__(self, order: dict[str, Any]) -> None: ...


class Made:
    def __init__(self, order: dict[str, Any]) -> None: ...


def odd(order: "1/0") -> None: ...  # type: ignore[valid-type]


@dataclass
class Locked:
    """No payload: pydantic cannot read one of its fields."""

    lock: threading.Lock


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Called(), "not <.*Called object at .*>: write a def that calls it"),
        (partial(handler, {}), r"not functools\.partial\(.*\): write a def that calls it"),
        (Made, "not the class Made"),
        (odd, "odd: its annotations cannot be read: ZeroDivisionError: division by zero"),
    ],
)
def test_an_object_that_is_called_and_a_class_are_no_handlers(
    mq: ReliableMQ, given: Any, says: str
) -> None:
    """The object was not awaited, and the constructor of the class consumed."""
    for decorate in (
        mq.consumer("orders", group="payments"),
        mq.idempotent(key="order"),
        mq.periodic("@hourly", topic="orders"),
    ):
        with pytest.raises(UsageError, match=says):
            decorate(given)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (Locked(threading.Lock()), "topic orders: give the type of payloads, not a Locked"),
        (Locked, "topic orders: no payload can be a .*Locked.*: Unable to generate"),
        ({"id": 1}, "topic orders: no payload can be a {'id': 1}"),
    ],
)
def test_a_payload_that_is_no_type_is_refused_where_its_topic_is_declared(
    mq: ReliableMQ, payload: Any, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        mq.topic("orders", payload=payload)

    assert "\n" not in str(raised.value)


def test_names_of_groups_that_can_be_read_once_only_are_refused(mq: ReliableMQ) -> None:
    """They were read by the check, and none was left to wait for."""
    names: Any = (name for name in ("payments", "loyalty"))
    with pytest.raises(ConfigurationError, match="a list of names is needed"):
        mq.topic("orders", groups=names)


def test_a_topic_that_is_refused_is_not_declared(mq: ReliableMQ) -> None:
    with pytest.raises(ConfigurationError, match="not a legal name"):
        mq.topic("orders", payload=dict[str, int], envelope="cloudevents", groups=["no group!"])
    mq.topic("orders", payload=list[int], groups=[])
    with pytest.raises(UsageError, match="write a union of both"):
        mq.topic("orders", payload=dict[str, int], envelope="cloudevents", groups=["payments"])

    assert mq._declared.envelopes == {}
    assert mq._declared.sent == {"orders": list[int]}
    assert mq.groups_of("orders") == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"properties": [("a", "b")]}, "a dict of names and texts is needed"),
        ({"required_groups": (name for name in ["payments"])}, "a tuple of names is needed"),
        ({"required_groups": 5}, "a tuple of names is needed"),
        ({"tag": None}, "tag=None: it must be text"),
        ({"content_type": 5, "payload": "text"}, "content type 5 is not a text"),
        ({"message_id": 5}, "message_id 5 must have 32 characters"),
        ({"delay": timedelta.max}, "more than a hundred years ahead"),
    ],
)
def test_what_is_said_of_a_message_is_refused_where_it_is_sent(
    mq: ReliableMQ, options: dict[str, Any], says: str
) -> None:
    with mq.transaction() as tx, pytest.raises(UsageError, match=says):
        tx.send(**{"topic": "orders", "payload": {"id": 1}, **options})
    if not options.keys() & {"payload", "message_id"}:
        with mq.transaction() as tx, pytest.raises(UsageError, match=says):
            tx.send_many("orders", [{"id": 1}], **options)


@pytest.mark.parametrize("payloads", [None, 5])
def test_payloads_that_are_no_list_are_refused(mq: ReliableMQ, payloads: Any) -> None:
    with mq.transaction() as tx, pytest.raises(UsageError, match="is not a list of payloads"):
        tx.send_many("orders", payloads)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (Retry, "5", "after of Retry is '5': give a number of seconds"),
        (Reject, 5, "the reason of Reject is 5: give text"),
    ],
)
def test_what_a_handler_raises_is_refused_where_it_is_made(
    kind: Callable[[Any], Exception], value: Any, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        kind(value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window": timedelta.max}, "positive, a hundred years at most"),
        ({"scope": 5}, "scope is 5: give text"),
        ({"compare": 5}, "compare=5 is not a parameter or a function"),
    ],
)
def test_an_idempotent_function_is_refused_when_it_is_decorated(
    mq: ReliableMQ, options: dict[str, Any], says: str
) -> None:
    def place(request: str) -> int:
        return 1

    with pytest.raises(UsageError, match=says):
        mq.idempotent(**{"key": "request", **options})(place)


class Pager:
    """A notifier; each of its lacks is one test's."""

    name: Any = "pager"
    cooldown: Any = 0.0

    def tell(self, digest: Any) -> None: ...


class Nameless(Pager):
    name = None


class Hasty(Pager):
    cooldown = "5"


@pytest.mark.parametrize(
    ("notifiers", "says"),
    [
        ([None], "notifier None is not an object with `name`, `cooldown` and `tell"),
        (["x"], "notifier 'x' is not an object"),
        ([Pager], "is not an object with"),
        (Pager(), "give a list of them"),
        ("x", "give a list of them"),
        ([Nameless()], "notifier None: a name has 1..64 printable characters"),
        ([Hasty()], "cooldown='5' must be 0 or more seconds"),
        ([Pager(), Pager()], "two notifiers share a name: pager, pager"),
    ],
)
def test_a_notifier_is_refused_when_the_application_is_made(
    tmp_path: Path, notifiers: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        application(tmp_path, notifiers=notifiers)


def test_a_wait_that_the_broker_cannot_keep_is_refused() -> None:
    Retry(after=7200)
    for wrong in (7201, -1, math.nan, 10**400, Fraction(-1, 2)):
        with pytest.raises(UsageError, match=r"within 0\.\.7200 s"):
            Retry(after=wrong)  # type: ignore[arg-type]
    for none in (True, "5", 1j):
        with pytest.raises(
            UsageError, match=r"after of Retry is .*: give a number of seconds, a timedelta or None"
        ):
            Retry(after=none)  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [5, 5.0, Fraction(5), np.int64(5), np.float32(5)])
def test_a_wait_may_be_any_real_number(after: Any) -> None:
    kept = Retry(after=after).after

    assert (kept, type(kept)) == (5.0, float)
