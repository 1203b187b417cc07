"""Redis remembers what the database has lost: a fail-over, a restored backup, power gone."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import create_engine, event, make_url, select, text
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect
from tests.waiting import until

from reliable_mq import Client, ReliableMQ
from reliable_mq.message import RESENT, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Retry

RESENDS: dict[str, Any] = {"properties": {RESENT: "true"}}


@pytest.mark.parametrize("copy", [{}, RESENDS], ids=["redelivery", "resend"])
@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_copy_has_its_effect_again_when_the_database_has_lost_it_and_only_then(
    database_url: str,
    ledger: Ledger,
    redis_url: str,
    log_receipt: bool,
    copy: dict[str, Any],
) -> None:
    doubts = []

    def handler(session: Session, message: ReceivedMessage) -> None:
        doubts.append(message.in_doubt)
        write_effect(session, message)

    async def scenario() -> None:
        options: dict[str, Any] = {"handler": handler, "lease": LONG, "log_receipt": log_receipt}
        async with Life(database_url, redis_url, **options) as life:
            for message in (delivery(A), delivery(A, **copy)):
                assert await life.handle(message) == [CONSUMED]
            assert ledger.effects() == [A]
            lose_commits(ledger)
            for message in (delivery(A, **copy), delivery(A, **copy)):
                assert await life.handle(message) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert ledger.logs() == {("payments", A): (1, 1)}
    assert doubts == [False, True]  # what it did outside the database may have been done twice


def lose_commits(ledger: Ledger) -> None:
    """Let the database be as it was before anything was consumed."""
    with ledger.database.engine.begin() as connection:
        connection.execute(text("DELETE FROM effects"))
        connection.execute(text(f"DELETE FROM {ledger.database.logs.name}"))


def test_a_group_that_is_reset_over_a_restored_database_books_what_is_missing_and_nothing_else(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    messages = [delivery(each) for each in (A, B, C)]

    async def scenario() -> None:
        async with Life(database_url, redis_url, lease=LONG, batch=4) as life:
            assert await life.handle(*messages) == [CONSUMED] * 3
            with ledger.database.engine.begin() as connection:
                connection.execute(text(f"DELETE FROM effects WHERE id <> '{A}'"))
                logs = ledger.database.logs
                connection.execute(logs.delete().where(logs.c.message_id != A))
            assert await life.handle(*messages) == [CONSUMED] * 3
            assert await life.handle(*messages) == [CONSUMED] * 3

    asyncio.run(scenario())

    assert ledger.effects() == [A, B, C]


def test_a_message_that_redis_calls_done_waits_while_the_database_is_away(
    postgres_url: str, redis_url: str
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(A)

    async def scenario() -> None:
        async with Life(postgres_url, redis_url, lease=LONG) as life:
            assert await life.handle(delivery(A)) == [CONSUMED]
            end_other_sessions(ledger)
            (outcome,) = await life.handle(delivery(A))
            assert isinstance(outcome, Retry)
            assert not outcome.counts
            assert await life.handle(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    ledger.database.close()


def end_other_sessions(ledger: Ledger) -> None:
    """Let every connection to this database be dead but the one that says so."""
    with ledger.database.engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


def test_looks_that_are_asked_for_at_once_share_a_statement(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    messages = [delivery(each) for each in (A, B, C)]
    reads = []

    async def scenario() -> None:
        async with Life(database_url, redis_url, lease=LONG) as life:
            for message in messages:
                assert await life.handle(message) == [CONSUMED]
            event.listen(
                life.database.engine,
                "before_cursor_execute",
                lambda *seen: reads.append(seen[2]),
            )
            copies = [life.handle(message) for message in messages * 10]
            assert await asyncio.gather(*copies) == [[CONSUMED]] * 30

    asyncio.run(scenario())

    assert 1 <= len([each for each in reads if each.startswith("SELECT")]) <= 2
    assert ledger.effects() == [A, B, C]


@pytest.mark.parametrize("kept", [0, 1], ids=["of before", "without the last commits"])
def test_a_group_that_is_reset_over_a_backup_has_every_effect_once(
    database_url: str, redis_url: str, tmp_path: Path, kept: int
) -> None:
    """A real backup is put in the database's place, and Redis calls all of it done."""
    with shop(database_url, redis_url, tmp_path) as mq:
        mq.create_tables()
        with mq.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (id INTEGER)"))
        if kept:
            with mq:
                order(mq, range(kept))
    back_up(database_url)
    with shop(database_url, redis_url, tmp_path) as mq, mq:
        order(mq, range(kept, 3))
    with Redis.from_url(redis_url) as redis:
        assert [redis.get(key) for key in redis.keys("rmq:payments:*")] == [b"done"] * 3
    restore(database_url)

    with shop(database_url, redis_url, tmp_path) as mq:
        assert booked(mq) == list(range(kept))
        with mq:
            with Client(mq._connections.client._engine._name_servers.addresses[0]) as client:
                client.admin.offsets.reset_to_start("payments", "orders")
            until(lambda: len(booked(mq)) >= 3)
        assert booked(mq) == [0, 1, 2]
        assert consumed(mq) == 3


@contextmanager
def shop(url: str, redis: str, directory: Path) -> Iterator[ReliableMQ]:
    """An application whose group books orders, with the broker inside."""
    store = f"embedded:{directory / 'store'}"
    mq = ReliableMQ("shop", broker=store, database=url, redis=redis)

    @mq.consumer("orders", group="payments")
    def book(order: dict[str, int], session: Session) -> None:
        session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": order["id"]})

    try:
        yield mq
    finally:
        mq.close()


def order(mq: ReliableMQ, numbers: range) -> None:
    for number in numbers:
        with mq.transaction() as tx:
            tx.send("orders", {"id": number})
    until(lambda: booked(mq) == list(range(numbers.stop)))


def booked(mq: ReliableMQ) -> list[int]:
    with mq.database.engine.begin() as connection:
        return sorted(connection.execute(text("SELECT id FROM effects")).scalars())


def consumed(mq: ReliableMQ) -> int:
    with mq.database.engine.begin() as connection:
        return len(connection.execute(select(mq.database.logs)).all())


def back_up(url: str) -> None:
    """Copy a database that nobody uses."""
    if url.startswith("sqlite"):
        shutil.copy(file_of(url), f"{file_of(url)}.backup")
    else:
        _on_server(url, "CREATE DATABASE {name}_backup TEMPLATE {name}")


def restore(url: str) -> None:
    """Put the copy in the place of the database, which nobody uses."""
    if url.startswith("sqlite"):
        shutil.move(f"{file_of(url)}.backup", file_of(url))
    else:
        _on_server(url, "DROP DATABASE {name} WITH (FORCE)")
        _on_server(url, "ALTER DATABASE {name}_backup RENAME TO {name}")


def file_of(url: str) -> str:
    return str(make_url(url).database)


def _on_server(url: str, statement: str) -> None:
    place = make_url(url)
    server = create_engine(place.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(statement.format(name=place.database)))
    server.dispose()
