"""Wrong uses of the Django package in code: each is one line that says what to do."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import (
    IntegrityError,
    connections,
    transaction,
)
from django.db.models import QuerySet
from django.http import HttpRequest
from tests.app.lives import A
from tests.contrib.django_lives import consumed, handled
from tests.contrib.django_project import project, set_up

from reliable_mq import ReceivedMessage
from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.errors import ReliableMQError
from reliable_mq.outbox.schema import PayloadInvalid
from reliable_mq.outcomes import Reject
from reliable_mq.testing.message_world import MessageWorld

set_up()

from tests.contrib.django_shop.models import Order, Payment  # noqa: E402 - after the settings

NO_HANDLER = 'write @mq.consumer("orders", group="payments")'
NO_SEND = 'write mq.send("orders", {"id": order.id}, key=order.id)'
ROW = "send its id, and load the row in the handler"


@pytest.fixture
def mq(postgres_url: str) -> Iterator[DjangoMQ]:
    with project(postgres_url, billing="sqlite:///never-used.db") as made:
        yield made


def takes(kind: object) -> Callable[[Any], None]:
    """Return a handler whose payload has this annotation."""

    def pay(order: Any) -> None:
        """Handle nothing."""

    pay.__annotations__ = {"order": kind}
    return pay


def sent(mq: Any, *given: Any, **options: Any) -> None:
    with transaction.atomic():
        mq.send(*given, **options)


def sent_many(mq: Any, payloads: Any, **options: Any) -> None:
    with transaction.atomic():
        mq.send_many("orders", payloads, **options)


def declared(mq: Any, *given: Any, **options: Any) -> None:
    mq.consumer(*given, **options)(takes(dict))


def in_another_database(mq: Any) -> None:
    connections["billing"].atomic_blocks.append(transaction.Atomic("billing", True, False))
    try:
        mq.send("orders", {})
    finally:
        connections["billing"].atomic_blocks.clear()


def in_a_hook(mq: Any) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: mq.send("orders", {}))


def in_a_world(mq: Any) -> None:
    with transaction.atomic(), MessageWorld(mq):
        pass


def in_a_broken_transaction(mq: Any) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        mq.send("orders", {})


def several(order_id: int, amount: int) -> None:
    """Handle nothing."""


class Till:
    """A class with a handler in it."""

    def pay(self, order: dict[str, Any]) -> None:
        """Handle nothing."""


ORDER = Order(id=3, item="tea")

USES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a handler of a model": (
        lambda mq: mq.consumer("orders", group="g")(takes(Order)),
        f"no payload is an object of Order: {ROW}",
    ),
    "a handler of models": (
        lambda mq: mq.consumer("orders", group="g")(takes(list[Order])),
        f"no payload is an object of Order: {ROW}",
    ),
    "a handler of a model or nothing": (
        lambda mq: mq.consumer("orders", group="g")(takes(Order | None)),
        f"no payload is an object of Order: {ROW}",
    ),
    "a handler of a query": (
        lambda mq: mq.consumer("orders", group="g")(takes(QuerySet[Order])),
        "no payload is an object of QuerySet: send its ids, list(….values_list(",
    ),
    "a handler of a request": (
        lambda mq: mq.consumer("orders", group="g")(takes(HttpRequest)),
        "no payload is an object of HttpRequest: send the fields of the request that the handler",
    ),
    "a topic of a model": (lambda mq: mq.topic("orders", payload=Order), ROW),
    "a handler that is a method": (
        lambda mq: mq.consumer("orders", group="g")(Till.pay),
        "Till.pay: it is a method, and nobody has an object for it: decorate a function outside",
    ),
    "a consumer without parentheses": (
        lambda mq: mq.consumer(in_a_hook),
        f"@mq.consumer needs parentheses: {NO_HANDLER}",
    ),
    "a consumer without a group": (
        lambda mq: declared(mq, "orders"),
        f"consumer(): group is missing: {NO_HANDLER}",
    ),
    "a group by its place": (
        lambda mq: declared(mq, "orders", "payments"),
        f"consumer(): options are given by name: {NO_HANDLER}",
    ),
    "a misspelt group": (lambda mq: declared(mq, "orders", gruop="g"), "did you mean group?"),
    "a consumer using an alias": (
        lambda mq: declared(mq, "orders", group="g", using="default"),
        "consumer() has no 'using'; did you mean database?",
    ),
    "a consumer of a database without tables": (
        lambda mq: declared(mq, "orders", group="g", database="billing"),
        "write RELIABLE_MQ['DATABASES'] = ['default', 'billing'], then run python manage.py migra",
    ),
    "a consumer of a database that there is not": (
        lambda mq: declared(mq, "orders", group="g", database="biling"),
        "DATABASES has no 'biling'; RELIABLE_MQ['DATABASES'] has default",
    ),
    "a periodic message without parentheses": (
        lambda mq: mq.periodic(in_a_hook),
        "@mq.periodic needs parentheses: write @mq.periodic(",
    ),
    "a periodic message without a topic": (
        lambda mq: mq.periodic("0 3 * * *"),
        "periodic(): topic is missing: write @mq.periodic(",
    ),
    "a send without a payload": (
        lambda mq: mq.send("orders"),
        f"send(): payload is missing: {NO_SEND}",
    ),
    "a key by its place": (
        lambda mq: mq.send("orders", {}, 4711),
        f"send(): options are given by name: {NO_SEND}",
    ),
    "many without payloads": (
        lambda mq: mq.send_many("orders"),
        "send_many(): payloads is missing: write mq.send_many(",
    ),
    "a send to a database": (
        lambda mq: sent(mq, "orders", {}, database="default"),
        "send has no option database; did you mean using?",
    ),
    "many to a database": (
        lambda mq: sent_many(mq, [{}], db="default"),
        "send has no option db; did you mean using?",
    ),
    "a transaction using an alias": (
        lambda mq: mq.transaction(using="default"),
        "transaction() has no 'using'; did you mean database?",
    ),
    "a transaction of a database without tables": (
        lambda mq: mq.transaction(database="billing"),
        "the database 'billing' has no tables for messages: write RELIABLE_MQ['DATABASES']",
    ),
    "a send using a database without tables": (
        lambda mq: sent(mq, "orders", {}, using="billing"),
        "the database 'billing' has no tables for messages: write RELIABLE_MQ['DATABASES']",
    ),
    "a transaction of another database": (
        in_another_database,
        "the open transaction is one of 'billing', and the message would be in 'default': set RE",
    ),
    "no transaction": (
        lambda mq: mq.send("orders", {}),
        "no transaction is open, so a message could be sent without your rows: write `with ",
    ),
    "a transaction that was marked": (
        in_a_broken_transaction,
        "an error of the database was caught, and its transaction can only be rolled back: put the",
    ),
    "a handler that is a class": (
        lambda mq: mq.consumer("orders", group="g")(Till),
        "a handler is a def or an async def, not the class Till",
    ),
    "a handler of several fields": (
        lambda mq: mq.consumer("orders", group="g")(several),
        "'order_id' and 'amount' would both get the payload: a handler takes one payload, whole",
    ),
    "a hook": (in_a_hook, "mq.send(…) in transaction.on_commit: the transaction has ended"),
    "a world within a transaction": (
        in_a_world,
        "a transaction of 'default' is open around MessageWorld (a TestCase opens one around each",
    ),
    "a model": (lambda mq: sent(mq, "orders", ORDER), f"not an Order: {ROW}"),
    "a query": (
        lambda mq: sent(mq, "orders", Order.objects.all()),
        "not a QuerySet: send its ids, list(….values_list(",
    ),
    "a model in a dict": (
        lambda mq: sent(mq, "orders", {"order": ORDER}),
        f"order: Encoding objects of type Order is unsupported: {ROW}",
    ),
    "a model in a list": (lambda mq: sent(mq, "orders", [ORDER]), f"unsupported: {ROW}"),
    "a key that is a model": (
        lambda mq: sent(mq, "orders", {}, key=ORDER),
        "a key is a text or a number, not an Order; give its id",
    ),
    "an ordering key that is a model": (
        lambda mq: sent(mq, "orders", {}, ordering_key=ORDER),
        "a key is a text or a number, not an Order; give its id",
    ),
    "a payload before its topic": (
        lambda mq: sent(mq, {"id": 1}, "orders"),
        'the topic comes first, send("orders", {…})',
    ),
    "a key that names a field": (
        lambda mq: sent_many(mq, [{"id": 1}, {"id": 2}], key="id"),
        "key='id' would be the key of every message: for the field of each one write key=lambda",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_wrong_code_is_an_error_of_one_line_that_says_what_to_do(mq: DjangoMQ, name: str) -> None:
    use, says = USES[name]

    with pytest.raises(ReliableMQError) as found:
        use(mq)

    assert says in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("publish", r"write mq.send\(…\) in a transaction; it is not awaited"),
        ("asend", r"write mq.send\(…\) in a transaction; it is not awaited"),
        ("task", 'write @mq.consumer\\("orders", group="payments"\\) before a handler'),
    ],
)
def test_the_words_of_other_libraries_lead_to_ours(mq: DjangoMQ, name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=says):
        getattr(mq, name)


def durable() -> None:
    with transaction.atomic(durable=True):
        pass


def catches() -> None:
    order = Order.objects.create(item="tea")
    try:
        Order.objects.create(pk=order.pk, item="again")
    except IntegrityError:
        Payment.objects.count()


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (transaction.commit, r"leave transaction.commit\(\), rollback\(\) and set_autocommit\(\)"),
        (durable, r"write transaction.atomic\(\) without durable=True"),
        (catches, "put the step that may fail into its own `with transaction.atomic"),
    ],
)
def test_a_handler_that_acts_on_its_transaction_is_told_where_and_what_to_do(
    mq: DjangoMQ, act: Callable[[], None], says: str
) -> None:
    def pay(message: ReceivedMessage) -> None:
        act()

    (outcome,) = handled(mq, pay, A, max_attempts=1)

    assert isinstance(outcome, Reject)
    assert consumed(mq) == []
    assert outcome.reason.count("\n") == 0
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(outcome.reason)
    assert "test_django_wrong_uses.py:" in outcome.reason


def test_an_error_of_the_database_shows_the_frames_of_the_application_and_one_cause(
    mq: DjangoMQ, caplog: pytest.LogCaptureFixture
) -> None:
    order = Order.objects.create(item="tea")
    calls: list[int] = []

    def pay(message: ReceivedMessage) -> None:
        calls.append(1)
        if len(calls) == 1:
            Order.objects.create(pk=order.pk, item="again")

    handled(mq, pay, A)

    (record,) = [each for each in caplog.records if each.exc_info]
    shown = caplog.handler.format(record)
    _, _, traceback = shown.partition("Traceback (most recent call last):\n")
    assert shown.count("Traceback") == 1
    assert [line for line in traceback.splitlines() if line.startswith('  File "')] == [
        line for line in traceback.splitlines() if "test_django_wrong_uses.py" in line
    ]
    assert "Order.objects.create(pk=order.pk" in traceback
    assert "UniqueViolation: duplicate key value" in traceback
    assert len(traceback.splitlines()) <= 6


def test_the_import_of_mq_from_the_wrong_package_names_the_right_one() -> None:
    with pytest.raises(ImportError, match=r"write `from reliable_mq.contrib.django import mq`"):
        from reliable_mq import mq  # noqa: F401


def test_a_number_where_the_payload_is_an_object_says_what_to_take(mq: DjangoMQ) -> None:
    mq.consumer("orders", group="g")(takes(int))
    (consumer,) = mq._declared.consumers
    assert consumer.plan.decode is not None

    assert consumer.plan.decode(b"7", "application/json") == 7
    with pytest.raises(PayloadInvalid, match="gets the whole payload; let it be a dict"):
        consumer.plan.decode(b'{"id": 7}', "application/json")
