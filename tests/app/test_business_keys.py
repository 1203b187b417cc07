"""Messages with one business key have one effect per group, though they are different messages."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect
from tests.steps import last_steps

from reliable_mq.errors import KeyInvalid, UsageError
from reliable_mq.idempotency.key_reading import KeySource, key_reader_of
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject, Retry

ORDER_7, ORDER_8 = b'{"order": {"id": 7}}', b'{"order": {"id": 8}}'
BY_ORDER: dict[str, Any] = {"read_key": key_reader_of("order.id", "payments"), "lease": LONG}


def duplicates(ledger: Ledger) -> dict[str, str | None]:
    """Return which message had the effect of each one that is consumed."""
    table = ledger.database.logs
    with ledger.database.engine.begin() as connection:
        rows = connection.execute(select(table).where(table.c.state == 1))
        return {row.message_id: row.duplicate_of for row in rows}


def statuses(ledger: Ledger) -> list[int]:
    return [ledger.stubs()[name].status for name in (A, B, C)]


@pytest.mark.parametrize("log_receipt", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_second_message_of_a_key_is_consumed_and_confirmed_without_an_effect(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool, batch: int
) -> None:
    async def scenario() -> None:
        options = {**BY_ORDER, "log_receipt": log_receipt, "batch": batch}
        async with Life(database_url, redis, **options) as life:
            messages = [delivery(A, ORDER_7), delivery(B, ORDER_7), delivery(C, ORDER_8)]
            if batch == 1:
                assert [await life.handle(each) for each in messages] == [[CONSUMED]] * 3
            else:
                assert await life.until_settled(*messages) == [CONSUMED] * 3
            assert await life.handle(delivery(B, ORDER_7)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A, C]
    assert duplicates(ledger) == {A: None, B: A, C: None}
    assert statuses(ledger) == [1, 1, 1]


def test_an_async_handler_is_not_called_for_a_duplicate_either(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, batch=3, **BY_ORDER) as life:
            messages = [delivery(A, ORDER_7), delivery(B, ORDER_7), delivery(C, ORDER_8)]
            assert await life.until_settled(*messages) == [CONSUMED] * 3

    asyncio.run(scenario())

    assert ledger.effects() == [A, C]
    assert duplicates(ledger) == {A: None, B: A, C: None}


def test_two_groups_have_the_effect_of_a_key_once_each(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def consume(group: str, name: str) -> None:
        async with Life(database_url, redis, group=group, **BY_ORDER) as life:
            assert await life.handle(delivery(name, ORDER_7)) == [CONSUMED]

    for group, name in (("payments", A), ("loyalty", B), ("loyalty", A)):
        asyncio.run(consume(group, name))

    assert ledger.effects() == [A, B]


@pytest.mark.parametrize("log_receipt", [False, True])
def test_while_one_message_of_a_key_is_handled_another_waits(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    if database_url.startswith("sqlite") and not log_receipt:
        pytest.skip("one writer: the second message waits for the file")
    inside, go_on = threading.Event(), threading.Event()

    def slow(session: Session, message: ReceivedMessage) -> None:
        inside.set()
        go_on.wait(60)
        write_effect(session, message)

    async def scenario() -> None:
        options = {**BY_ORDER, "log_receipt": log_receipt}
        async with (
            Life(database_url, redis, handler=slow, **options) as first,
            Life(database_url, redis, **options) as second,
        ):
            running = asyncio.create_task(first.handle(delivery(A, ORDER_7)))
            await asyncio.to_thread(inside.wait, 60)
            rival = asyncio.create_task(second.handle(delivery(B, ORDER_7)))
            if log_receipt:  # the key's row says so; without a receipt its insert waits
                (outcome,) = await rival
                assert isinstance(outcome, Retry)
                assert not outcome.counts
            go_on.set()
            assert await running == [CONSUMED]
            if log_receipt:
                rival = asyncio.create_task(second.handle(delivery(B, ORDER_7)))
            outcomes = await rival
            if outcomes != [CONSUMED]:
                assert await second.until_settled(delivery(B, ORDER_7)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert duplicates(ledger) == {A: None, B: A}


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_key_is_free_again_when_the_message_that_had_it_failed(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        if message.message_id == A:
            raise ValueError("not this one")

    async def scenario() -> None:
        options = {**BY_ORDER, "log_receipt": log_receipt, "handler": handler}
        async with Life(database_url, redis, **options) as life:
            assert await life.handle(delivery(A, ORDER_7)) == [Retry(0.01)]
            assert await life.handle(delivery(B, ORDER_7)) == [CONSUMED]
            assert await life.until_settled(delivery(A, ORDER_7)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [B]
    assert duplicates(ledger) == {A: B, B: None}


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_message_that_is_given_up_leaves_its_key_free_at_once_and_without_a_doubt(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    doubts: list[tuple[str, bool]] = []

    def handler(session: Session, message: ReceivedMessage) -> None:
        doubts.append((message.message_id, message.in_doubt))
        write_effect(session, message)
        if message.message_id == A:
            raise ValueError("never")

    async def scenario() -> None:
        options = {**BY_ORDER, "log_receipt": log_receipt, "handler": handler, "max_attempts": 1}
        async with Life(database_url, redis, **options) as life:
            for _ in range(2):  # its dead letter was not stored, so it came again
                (outcome,) = await life.handle(delivery(A, ORDER_7))
                assert isinstance(outcome, Reject)
            assert await life.handle(delivery(B, ORDER_7)) == [CONSUMED]

    asyncio.run(scenario())

    assert doubts == [(A, False), (B, False)]


def test_the_key_of_an_owner_that_vanished_is_taken_over_by_another_message_in_doubt(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    """P5: it may have asked another company for the money before it died."""
    doubts: list[tuple[str, bool]] = []
    switch = KillSwitch()

    def handler(session: Session, message: ReceivedMessage) -> None:
        doubts.append((message.message_id, message.in_doubt))
        write_effect(session, message)

    def kills(session: Session, message: ReceivedMessage) -> None:
        switch.dead = True
        raise Killed

    async def die() -> None:
        options = {**BY_ORDER, "log_receipt": True, "lease": 0.02}
        async with Life(database_url, redis, switch, handler=kills, **options) as life:
            with pytest.raises(Killed):
                await life.handle(delivery(A, ORDER_7))

    async def live() -> None:
        options = {**BY_ORDER, "log_receipt": True, "lease": 0.02}
        async with Life(database_url, redis, handler=handler, **options) as life:
            assert await life.until_settled(delivery(B, ORDER_7)) == [CONSUMED]
            assert await life.until_settled(delivery(A, ORDER_7)) == [CONSUMED]

    asyncio.run(die())
    asyncio.run(live())

    assert ledger.effects() == [B]
    assert doubts == [(B, True)]
    assert duplicates(ledger) == {A: B, B: None}


STEPS_MAX = 120


@pytest.mark.parametrize("log_receipt", [False, True])
def test_one_key_has_one_effect_whichever_step_of_its_first_message_is_the_last(
    database_url: str, ledger: Ledger, log_receipt: bool
) -> None:
    """A dies at its n-th step; B, of the same key, comes first afterwards; then A again."""
    options = {**BY_ORDER, "log_receipt": log_receipt, "lease": 0.02}
    found: dict[str, list[str]] = {}

    async def die(switch: KillSwitch) -> None:
        async with Life(database_url, None, switch, **options) as life:
            with suppress(Killed):
                await life.handle(delivery(A, ORDER_7))

    async def live() -> None:
        async with Life(database_url, None, **options) as life:
            for name in (B, A):
                assert await life.until_settled(delivery(name, ORDER_7)) == [CONSUMED]

    for step in last_steps(STEPS_MAX, one_in=6):
        ledger.create(A, B)
        switch = KillSwitch(step)
        asyncio.run(die(switch))
        if not switch.dead:
            break
        asyncio.run(live())
        found[f"{step}: {switch.names[-1]}"] = ledger.effects()
        assert sorted(duplicates(ledger).values(), key=str) in ([A, None], [B, None])
        assert [ledger.stubs()[name].status for name in (A, B)] == [1, 1]
    else:
        raise AssertionError("a run that never comes through alive")

    assert len(switch.names) >= 10
    assert {step: effects for step, effects in found.items() if len(effects) != 1} == {}


@pytest.mark.parametrize(
    ("source", "body", "reason"),
    [
        ("order.id", b'{"order": {"id": null}}', "the key is None"),
        ("order.id", b'{"order": {"id": " "}}', "the key is empty"),
        ("order.id", b'{"order": {"id": 1.5}}', "a float cannot be a key: 1.5"),
        ("order.id", b'{"order": {}}', "there is no 'id' to read the key from"),
        ("order.id", b"[]", "there is no 'order' to read the key from"),
        (lambda order: order["id"], b"{}", "idempotent_by: KeyError: 'id'"),
    ],
)
def test_a_message_without_a_key_is_a_dead_letter_with_the_reason(
    postgres_url: str, source: KeySource, body: bytes, reason: str
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(A)

    async def scenario() -> None:
        reader = key_reader_of(source, "payments")
        async with Life(postgres_url, None, read_key=reader, lease=LONG) as life:
            assert await life.handle(delivery(A, body)) == [Reject(f"no business key: {reason}")]

    asyncio.run(scenario())

    assert ledger.effects() == []
    assert ledger.stubs()[A].given_up  # a person is told; nothing is lost
    ledger.database.close()


def test_a_key_may_be_read_from_the_message_instead_of_its_payload() -> None:
    def by_message_key(message: ReceivedMessage) -> str:
        return message.keys[0]

    reader = key_reader_of(by_message_key, "payments")

    assert reader.read(None, delivery(A, keys=("K-1",))).shown == "K-1"
    with pytest.raises(KeyInvalid, match="IndexError"):
        reader.read(None, delivery(A))


@pytest.mark.parametrize("source", ["", "order..id", 7, lambda: 1, lambda a, b: a])
def test_what_is_no_source_of_keys_is_refused_at_once(source: Any) -> None:
    with pytest.raises(UsageError, match="idempotent_by"):
        key_reader_of(source, "consumer group payments")


def test_a_key_source_that_would_have_to_be_awaited_is_refused() -> None:
    async def later(order: dict[str, Any]) -> int:
        return order["id"]  # type: ignore[no-any-return]

    with pytest.raises(UsageError, match="async def"):
        key_reader_of(later, "consumer group payments")
