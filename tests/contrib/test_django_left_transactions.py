"""Handlers that leave Django no usable transaction: they closed it, or caught its error."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from django.db import IntegrityError, ProgrammingError, close_old_connections, connection
from tests.app.lives import A
from tests.contrib.django_lives import consumed, handled
from tests.contrib.django_project import project, set_up

from reliable_mq import ReceivedMessage
from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.outcomes import Reject

set_up()

from tests.contrib.django_shop.models import Order, Payment  # noqa: E402 - after the settings


@pytest.fixture
def mq(postgres_url: str) -> Iterator[DjangoMQ]:
    with project(postgres_url) as made:
        yield made


def catches_and_returns() -> None:
    order = Order.objects.create(item="tea")
    with suppress(IntegrityError):
        Order.objects.create(pk=order.pk, item="again")


def catches_an_error_of_sql() -> None:
    with connection.cursor() as cursor, suppress(ProgrammingError):
        cursor.execute("SELECT nothing FROM nowhere")


def close() -> None:
    connection.close()


def closes_and_reads() -> None:
    connection.close()
    Payment.objects.count()


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (catches_and_returns, "put the step that may fail into its own `with transaction.atomic"),
        (catches_an_error_of_sql, "put the step that may fail into its own `with transaction.at"),
        (close_old_connections, r"leave .* close_old_connections\(\) out; the worker renews"),
        (close, r"leave connection.close\(\), connections.close_all\(\) and"),
        (closes_and_reads, r"leave connection.close\(\), connections.close_all\(\) and"),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_handler_that_leaves_no_usable_transaction_is_told_what_to_do(
    mq: DjangoMQ, act: Callable[[], None], says: str, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no outage of the database, which would cost no attempt."""

    def pay(message: ReceivedMessage) -> None:
        act()

    outcomes = handled(mq, pay, *"ABC"[:batch], batch=batch, max_attempts=1)

    assert consumed(mq) == []
    for outcome in outcomes:
        assert isinstance(outcome, Reject)
        with pytest.raises(AssertionError, match=says):
            raise AssertionError(outcome.reason)
    assert "rmq_" not in caplog.text


def test_a_connection_that_failed_before_a_handler_closed_it_is_an_outage(mq: DjangoMQ) -> None:
    calls: list[int] = []

    def pay(message: ReceivedMessage) -> None:
        calls.append(1)
        if len(calls) > 3:
            return
        with connection.cursor() as cursor:
            try:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            finally:
                connection.close()

    handled(mq, pay, A, max_attempts=1)

    assert (len(calls), len(consumed(mq))) == (4, 1)
