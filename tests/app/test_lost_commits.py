"""Redis remembers what the database has lost: a fail-over, a restored backup, power gone."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, Ledger, Life, delivery, write_effect

from reliable_mq.client.consuming.subscription import CONSUMED
from reliable_mq.message import RESENT, ReceivedMessage

MISSED: dict[str, Any] = {"properties": {RESENT: "true"}}


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_resend_has_its_effect_again_when_the_database_has_lost_it_and_only_then(
    database_url: str, ledger: Ledger, redis_url: str, log_receipt: bool
) -> None:
    doubts = []

    def handler(session: Session, message: ReceivedMessage) -> None:
        doubts.append(message.in_doubt)
        write_effect(session, message)

    def fail_over() -> None:
        with ledger.database.engine.begin() as connection:
            connection.execute(text("DELETE FROM effects"))
            connection.execute(text(f"DELETE FROM {ledger.database.logs.name}"))

    async def scenario() -> None:
        options: dict[str, Any] = {"handler": handler, "lease": LONG, "log_receipt": log_receipt}
        async with Life(database_url, redis_url, **options) as life:
            for message in (delivery(A), delivery(A, **MISSED)):
                assert await life.handle(message) == [CONSUMED]
            assert ledger.effects() == [A]
            fail_over()
            assert await life.handle(delivery(A)) == [CONSUMED]
            assert ledger.effects() == []  # a plain copy is what Redis is believed for
            for message in (delivery(A, **MISSED), delivery(A, **MISSED)):
                assert await life.handle(message) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert ledger.logs() == {("payments", A): (1, 1)}
    assert doubts == [False, True]  # what it did outside the database may have been done twice
