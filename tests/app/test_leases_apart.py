"""The two leases of a claim, in Redis and in its row, do not end at the same moment."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from redis import Redis
from sqlalchemy import text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import LONG, A, Handler, Ledger, Life, delivery, write_effect

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, Reject, Retry

ATTEMPTS = 3


class Shop:
    """Lives of one consumer whose leases end when the test says so; they are `LONG` else."""

    def __init__(self, url: str, ledger: Ledger, redis: str | None, **options: Any) -> None:
        self._url, self._ledger, self._redis = url, ledger, redis
        self._options = {"max_attempts": ATTEMPTS, "lease": LONG, **options}
        self.runs: list[tuple[str, int, bool]] = []
        """Name, number as the handler is told it, doubt, of each handler call."""

    def life(self, switch: KillSwitch | None = None, handler: Handler | None = None) -> Life:
        """Return a life whose handler notes that it runs, and writes the effect."""

        def consume(session: Session, message: ReceivedMessage) -> None:
            self.note(message)
            write_effect(session, message)

        chosen = handler or consume
        return Life(self._url, self._redis, switch, handler=chosen, **self._options)

    def note(self, message: ReceivedMessage) -> None:
        self.runs.append((message.message_id[0], message.reconsume_times + 1, message.in_doubt))

    def dies_at(self, name: str) -> None:
        """Let a process be killed in the middle of the handler's call for a message."""
        switch = KillSwitch()

        def kills(session: Session, message: ReceivedMessage) -> None:
            self.note(message)
            switch.dead = True
            raise Killed

        async def scenario() -> None:
            async with self.life(switch, kills) as life:
                with pytest.raises(Killed):
                    await life.handle(delivery(name))

        asyncio.run(scenario())

    def dies_before_it_gives_back(self, name: str) -> None:
        """Let a process be killed when Redis is to be told that an attempt was none."""
        switch = KillSwitch()

        def dies(*_: object) -> None:
            switch.dead = True

        async def scenario() -> None:
            async with self.life(switch) as life:
                assert life.leases is not None
                life.leases.settle = dies  # type: ignore[method-assign,assignment]
                with pytest.raises(Killed):
                    await life.handle(delivery(name))

        asyncio.run(scenario())

    def handles(self, name: str, handler: Handler | None = None) -> Outcome:
        """Return the outcome of one delivery in a life of its own."""

        async def scenario() -> Outcome:
            async with self.life(handler=handler) as life:
                (outcome,) = await life.handle(delivery(name))
            return outcome

        return asyncio.run(scenario())

    def counted(self, name: str) -> int | None:
        """Return how many attempts Redis counts; None: it knows of none."""
        if self._redis is None:
            return None
        with Redis.from_url(self._redis, decode_responses=True) as redis:
            value = cast("str | None", redis.get(f"rmq:payments:{name}"))
        return None if value is None else int(value.split(":")[0])

    def end_redis_lease(self, name: str) -> None:
        if self._redis is None:
            return
        key = f"rmq:payments:{name}"
        with Redis.from_url(self._redis, decode_responses=True) as redis:
            attempt, _, owner = cast("str", redis.get(key)).split(":")
            redis.set(key, f"{attempt}:1:{owner}", keepttl=True)

    def flush(self, _name: str) -> None:
        if self._redis is None:
            return
        with Redis.from_url(self._redis) as redis:
            redis.flushdb()

    def end_row_lease(self) -> None:
        table, engine = self._ledger.database.logs, self._ledger.database.engine
        with engine.begin() as connection:
            ended = update(table).where(table.c.owner.is_not(None), table.c.state == 0)
            connection.execute(ended.values(lease_until=utc_datetime(1.0)))

    def end_leases(self, name: str) -> None:
        self.end_redis_lease(name)
        self.end_row_lease()

    def row(self, name: str) -> tuple[int, int] | None:
        return self._ledger.logs().get(("payments", name))


def in_thread(shop: Shop) -> Handler:
    def handler(session: Session, message: ReceivedMessage) -> None:
        shop.note(message)
        write_effect(session, message)

    return handler


def in_loop(shop: Shop) -> Handler:
    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        shop.note(message)
        await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})

    return handler


FACES: list[Callable[[Shop], Handler]] = [in_thread, in_loop]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("end", [Shop.end_redis_lease, Shop.flush])
@pytest.mark.parametrize("deaths", [1, ATTEMPTS - 1, ATTEMPTS])
def test_a_delivery_between_the_ends_of_both_leases_comes_again_and_counts_nowhere(
    database_url: str,
    ledger: Ledger,
    redis: str | None,
    face: Callable[[Shop], Handler],
    end: Callable[..., None],
    deaths: int,
) -> None:
    # Given a message that killed so often, whose lease in Redis is over (or forgotten)
    shop = Shop(database_url, ledger, redis, log_receipt=True)
    for death in range(deaths):
        if death:
            shop.end_leases(A)
        shop.dies_at(A)
    end(shop, A)
    known = shop.counted(A)

    # When it is delivered while its row's lease is not
    outcomes = [shop.handles(A, face(shop)) for _ in range(3)]

    # Then it waits for that, and nobody has counted
    for outcome in outcomes:
        assert isinstance(outcome, Retry)
        assert not outcome.counts
        assert outcome.after_seconds is not None
        assert 0 < outcome.after_seconds <= LONG
    assert (shop.row(A), shop.counted(A)) == ((0, deaths), known)
    assert len(shop.runs) == deaths

    # And the next attempt has the next number, if there is one
    shop.end_row_lease()
    outcome = shop.handles(A, face(shop))
    if deaths < ATTEMPTS:
        assert outcome == CONSUMED
        assert shop.runs[deaths:] == [("A", deaths + 1, True)]
        assert shop.row(A) == (1, deaths + 1)
    else:
        assert outcome == Reject(f"{ATTEMPTS} attempts did not finish")
        assert len(shop.runs) == ATTEMPTS


