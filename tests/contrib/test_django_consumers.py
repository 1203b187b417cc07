"""Consumers that use the Django ORM: the effect and the row that says CONSUMED are one commit.

The protocol runs over a real database, without a broker. Its lives are killed at every step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from sqlalchemy import select
from sqlalchemy.orm import Session
from tests.app.lives import A, B, C
from tests.contrib.django_lives import consumed, effects, handled
from tests.contrib.django_project import project, set_up

from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Consumed, Reject

set_up()

from tests.contrib.django_shop.models import Order, Payment  # noqa: E402 - after the settings


@pytest.fixture
def mq(database_url: str) -> Iterator[DjangoMQ]:
    with project(database_url) as made:
        yield made


def pay(message: ReceivedMessage) -> None:
    """The handler of these tests: one payment."""
    Payment.objects.create(message=message.message_id)


def test_the_effect_and_the_row_are_there_once(mq: DjangoMQ) -> None:
    assert handled(mq, pay, A, B) == [Consumed(), Consumed()]
    assert handled(mq, pay, A) == [Consumed()]

    assert effects(mq) == consumed(mq) == [A, B]


def test_a_handler_runs_in_an_atomic_block_on_the_connection_of_the_row(mq: DjangoMQ) -> None:
    seen: list[Any] = []

    def look(message: ReceivedMessage, session: Session) -> None:
        seen.append(connection.in_atomic_block)
        seen.append(connection.connection is session.connection().connection.driver_connection)
        seen.append(session.execute(select(mq.database.logs.c.message_id)).scalar_one())

    assert handled(mq, look, A) == [Consumed()]
    assert seen == [True, True, A]


def test_a_handler_that_raises_keeps_nothing_and_comes_again(mq: DjangoMQ) -> None:
    calls: list[str] = []

    def once(message: ReceivedMessage) -> None:
        pay(message)
        calls.append(message.message_id)
        if len(calls) == 1:
            raise ValueError("the first time")

    assert handled(mq, once, A) == [Consumed()]
    assert len(calls) == 2
    assert effects(mq) == consumed(mq) == [A]


def test_an_async_handler_uses_the_orm_in_the_same_transaction(mq: DjangoMQ) -> None:
    calls: list[int] = []

    async def once(message: ReceivedMessage) -> None:
        await Payment.objects.acreate(message=message.message_id)
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("the first time")

    assert handled(mq, once, A) == [Consumed()]
    assert effects(mq) == consumed(mq) == [A]


def test_a_batch_keeps_what_succeeded(mq: DjangoMQ) -> None:
    def all_but_b(message: ReceivedMessage) -> None:
        pay(message)
        if message.message_id == B:
            raise ValueError("always")

    assert handled(mq, all_but_b, A, B, C, batch=3, max_attempts=2)[1] == Reject(
        "attempt 2 of 2 failed: ValueError: always"
    )
    assert effects(mq) == consumed(mq) == [A, C]


def test_hooks_of_a_failed_message_of_a_batch_do_not_run(mq: DjangoMQ) -> None:
    ran: list[str] = []

    def hook(message: ReceivedMessage) -> None:
        pay(message)
        transaction.on_commit(lambda: ran.append(message.message_id))
        if message.message_id == B:
            raise ValueError("always")

    handled(mq, hook, A, B, C, batch=3, max_attempts=1)
    assert sorted(ran) == [A, C]


def test_with_a_receipt_the_orm_is_in_the_transaction_too(mq: DjangoMQ) -> None:
    calls: list[int] = []

    def once(message: ReceivedMessage) -> None:
        pay(message)
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("the first time")

    assert handled(mq, once, A, log_receipt=True) == [Consumed()]
    assert effects(mq) == consumed(mq) == [A]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "commit;", "/* x */ COMMIT"])
def test_a_handler_cannot_end_the_transaction_by_sql(mq: DjangoMQ, end: str) -> None:
    def ends(message: ReceivedMessage) -> None:
        pay(message)
        with connection.cursor() as cursor:
            cursor.execute(end)

    (outcome,) = handled(mq, ends, A, max_attempts=1)
    assert isinstance(outcome, Reject)
    assert "must not commit or roll back" in outcome.reason
    assert effects(mq) == consumed(mq) == []


@pytest.mark.parametrize(
    "end", [transaction.commit, transaction.rollback, lambda: connection.set_autocommit(True)]
)
def test_a_handler_cannot_end_the_transaction_by_django(
    mq: DjangoMQ, end: Callable[[], None]
) -> None:
    def ends(message: ReceivedMessage) -> None:
        pay(message)
        end()

    (outcome,) = handled(mq, ends, A, max_attempts=1)
    assert isinstance(outcome, Reject)
    assert "a handler runs in a transaction, which is committed when it returns" in outcome.reason
    assert effects(mq) == consumed(mq) == []


def test_a_transaction_that_is_marked_for_a_rollback_is_a_failed_attempt(mq: DjangoMQ) -> None:
    def marks(message: ReceivedMessage) -> None:
        pay(message)
        transaction.set_rollback(True)

    (outcome,) = handled(mq, marks, A, max_attempts=2)
    assert isinstance(outcome, Reject)
    assert effects(mq) == consumed(mq) == []


def test_a_handler_that_closes_the_connection_has_failed(mq: DjangoMQ) -> None:
    calls: list[int] = []

    def closes(message: ReceivedMessage) -> None:
        calls.append(1)
        pay(message)
        if len(calls) == 1:
            connection.close()

    assert handled(mq, closes, A) == [Consumed()]
    assert effects(mq) == consumed(mq) == [A]


def test_an_error_that_an_inner_block_caught_does_no_harm(mq: DjangoMQ) -> None:
    def catches(message: ReceivedMessage) -> None:
        pay(message)
        order = Order.objects.create(item="tea")
        with pytest.raises(IntegrityError), transaction.atomic():
            Order.objects.create(pk=order.pk, item="again")

    assert handled(mq, catches, A) == [Consumed()]
    assert effects(mq) == consumed(mq) == [A]


def test_hooks_on_commit_run_after_the_commit_and_their_errors_undo_nothing(mq: DjangoMQ) -> None:
    seen: list[Any] = []

    def hook(message: ReceivedMessage) -> None:
        pay(message)
        transaction.on_commit(lambda: seen.append(effects(mq)))
        transaction.on_commit(lambda: 1 / 0)
        transaction.on_commit(lambda: seen.append("after"))

    assert handled(mq, hook, A) == [Consumed()]
    assert seen == [[A], "after"]
    assert effects(mq) == consumed(mq) == [A]


def test_messages_of_a_handler_belong_to_its_commit(mq: DjangoMQ) -> None:
    calls: list[int] = []

    def sends(message: ReceivedMessage) -> None:
        pay(message)
        mq.send("payments", {"id": message.message_id})
        with mq.transaction() as tx:
            tx.send("payments", {"id": "in a block"})
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("the first time")

    assert handled(mq, sends, A) == [Consumed()]
    with mq.database.reading_engine.connect() as other:
        topics = list(other.execute(select(mq.database.stubs.c.topic)).scalars())
    assert topics == ["payments", "payments"]


def test_a_deadlock_of_the_orm_costs_no_attempt(mq: DjangoMQ) -> None:
    calls: list[int] = []

    def loses(message: ReceivedMessage) -> None:
        calls.append(1)
        pay(message)
        if len(calls) == 1:
            raise OperationalError("deadlock") from _deadlock()

    assert handled(mq, loses, A, max_attempts=1) == [Consumed()]
    assert effects(mq) == consumed(mq) == [A]


def _deadlock() -> Exception:
    """Return what the driver raises at a lost conflict."""
    errors: Any = connection.Database
    found: Exception
    if connection.vendor == "sqlite":
        error = errors.OperationalError("database is locked")
        error.sqlite_errorcode = 5
        found = error
    elif connection.vendor == "mysql":
        found = errors.OperationalError(1213, "Deadlock found")
    else:
        found = errors.errors.DeadlockDetected("deadlock detected")
    return found
