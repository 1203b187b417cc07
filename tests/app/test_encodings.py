"""Databases and roles of PostgreSQL that are not in UTF-8: nothing is lost, nothing is repeated."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect
from tests.outbox.test_held_stubs import ORDER, Held

from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject, Retry
from reliable_mq.reconcile.databases.sql_adbc import read_postgres
from reliable_mq.testing.local_servers import LocalPostgres

WORDS = "no customer Zoë 🎉"
_numbers = itertools.count(1)


@pytest.fixture
def encoding() -> str:
    return "UTF8"


@pytest.fixture
def url(postgres_server: LocalPostgres, encoding: str) -> Iterator[str]:
    """Give the URL of an empty database in an encoding."""
    name = f"encoded_{next(_numbers)}"
    libpq = postgres_server.url.replace("+psycopg", "")
    with psycopg.connect(libpq, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0"
            " LC_COLLATE 'C' LC_CTYPE 'C'".encode()
        )
    yield (make_url(postgres_server.url).set(database=name).render_as_string(hide_password=False))
    with psycopg.connect(libpq, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    made = Ledger(url)
    made.create(A, B, C)
    yield made
    made.database.close()


def refuse(session: Session, message: ReceivedMessage) -> None:
    """Handle a message; B is refused with words that LATIN1 does not have."""
    write_effect(session, message)
    if message.message_id == B:
        raise ValueError(WORDS)


def play(url: str, *deliveries: Any, **options: Any) -> list[Any]:
    async def scenario() -> list[Any]:
        async with Life(url, None, handler=refuse, max_attempts=2, lease=LONG, **options) as life:
            first = await life.handle(*deliveries)
            return first + await life.until_settled(delivery(B))

    return asyncio.run(scenario())


def reason(ledger: Ledger) -> str:
    with ledger.database.engine.begin() as connection:
        return str(connection.execute(select(ledger.database.escalations.c.reason)).scalar_one())


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1251", "SQL_ASCII", "UTF8"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_reason_that_the_database_cannot_hold_holds_no_dead_letter_up(
    url: str, ledger: Ledger, encoding: str, batch: int
) -> None:
    these = (A, B, C) if batch == 3 else (B,)

    outcomes = play(url, *map(delivery, these), batch=batch)

    *earlier, last = outcomes
    assert earlier == [Retry(0.01) if each == B else CONSUMED for each in these]
    assert isinstance(last, Reject)
    holds = encoding in ("SQL_ASCII", "UTF8")
    told = WORDS if holds else "no customer Zo\\xeb \\U0001f389"
    assert reason(ledger) == f"attempt 2 of 2 failed: ValueError: {told}"
    assert ledger.effects() == [each for each in these if each != B]


def test_the_encoding_of_a_role_or_a_database_does_not_become_ours(
    url: str, ledger: Ledger
) -> None:
    name = make_url(url).database
    with ledger.database.engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET client_encoding = 'LATIN1'"))

    play(url, delivery(B))

    assert reason(ledger).endswith(WORDS)
    statement = "SELECT reason FROM rmq_escalation"
    rows = [row for batch in read_postgres(make_url(url), statement, 1_000) for row in batch[0]]
    assert [str(row) for row in rows] == [reason(ledger)]


@pytest.mark.parametrize("encoding", ["LATIN1"])
def test_a_key_that_the_database_cannot_hold_is_refused_where_it_is_sent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the COMMIT, though psycopg has prepared its statement."""
    held = Held(url, monkeypatch)
    with held.transaction() as tx:
        tx.session.execute(ORDER, {"id": 1})
        with pytest.raises(DBAPIError, match="LATIN1"):
            tx.send("orders", {}, key="🎉")
        tx.session.rollback()

    assert held.stubs() == []
    held.database.close()
