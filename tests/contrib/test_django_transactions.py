"""Messages inside of Django's atomic blocks: they exist if and only if the block committed."""

import unittest
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client, TestCase, override_settings
from django.urls import path
from sqlalchemy import select
from tests.contrib.django_project import project, set_up

from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.errors import ConfigurationError, MessageRefused, UsageError

set_up()

from tests.contrib.django_shop.models import Order  # noqa: E402 - after Django was configured


class Noted:
    """A relay that notes what it is handed."""

    def __init__(self) -> None:
        self.stubs: list[str] = []

    def accept_committed(self, stubs: list[Any]) -> None:
        self.stubs += [stub.topic for stub in stubs]


@pytest.fixture
def mq(database_url: str) -> Iterator[DjangoMQ]:
    with project(database_url) as made:
        yield made


@pytest.fixture
def relay(mq: DjangoMQ, monkeypatch: pytest.MonkeyPatch) -> Noted:
    noted = Noted()
    monkeypatch.setattr(mq._connections, "relay", lambda *_: noted)
    return noted


def kept(mq: DjangoMQ) -> tuple[int, list[str]]:
    """Return how many orders there are, and the topics of all stubs, seen from elsewhere."""
    with mq.database.reading_engine.connect() as other:
        orders = other.exec_driver_sql("SELECT count(*) FROM shop_order").scalar_one()
        stubs = select(mq.database.stubs.c.topic).order_by(mq.database.stubs.c.seq)
        return orders, list(other.execute(stubs).scalars())


def place(mq: DjangoMQ, topic: str = "orders") -> None:
    order = Order.objects.create(item="tea")
    mq.send(topic, {"id": order.pk}, key=str(order.pk))


def fail_in_a_block(mq: DjangoMQ, topic: str) -> None:
    """Place an order in an atomic block that raises."""
    with transaction.atomic():
        place(mq, topic)
        raise RefusedError


def fail_in_a_block_of_mq(mq: DjangoMQ, topic: str) -> None:
    with mq.transaction() as tx:
        Order.objects.create(item="rum")
        tx.send(topic, {"id": 2})
        raise RefusedError


class RefusedError(Exception):
    """What a block raises."""


def test_order_and_message_are_one_commit_and_the_relay_gets_it_after_that(
    mq: DjangoMQ, relay: Noted
) -> None:
    with transaction.atomic():
        place(mq)
        assert kept(mq) == (0, [])
        assert relay.stubs == []

    assert kept(mq) == (1, ["orders"])
    assert relay.stubs == ["orders"]


def test_a_block_that_raises_keeps_neither(mq: DjangoMQ, relay: Noted) -> None:
    with pytest.raises(RefusedError):
        fail_in_a_block(mq, "orders")

    assert kept(mq) == (0, [])
    assert relay.stubs == []


def test_an_inner_block_that_raises_takes_its_messages_with_it(mq: DjangoMQ, relay: Noted) -> None:
    with transaction.atomic():
        place(mq, "first")
        with pytest.raises(RefusedError):
            fail_in_a_block(mq, "second")
        place(mq, "third")

    assert kept(mq) == (2, ["first", "third"])
    assert relay.stubs == ["first", "third"]


def test_a_block_of_mq_is_an_atomic_block(mq: DjangoMQ, relay: Noted) -> None:
    with mq.transaction() as tx:
        Order.objects.create(item="tea")
        tx.send("orders", {"id": 1})
        tx.send_many("parts", [{"id": 1}, {"id": 2}])
    with pytest.raises(RefusedError):
        fail_in_a_block_of_mq(mq, "orders")

    assert kept(mq) == (1, ["orders", "parts", "parts"])
    assert relay.stubs == ["orders", "parts", "parts"]
    with pytest.raises(UsageError, match="this transaction has ended"):
        tx.send("orders", {"id": 3})


def test_a_block_of_mq_inside_of_another_one_is_a_savepoint(mq: DjangoMQ, relay: Noted) -> None:
    with transaction.atomic():
        with mq.transaction() as tx:
            tx.send("first", {})
        assert relay.stubs == []
        with pytest.raises(RefusedError):
            fail_in_a_block_of_mq(mq, "second")

    assert kept(mq) == (0, ["first"])
    assert relay.stubs == ["first"]


def test_a_send_outside_of_a_transaction_is_refused(mq: DjangoMQ) -> None:
    with pytest.raises(UsageError, match=r"write `with transaction.atomic\(\):` around them"):
        mq.send("orders", {})

    assert kept(mq) == (0, [])


def test_a_send_in_a_broken_transaction_is_refused_as_a_query_is(mq: DjangoMQ) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(UsageError, match="its transaction can only be rolled back: put the st"):
            mq.send("orders", {})

    assert kept(mq) == (0, [])


def test_a_refused_message_leaves_the_transaction_usable(mq: DjangoMQ) -> None:
    with transaction.atomic():
        with pytest.raises(MessageRefused):
            mq.send("no such topic!", {})
        place(mq)

    assert kept(mq) == (1, ["orders"])


