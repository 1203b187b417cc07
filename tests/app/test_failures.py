"""What becomes of a delivery whose handler, process or database fails; attempts are counted."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from tests.app.lives import LEASE, LONG, A, B, C, Ledger, Life, delivery, write_effect

from reliable_mq.consume.retry_decider import DOWN_TIMES_MAX
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject, Retry
from reliable_mq.testing.local_servers import LocalPostgres


def test_a_handler_that_raises_leaves_nothing_but_its_attempt(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    seen: list[tuple[int, bool]] = []

    def third_time_lucky(session: Session, message: ReceivedMessage) -> None:
        seen.append((message.reconsume_times, message.in_doubt))
        write_effect(session, message)
        if len(seen) < 3:
            raise ValueError("not yet")

    async def scenario() -> None:
        async with Life(database_url, redis, handler=third_time_lucky, lease=LONG) as life:
            assert await life.handle(delivery(A)) == [Retry(0.01)]
            assert ledger.effects() == []
            assert ledger.logs() == {("payments", A): (0, 1)}
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert ledger.logs() == {("payments", A): (1, 3)}
    assert seen == [(0, False), (1, False), (2, False)]  # failed is not doubtful


def test_attempts_end_in_the_dead_letters_and_a_person_is_to_be_told(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    calls = []

    def never(session: Session, message: ReceivedMessage) -> None:
        calls.append(message.message_id)
        raise ValueError("never")

    async def scenario() -> list[Any]:
        async with Life(database_url, redis, handler=never, max_attempts=3, lease=LONG) as life:
            first = await life.until_settled(delivery(A))
            return first + await life.handle(delivery(A))  # the dead letter was not stored in time

    first, again = asyncio.run(scenario())

    assert isinstance(first, Reject)
    assert first.reason == "attempt 3 of 3 failed: ValueError: never"
    assert again == first  # a copy that comes later says what the last attempt said
    assert len(calls) == 3
    stub = ledger.stubs()[A]
    assert (stub.status, stub.given_up) == (0, True)
    assert stub._mapping["count"] == 0  # as often as it was sent
    assert stub.note == "dead letter of payments: attempt 3 of 3 failed: ValueError: never"


def test_an_attempt_during_which_the_process_died_counts_and_leaves_a_doubt(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    seen: list[tuple[int, bool]] = []

    def look(session: Session, message: ReceivedMessage) -> None:
        seen.append((message.reconsume_times, message.in_doubt))

    async def scenario() -> None:
        async with Life(database_url, redis_url) as dead:  # claims, and is never heard of again
            assert dead.leases is not None
            await dead.leases.claim([(f"rmq:payments:{A}", "dead")], LEASE)
        async with Life(database_url, redis_url, handler=look) as life:
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert seen == [(1, True)]
    assert ledger.logs() == {("payments", A): (1, 2)}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Retry(), Retry(0.01)),
        (Retry(after=7.5), Retry(7.5)),
        (Reject("no such customer"), Reject("no such customer")),
    ],
)
def test_a_handler_says_what_becomes_of_its_message(
    database_url: str, ledger: Ledger, redis: str | None, error: Exception, outcome: object
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        raise error

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, lease=LONG) as life:
            assert await life.handle(delivery(A)) == [outcome]

    asyncio.run(scenario())

    assert ledger.effects() == []


def test_a_payload_that_does_not_validate_is_a_dead_letter_and_never_run(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    def handler(payload: dict[str, int], session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, lease=LONG) as life:
            bad, good = await life.handle(delivery(A, b'{"n": "x"}'), delivery(B, b'{"n": 1}'))
            assert isinstance(bad, Reject)
            assert bad.reason.startswith("the payload does not validate: Expected `int`")
            assert good == CONSUMED

    asyncio.run(scenario())

    assert ledger.effects() == [B]
    assert ledger.stubs()[A].given_up


def test_a_body_that_cannot_be_unpacked_is_a_dead_letter_that_a_person_is_told_of(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG) as life:
            (outcome,) = await life.handle(delivery(A, b"lz4", fault="LZ4 cannot be unpacked"))
            assert outcome == Reject("the payload does not validate: LZ4 cannot be unpacked")

    asyncio.run(scenario())

    assert ledger.effects() == []
    with ledger.database.engine.begin() as connection:
        told = connection.execute(select(ledger.database.escalations)).one()
    assert (told.kind, told.message_id, told.consumer_group) == ("dead letter", A, "payments")


def test_a_reason_that_no_database_takes_as_it_is_holds_no_dead_letter_up(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    """An error may quote what a customer wrote; the outcome is the same at the first call."""
    reason = "no customer \0 of \ud800" + "\udfff" * 300

    def handler(session: Session, message: ReceivedMessage) -> None:
        raise Reject(reason)

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, lease=LONG) as life:
            assert await life.handle(delivery(A)) == [Reject(reason)]

    asyncio.run(scenario())

    with ledger.database.engine.begin() as connection:
        told = connection.execute(select(ledger.database.escalations.c.reason)).scalar_one()
    assert told.startswith("no customer \\x00 of \\ud800\\udfff")
    assert ledger.stubs()[A].note.startswith("dead letter of payments: no customer \\x00")


@pytest.mark.parametrize("log_receipt", [False, True])
def test_one_poisonous_message_of_a_batch_does_not_take_its_neighbours_along(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        if message.message_id == B:
            raise ValueError("poison")

    async def scenario() -> None:
        options: dict[str, Any] = {"batch": 3, "lease": LONG, "log_receipt": log_receipt}
        async with Life(database_url, redis, handler=handler, **options) as life:
            outcomes = await life.handle(*map(delivery, (A, B, C)))
            assert outcomes == [CONSUMED, Retry(0.01), CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A, C]
    assert ledger.logs()["payments", B] == (0, 1)
    assert [ledger.stubs()[each].status for each in (A, B, C)] == [1, 0, 1]


def test_a_message_that_breaks_the_commit_of_its_batch_is_found_one_by_one(
    postgres_url: str, redis_url: str
) -> None:
    # Given a constraint that PostgreSQL checks only at the commit
    ledger = Ledger(postgres_url)
    ledger.create(A, B, C)
    with ledger.database.engine.begin() as connection:
        connection.execute(
            text("ALTER TABLE effects ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
        )
        connection.execute(text("INSERT INTO effects VALUES (:id)"), {"id": B})

    async def scenario() -> None:
        async with Life(postgres_url, redis_url, batch=3, lease=LONG) as life:
            outcomes = await life.handle(*map(delivery, (A, B, C)))
            assert outcomes == [CONSUMED, Retry(0.01), CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A, B, C]
    ledger.database.close()


def test_a_handler_must_leave_the_commit_to_us(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        session.rollback()

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, lease=LONG) as life:
            (outcome,) = await life.handle(delivery(A))
            assert isinstance(outcome, Retry)

    asyncio.run(scenario())

    assert ledger.logs() == {("payments", A): (0, 1)}


def test_a_database_that_is_down_costs_no_attempt(
    postgres_url: str, redis_url: str, postgres_server: LocalPostgres
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(A)

    async def scenario() -> None:
        async with Life(postgres_url, redis_url, max_attempts=2, lease=LONG) as life:
            postgres_server.kill()
            try:
                for _ in range(DOWN_TIMES_MAX + 2):
                    (outcome,) = await life.handle(delivery(A))
                    assert isinstance(outcome, Retry)
                    assert not outcome.counts
            finally:
                postgres_server.start()
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    ledger.database.close()
    assert ledger.effects() == [A]
    assert ledger.logs() == {("payments", A): (1, 1)}
    ledger.database.close()


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ENDS = [
    *(SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()),
    Speechless(),
]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_handler_that_would_end_its_thread_or_whoever_tells_of_it_has_failed_once(
    database_url: str, ledger: Ledger, redis_url: str, is_async: bool, batch: int
) -> None:
    """Each error ends an attempt of one process: none harms those that follow."""
    batches = [[f"{each}{at}".ljust(32, "0") for each in "ABC"[:batch]] for at in range(len(ENDS))]
    errors = {names[0]: error for names, error in zip(batches, ENDS, strict=True)}
    ledger.create(*(name for names in batches for name in names))

    def ends(message: ReceivedMessage) -> None:
        if error := errors.get(message.message_id):
            raise error

    async def ends_async(message: ReceivedMessage) -> None:
        ends(message)

    handler = ends_async if is_async else ends

    async def scenario() -> None:
        async with Life(database_url, redis_url, handler=handler, batch=batch, lease=LONG) as life:
            for names in batches:
                outcomes = await life.handle(*map(delivery, names))
                assert outcomes == [Retry(0.01), CONSUMED, CONSUMED][:batch], errors[names[0]]

    asyncio.run(scenario())

    logs = ledger.logs()
    assert [logs["payments", name] for name in errors] == [(0, 1)] * len(ENDS)
