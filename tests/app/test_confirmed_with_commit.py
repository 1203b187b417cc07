"""On PostgreSQL a confirmation like the last one arrives together with the COMMIT."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session
from tests.app.kill_switch import KillSwitch
from tests.app.lives import LONG, Handler, Ledger, Life, delivery, write_effect

from reliable_mq.database import sql_libpq
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED

USED = "reliable_mq.database.sql_prepared.execute_and_commit"
NAMES = [f"{number:032}" for number in range(12)]
LAST, AFTER = NAMES[-2:]


class Unseen(KillSwitch):
    """Watches no statements: where somebody does, each is executed by a cursor."""

    def watch(self, engine: Engine) -> None:
        """Leave the engine as it is."""


class Commits:
    """Counts the round trips that were saved, and what each of them confirmed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changed: list[int] = []
        execute = sql_libpq.execute_and_commit

        def counted(*given: Any, **named: Any) -> int:
            self.changed.append(execute(*given, **named))
            return self.changed[-1]

        monkeypatch.setattr(USED, counted)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


@pytest.fixture
def ledger(postgres_url: str) -> Iterator[Ledger]:
    made = Ledger(postgres_url)
    made.create(*NAMES)
    yield made
    made.database.close()


@pytest.fixture
def handled(postgres_url: str, redis_url: str) -> Callable[..., None]:
    """Returns what handles all messages in a series."""

    def handle(handler: Handler = write_effect) -> None:
        async def scenario() -> None:
            life = Life(postgres_url, redis_url, Unseen(), handler=handler, lease=LONG)
            async with life:
                assert await life.handle(*map(delivery, NAMES)) == [CONSUMED] * len(NAMES)

        asyncio.run(scenario())

    return handle


def confirmed(ledger: Ledger) -> list[str]:
    return sorted(name for name, row in ledger.stubs().items() if row.status == 1)


def test_stubs_are_confirmed_and_their_sends_recorded_with_the_commits(
    ledger: Ledger, commits: Commits, handled: Callable[..., None]
) -> None:
    handled()

    assert commits.changed
    assert set(commits.changed) == {1}
    assert confirmed(ledger) == ledger.effects() == NAMES
    places = {(row.broker_name, row.queue_id, row.offset) for row in ledger.stubs().values()}
    assert places == {("broker-a", 1, 7)}


def test_a_stub_that_is_not_like_the_last_one_is_confirmed_after_the_commit(
    ledger: Ledger, commits: Commits, handled: Callable[..., None]
) -> None:
    """The other group has consumed its message: both are needed for the confirmation."""
    with ledger.database.engine.begin() as connection:
        groups = "UPDATE rmq_message_stub SET required_groups = 'other,payments'"
        connection.execute(text(f"{groups} WHERE message_id = '{LAST}'"))
    other = {"consumer_group": "other", "message_id": LAST, "topic": "orders", "state": 1}
    place = {"broker_name": "broker-a", "queue_id": 1, "offset": 7, "attempt": 1}
    at = ledger.stubs()[LAST].create_date
    ledger.insert_log(**other, **place, create_date=at, consume_date=at)

    handled()

    assert 0 in commits.changed
    assert confirmed(ledger) == ledger.effects() == NAMES


def test_a_message_without_a_stub_is_handled_like_others(
    ledger: Ledger, commits: Commits, handled: Callable[..., None]
) -> None:
    with ledger.database.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM rmq_message_stub WHERE message_id = '{LAST}'"))

    handled()

    assert 0 in commits.changed
    assert ledger.effects() == NAMES
    assert confirmed(ledger) == [name for name in NAMES if name != LAST]


def test_a_confirmation_that_fails_takes_the_effect_back(
    ledger: Ledger, commits: Commits, postgres_url: str, redis_url: str
) -> None:
    """The statement fails, so PostgreSQL skips the COMMIT behind it."""
    with ledger.database.engine.begin() as connection:
        check = f"CHECK (status = 0 OR message_id <> '{LAST}') NOT VALID"
        connection.execute(text(f"ALTER TABLE rmq_message_stub ADD CONSTRAINT no {check}"))

    async def scenario() -> list[Any]:
        async with Life(postgres_url, redis_url, Unseen(), lease=LONG) as life:
            return list(await life.handle(*map(delivery, NAMES)))

    outcomes = asyncio.run(scenario())

    assert commits.changed
    assert [name for name, each in zip(NAMES, outcomes, strict=True) if each != CONSUMED] == [LAST]
    assert ledger.effects() == confirmed(ledger) == [name for name in NAMES if name != LAST]
    assert ("payments", LAST) not in ledger.logs() or ledger.logs()["payments", LAST][0] == 0


def test_a_statement_between_the_confirmation_and_the_commit_finds_the_stub_confirmed(
    ledger: Ledger, commits: Commits, handled: Callable[..., None]
) -> None:
    seen: list[int] = []
    status = "SELECT status FROM rmq_message_stub WHERE message_id = :id"
    current: list[str] = []

    def handler(session: Session, message: ReceivedMessage) -> None:
        current[:] = [message.message_id]
        write_effect(session, message)

    def ask(session: Session) -> None:
        if current:
            seen.append(session.execute(text(status), {"id": current.pop()}).scalar_one())

    event.listen(Session, "before_commit", ask)
    try:
        handled(handler)
    finally:
        event.remove(Session, "before_commit", ask)

    assert seen == [1] * len(NAMES)
    assert commits.changed == []
    assert confirmed(ledger) == NAMES
