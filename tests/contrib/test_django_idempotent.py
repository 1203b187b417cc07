"""`@mq.idempotent` with the Django ORM: rows, messages, key and result are one commit."""

import logging
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from sqlalchemy import select
from sqlalchemy.orm import Session
from tests.app.lives import A
from tests.contrib.django_lives import consumed, effects, handled
from tests.contrib.django_project import project, set_up

from reliable_mq import Transaction, injected
from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.errors import KeyReused, UsageError
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Consumed

set_up()

from tests.contrib.django_shop.models import Payment  # noqa: E402 - after the settings


@pytest.fixture
def mq(database_url: str) -> Iterator[DjangoMQ]:
    with project(database_url) as made:
        yield made


def topics(mq: DjangoMQ) -> list[str]:
    with mq.database.reading_engine.connect() as other:
        return list(other.execute(select(mq.database.stubs.c.topic)).scalars())


def test_a_call_of_a_key_has_its_effect_once_and_its_result_again(mq: DjangoMQ) -> None:
    @mq.idempotent(key="key", scope="payments", compare="amount")
    def pay(key: str, amount: int, session: Session = injected) -> str:
        Payment.objects.create(message=f"{key} {amount}")
        mq.send("paid", {"key": key})
        return f"{key} is paid"

    assert [pay("k-1", 7) for _ in range(3)] == ["k-1 is paid"] * 3
    with pytest.raises(KeyReused):
        pay("k-1", 8)

    assert effects(mq) == ["k-1 7"]
    assert topics(mq) == ["paid"]


def test_a_call_that_raises_leaves_nothing_and_its_key_free(mq: DjangoMQ) -> None:
    fails = [True]

    @mq.idempotent(key="key", scope="payments")
    def pay(key: str, session: Session = injected) -> None:
        Payment.objects.create(message=key)
        mq.send("paid", {"key": key})
        if fails.pop():
            raise ValueError(key)

    with pytest.raises(ValueError, match="k-1"):
        pay("k-1")
    assert (effects(mq), topics(mq)) == ([], [])

    fails.append(False)
    pay("k-1")
    assert (effects(mq), topics(mq)) == (["k-1"], ["paid"])


def test_a_call_in_an_atomic_block_belongs_to_it(
    mq: DjangoMQ, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    calls: list[str] = []

    @mq.idempotent(key="key", scope="payments")
    def pay(key: str, session: Session = injected) -> str:
        calls.append(key)
        Payment.objects.create(message=key)
        return key

    def refused() -> None:
        with transaction.atomic():
            pay("k-1")
            raise LookupError

    with pytest.raises(LookupError):
        refused()
    assert effects(mq) == []

    with transaction.atomic():
        assert pay("k-1") == "k-1"
    assert "did not note" not in caplog.text, "nothing else waited for the lock of the block"
    assert pay("k-1") == "k-1"
    assert calls == ["k-1", "k-1"]
    assert effects(mq) == ["k-1"]


def test_a_call_that_fails_in_a_handler_ends_only_its_own_block(mq: DjangoMQ) -> None:
    @mq.idempotent(key="key", scope="payments")
    def pay(key: str, session: Session = injected) -> None:
        Payment.objects.create(message="never")
        raise LookupError(key)

    @mq.idempotent(key="key", scope="notes")
    def note(key: str, session: Session = injected) -> None:
        Payment.objects.create(message=f"{key[0]} noted")

    calls: list[str] = []

    def handler(message: ReceivedMessage) -> None:
        calls.append(message.message_id)
        Payment.objects.create(message=message.message_id)
        with pytest.raises(LookupError):
            pay(message.message_id)
        note(message.message_id)
        if len(calls) == 1:
            raise ValueError("the first time")

    assert handled(mq, handler, A) == [Consumed()]
    assert consumed(mq) == [A]
    assert effects(mq) == sorted([A, "A noted"])


def test_a_function_without_a_session_belongs_to_the_block_around_it(mq: DjangoMQ) -> None:
    """Otherwise its key would be committed, and its rows could still be rolled back."""
    calls: list[str] = []

    @mq.idempotent(key="key", scope="payments")
    def pay(key: str) -> str:
        calls.append(key)
        Payment.objects.create(message=key)
        mq.send("paid", {"key": key})
        return key

    def refused() -> None:
        with transaction.atomic():
            pay("k-1")
            raise LookupError

    with pytest.raises(LookupError):
        refused()
    assert (effects(mq), topics(mq)) == ([], [])

    for _ in range(2):
        with transaction.atomic():
            assert pay("k-1") == "k-1"
    assert calls == ["k-1", "k-1"]
    assert (effects(mq), topics(mq)) == (["k-1"], ["paid"])


def test_a_function_outside_of_a_block_may_have_one_of_its_own(mq: DjangoMQ) -> None:
    @mq.idempotent(key="key", scope="payments")
    def pay(key: str) -> str:
        with transaction.atomic():
            Payment.objects.create(message=key)
            mq.send("paid", {"key": key})
        return key

    assert [pay("k-1"), pay("k-1")] == ["k-1", "k-1"]
    assert (effects(mq), topics(mq)) == (["k-1"], ["paid"])


def test_a_function_takes_the_transaction_of_mq_transaction(mq: DjangoMQ) -> None:
    @mq.idempotent(key="key", scope="payments")
    def pay(key: str, tx: Transaction) -> str:
        Payment.objects.create(message=key)
        tx.send("paid", {"key": key})
        return key

    def refused() -> None:
        with mq.transaction() as tx:
            pay("k-1", tx)
            raise LookupError

    with pytest.raises(LookupError):
        refused()
    for _ in range(2):
        with mq.transaction() as tx:
            assert pay("k-1", tx) == "k-1"
    assert (effects(mq), topics(mq)) == (["k-1"], ["paid"])


def test_an_async_function_in_a_block_is_refused(mq: DjangoMQ) -> None:
    @mq.idempotent(key="key", scope="payments")
    async def pay(key: str) -> None: ...

    with transaction.atomic(), pytest.raises(UsageError, match="before the transaction around it"):
        async_to_sync(pay)("k-1")