def test_after_a_block_django_is_in_autocommit_again(mq: DjangoMQ) -> None:
    for _ in range(3):
        with transaction.atomic():
            place(mq)

    assert connection.get_autocommit()
    assert not connection.in_atomic_block
    Order.objects.create(item="rum")
    assert kept(mq)[0] == 4


def test_a_message_in_a_test_case_of_django_is_never_handed_over(
    mq: DjangoMQ, relay: Noted
) -> None:
    class Places(TestCase):
        databases = frozenset({"default"})

        def runTest(self) -> None:  # noqa: N802 - the name that unittest knows
            with self.captureOnCommitCallbacks() as callbacks, transaction.atomic():
                place(mq)
            assert len(callbacks) == 1
            assert Order.objects.count() == 1
            with pytest.raises(UsageError, match="no transaction is open"):
                mq.send("orders", {})  # as in production: the block of a TestCase is none of ours

    result = unittest.TestResult()
    unittest.TestSuite([Places()]).run(result)
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]
    assert kept(mq) == (0, [])
    assert relay.stubs == []


@pytest.mark.parametrize("raises", [False, True])
def test_a_view_with_atomic_requests_commits_its_message_with_its_rows(
    mq: DjangoMQ, relay: Noted, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    def place_order(_request: Any) -> HttpResponse:
        place(mq)
        assert relay.stubs == []
        if raises:
            raise RefusedError
        return HttpResponse(status=201)

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with override_settings(
        ROOT_URLCONF=(path("orders", place_order),), ALLOWED_HOSTS=["testserver"]
    ):
        answer = Client(raise_request_exception=False).post("/orders")

    assert answer.status_code == (500 if raises else 201)
    assert kept(mq) == ((0, []) if raises else (1, ["orders"]))
    assert relay.stubs == ([] if raises else ["orders"])


def test_an_async_view_sends_in_a_function_of_sync_to_async(mq: DjangoMQ, relay: Noted) -> None:
    async def place_order(_request: Any) -> HttpResponse:
        with pytest.raises(UsageError, match="call that by sync_to_async"):
            mq.send("orders", {})
        await sync_to_async(place_in_a_block)()
        return HttpResponse(status=201)

    def place_in_a_block() -> None:
        with transaction.atomic():
            place(mq)

    with override_settings(
        ROOT_URLCONF=(path("orders", place_order),), ALLOWED_HOSTS=["testserver"]
    ):
        answer = Client().post("/orders")

    assert answer.status_code == 201
    assert kept(mq) == (1, ["orders"])
    assert relay.stubs == ["orders"]


def test_a_topic_with_a_payload_type_is_a_topic_here_too(mq: DjangoMQ) -> None:
    orders = mq.topic("orders", payload=dict[str, int], groups=[])

    with transaction.atomic():
        mq.send(orders, {"id": 1})
        mq.send_many(orders, [{"id": 2}])
    with mq.transaction() as tx:
        tx.send(orders, {"id": 3})

    assert kept(mq) == (0, ["orders"] * 3)


def test_half_messages_are_refused_in_one_line(mq: DjangoMQ) -> None:
    with pytest.raises(UsageError, match="leave half=True out"):
        mq.transaction(half=True)


def send_here(mq: DjangoMQ, topic: str) -> None:
    mq.send(topic, {}, message_id="a" * 32)


def send_in_a_block(mq: DjangoMQ, topic: str) -> None:
    with mq.transaction() as tx, suppress(MessageRefused):
        tx.send(topic, {}, message_id="a" * 32)


@pytest.mark.parametrize("send", [send_here, send_in_a_block])
def test_a_send_that_the_database_refused_leaves_no_half_transaction(
    mq: DjangoMQ, relay: Noted, send: Callable[[DjangoMQ, str], None]
) -> None:
    """Given PostgreSQL, whose COMMIT of an aborted transaction is a ROLLBACK without an error."""
    ran: list[bool] = []
    with mq.transaction() as tx:
        tx.send("first", {}, message_id="a" * 32)
        transaction.on_commit(lambda: ran.append(True))
        with suppress(MessageRefused):
            send(mq, "second")
        is_broken = connection.needs_rollback

    # A block of `mq` has a savepoint, to which Django goes back.
    is_aborted = connection.vendor == "postgresql" and send is send_here
    assert is_broken == is_aborted
    assert kept(mq) == (0, [] if is_aborted else ["first"])
    assert relay.stubs == ([] if is_aborted else ["first"])
    assert ran == ([] if is_aborted else [True])


def test_a_table_that_is_missing_leaves_no_half_transaction(mq: DjangoMQ) -> None:
    ran: list[bool] = []
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE rmq_message_stub")

    with mq.transaction() as tx:
        Order.objects.create(item="tea")
        transaction.on_commit(lambda: ran.append(True))
        with pytest.raises(ConfigurationError, match="rmq_message_stub"):
            tx.send("orders", {})

    is_aborted = connection.vendor == "postgresql"
    assert Order.objects.count() == (0 if is_aborted else 1)
    assert ran == ([] if is_aborted else [True])
