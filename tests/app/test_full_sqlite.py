"""A full disk under SQLite is a database that is away: no handler's fault, and no attempt."""

import asyncio
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, Ledger, Life, delivery, write_effect

from reliable_mq.consume.retry_decider import DOWN_TIMES_MAX
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Retry


def test_a_full_disk_costs_no_attempt(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    ledger = Ledger(url)
    ledger.create(A)
    has_room = False

    def fill(session: Session, message: ReceivedMessage) -> None:
        pages = 1_000_000 if has_room else 1  # no fewer than there are
        session.execute(text(f"PRAGMA max_page_count = {pages}"))
        write_effect(session, message)
        session.execute(text("CREATE TABLE IF NOT EXISTS pictures (body BLOB)"))
        session.execute(text("INSERT INTO pictures VALUES (zeroblob(100000))"))

    async def scenario() -> None:
        nonlocal has_room
        async with Life(url, None, handler=fill, max_attempts=2, lease=LONG) as life:
            for _ in range(DOWN_TIMES_MAX):
                (outcome,) = await life.handle(delivery(A))
                assert isinstance(outcome, Retry)
                assert not outcome.counts
            has_room = True
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert ledger.logs() == {("payments", A): (1, 1)}
    ledger.database.close()