@pytest.mark.parametrize("face", FACES)
def test_a_delivery_whose_row_is_free_before_redis_says_so_comes_again_and_counts_nowhere(
    database_url: str, ledger: Ledger, redis_url: str, face: Callable[[Shop], Handler]
) -> None:
    shop = Shop(database_url, ledger, redis_url, log_receipt=True)
    shop.dies_at(A)
    shop.end_row_lease()

    outcome = shop.handles(A, face(shop))

    assert isinstance(outcome, Retry)
    assert not outcome.counts
    assert (shop.row(A), shop.counted(A)) == ((0, 1), 1)
    shop.end_redis_lease(A)
    assert shop.handles(A, face(shop)) == CONSUMED
    assert shop.runs == [("A", 1, False), ("A", 2, True)]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("log_receipt", [False, True])
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_last_attempt_that_was_put_off_when_its_process_died_is_made_all_the_same(
    database_url: str,
    ledger: Ledger,
    redis_url: str,
    face: Callable[[Shop], Handler],
    log_receipt: bool,
    deaths: int,
) -> None:
    """Redis counts a claim before anybody knows whether its handler will be called."""
    # Given a message that is about to have its last attempt
    shop = Shop(database_url, ledger, redis_url, log_receipt=log_receipt)
    for _ in range(ATTEMPTS - 1):
        shop.dies_at(A)
        shop.end_leases(A)

    # When its process dies while it waits to be alone, so often
    for _ in range(deaths):
        shop.dies_before_it_gives_back(A)
        shop.end_leases(A)

    # Then it is no dead letter without its last attempt
    assert shop.handles(A, face(shop)) == CONSUMED
    assert shop.runs[ATTEMPTS - 1 :] == [("A", ATTEMPTS, True)]
    assert shop.row(A) == (1, ATTEMPTS)


def test_a_last_attempt_that_did_not_count_is_made_again_though_redis_had_lost_its_lease(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    """A copy came meanwhile and was claimed, so nobody could tell Redis of what did not count."""
    shop = Shop(database_url, ledger, redis_url, log_receipt=True)
    for _ in range(ATTEMPTS - 1):
        shop.dies_at(A)
        shop.end_leases(A)
    is_inside, may_end = threading.Event(), threading.Event()

    def loses_its_lock(message: ReceivedMessage) -> None:
        shop.note(message)
        is_inside.set()
        may_end.wait(60)
        lost = sqlite3.OperationalError("database is locked")
        lost.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise OperationalError("UPDATE", {}, lost)

    async def scenario() -> None:
        async with shop.life(handler=loses_its_lock) as owner, shop.life() as other:
            running = asyncio.create_task(owner.handle(delivery(A)))
            await asyncio.to_thread(is_inside.wait, 60)
            shop.end_redis_lease(A)
            (copy,) = await other.handle(delivery(A))
            may_end.set()
            (ended,) = await running
        for outcome in (copy, ended):
            assert isinstance(outcome, Retry)
            assert not outcome.counts

    asyncio.run(scenario())
    assert shop.row(A) == (0, ATTEMPTS - 1)

    assert shop.handles(A) == CONSUMED

    assert [number for _, number, _ in shop.runs] == [1, 2, 3, 3]
    assert shop.row(A) == (1, ATTEMPTS)


def test_the_only_attempt_is_not_made_twice_though_no_row_tells_of_it(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    shop = Shop(database_url, ledger, redis_url, max_attempts=1)
    shop.dies_at(A)
    shop.end_leases(A)
    assert shop.row(A) is None

    assert shop.handles(A) == Reject("1 attempts did not finish")

    assert shop.runs == [("A", 1, False)]


@pytest.mark.parametrize("runs", [0, 1, ATTEMPTS - 1])
def test_a_message_that_kills_before_its_handler_is_called_ends_as_a_dead_letter(
    database_url: str, ledger: Ledger, redis_url: str, runs: int
) -> None:
    """As one whose payload is more than there is memory for, once a new release is out."""
    shop = Shop(database_url, ledger, redis_url)
    for _ in range(runs):
        shop.dies_at(A)
        shop.end_leases(A)
    deaths = 0

    def outcome() -> Outcome | None:
        switch = KillSwitch()

        async def scenario() -> Outcome | None:
            async with shop.life(switch) as life:
                life.deliveries._key = kills  # type: ignore[method-assign,assignment]
                (outcome,) = await life.handle(delivery(A))
            return outcome

        def kills(*_: object) -> None:
            switch.dead = True
            raise Killed

        try:
            return asyncio.run(scenario())
        except Killed:
            return None

    while (settled := outcome()) is None:
        shop.end_leases(A)
        deaths += 1
        assert deaths <= ATTEMPTS + 1

    assert settled == Reject(f"{ATTEMPTS} attempts did not finish")
    assert len(shop.runs) == runs
