"""A dead letter is written only by who still holds the claim: the row is asked first."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy.orm import Session
from tests.app.lives import LEASE, LONG, A, B, C, Ledger, Life, delivery, write_effect

from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject, Retry
from reliable_mq.testing.local_servers import LocalValkey

BOTH = ("loyalty", "payments")


def is_given_up(ledger: Ledger, name: str) -> bool:
    return bool(ledger.stubs()[name].given_up)


def test_a_consumed_message_whose_attempts_are_used_up_is_no_dead_letter(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    """The process died between the commit and the word "done"; one attempt was all it had."""
    ledger.create(A, groups=BOTH)

    async def scenario() -> None:
        async with Life(database_url, redis_url, max_attempts=1) as dead:
            assert dead.leases is not None
            dead.leases.settle = lambda *_: None  # type: ignore[method-assign]
            assert await dead.handle(delivery(A)) == [CONSUMED]
        async with Life(database_url, redis_url, max_attempts=1) as life:
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.logs() == {("payments", A): (1, 1)}
    assert (is_given_up(ledger, A), ledger.stubs()[A].note) == (False, None)


def test_a_consumed_message_that_no_longer_validates_is_no_dead_letter(
    database_url: str, ledger: Ledger, redis: str | None, valkey_server: LocalValkey
) -> None:
    """It was consumed by last month's model, and is replayed when Redis has forgotten it."""
    ledger.create(A, groups=BOTH)

    def of_today(payload: dict[str, int], session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)

    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG) as life:
            assert await life.handle(delivery(A, b'{"n": "x"}')) == [CONSUMED]
        valkey_server.flush()
        async with Life(database_url, redis, handler=of_today, lease=LONG) as life:
            assert await life.handle(delivery(A, b'{"n": "x"}')) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert not is_given_up(ledger, A)


def test_attempts_used_up_by_deaths_end_in_the_dead_letters_though_a_dead_owner_has_the_row(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {"max_attempts": 1, "log_receipt": True}
        async with Life(database_url, redis_url, **options) as life:
            entry = life.deliveries._entry(delivery(A))
            assert life.leases is not None
            await life.leases.claim([(f"rmq:payments:{A}", entry.token)], LEASE)
            with life.database.engine.begin() as connection:
                life.attempts.log.receive(connection, [entry], life.attempts._clock(), LEASE)
            (outcome,) = await life.until_settled(delivery(A))
            assert isinstance(outcome, Reject)

    asyncio.run(scenario())

    assert is_given_up(ledger, A)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_handler_that_rejects_after_its_claim_was_taken_over_writes_no_dead_letter(
    database_url: str, ledger: Ledger, redis: str | None, batch: int
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def rejects(message: ReceivedMessage) -> None:
        if message.message_id == A:
            inside.set()
            go_on.wait(60)
            raise Reject("too late")

    async def scenario() -> None:
        options: dict[str, Any] = {"log_receipt": True, "batch": batch}
        async with (
            Life(database_url, redis, handler=rejects, **options) as first,
            Life(database_url, redis, **options) as second,
        ):
            names = (A, B, C)[:batch]
            running = asyncio.create_task(first.handle(*map(delivery, names)))
            await asyncio.to_thread(inside.wait, 60)
            assert await second.until_settled(delivery(A)) == [CONSUMED]
            go_on.set()
            assert not any(isinstance(each, Reject | Retry) for each in await running)

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert ledger.stubs()[A].status == 1
    assert ledger.logs()["payments", A] == (1, 2)
