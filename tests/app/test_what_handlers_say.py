"""What a handler of `@mq.consumer` says, returned or raised: as `def` and `async def`, alone and in
batches."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect

from reliable_mq import Consumed, Reject, Retry
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

KINDS = ["def", "async def"]


def raises(said: Any) -> Callable[[], Any]:
    def deed() -> Any:
        raise said

    return deed


def returns(said: Any) -> Callable[[], Any]:
    return lambda: said


def raises_from(said: Any, cause: Exception) -> Callable[[], Any]:
    def deed() -> Any:
        raise said from cause

    return deed


class NoCard(Reject):
    """A subclass that needs no argument."""

    def __init__(self) -> None:
        super().__init__("no such card")


class Odd(Retry):
    """A subclass that says what cannot be."""

    after = "soon"  # type: ignore[assignment]

    def __init__(self) -> None:
        pass


def handler_of(kind: str, deeds: dict[str, list[Callable[[], Any]]]) -> Any:
    """Return a handler that writes an effect, and then does what comes next for its message."""

    def answer(message: ReceivedMessage) -> Any:
        left = deeds.get(message.message_id)
        return left.pop(0)() if left else None

    def handle(session: Session, message: ReceivedMessage) -> Any:
        write_effect(session, message)
        return answer(message)

    async def handle_on_the_loop(session: AsyncSession, message: ReceivedMessage) -> Any:
        await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})
        return answer(message)

    return handle if kind == "def" else handle_on_the_loop


def handled(
    url: str, redis: str | None, kind: str, *deeds: Callable[[], Any], **options: Any
) -> list[Outcome]:
    """Deliver message A so often as there are deeds; return what came of it each time."""

    async def scenario() -> list[Outcome]:
        handler = handler_of(kind, {A: list(deeds)})
        async with Life(url, redis, handler=handler, lease=LONG, **options) as life:
            return [outcome for _ in deeds for outcome in await life.handle(delivery(A))]

    return asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "outcome"),
    [
        (returns(Retry(7.5)), Retry(7.5)),
        (raises(Retry(7.5)), Retry(7.5)),
        (returns(Retry()), Retry(0.01)),
        (returns(Retry), Retry(0.01)),
        (raises(Retry), Retry(0.01)),
        (returns(Reject("no card")), Reject("no card")),
        (raises(Reject("no card")), Reject("no card")),
        (returns(NoCard), Reject("no such card")),
        (raises(NoCard), Reject("no such card")),
        (returns(NoCard()), Reject("no such card")),
    ],
)
def test_an_outcome_undoes_the_effect_whether_it_is_returned_or_raised(
    database_url: str, ledger: Ledger, kind: str, way: Any, outcome: Outcome
) -> None:
    assert handled(database_url, None, kind, way) == [outcome]
    assert ledger.effects() == []
    assert ledger.logs() == {("payments", A): (0, 1)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "said", [None, CONSUMED, Consumed, [CONSUMED], [], "yes", 0, False, ValueError("x"), {"a": 1}]
)
def test_whatever_else_is_returned_means_consumed(
    database_url: str, ledger: Ledger, kind: str, said: object
) -> None:
    assert handled(database_url, None, kind, returns(said)) == [CONSUMED]
    assert ledger.effects() == [A]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "says"),
    [
        (returns([Retry()]), "it is called for one message, return its outcome"),
        (returns((CONSUMED, Retry)), "it is called for one message, return its outcome"),
        (lambda: (each for each in [Retry()]), "'generator', which is not awaited"),
        (returns(Reject), "reason is missing: write Reject("),
        (raises(Consumed), "exceptions must derive from BaseException"),
        (
            returns(Odd),
            "after of Odd is of type str: give a number of seconds, a timedelta or None",
        ),
        (raises(Odd), "after of Odd is of type str: give a number of seconds, a timedelta or None"),
    ],
)
def test_what_cannot_be_meant_is_a_failed_attempt_and_told(
    database_url: str,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    way: Any,
    says: str,
) -> None:
    caplog.set_level(logging.WARNING)
    assert handled(database_url, None, kind, way) == [Retry(0.01)]
    assert ledger.effects() == []
    assert says in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_that_does_not_count_never_makes_a_dead_letter_and_costs_no_attempt(
    database_url: str, ledger: Ledger, redis: str | None, kind: str
) -> None:
    waits = [
        *(raises(Retry(0.02, counts=False)), returns(Retry(0.02, counts=False))),
        *(raises(Retry(counts=False)),) * 3,
    ]
    last = [raises(ValueError("first")), raises(Retry(0.02, counts=False)), raises(Retry())]
    outcomes = handled(database_url, redis, kind, *waits, *last, max_attempts=2)

    assert outcomes == [
        *[Retry(0.02, counts=False)] * 2,
        *[Retry(0.01, counts=False)] * 3,
        *(Retry(0.01), Retry(0.02, counts=False)),
        Reject("attempt 2 of 2 failed: the handler asked for it and gave no reason"),
    ]
    assert ledger.effects() == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_dead_letter_names_the_error_that_a_retry_was_raised_from(
    database_url: str, ledger: Ledger, kind: str
) -> None:
    way = raises_from(Retry(reason="the bank is away"), OSError("no route"))
    outcomes = handled(database_url, None, kind, way, max_attempts=1)
    assert outcomes == [
        Reject("attempt 1 of 1 failed: the bank is away; OSError: no route"),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log_receipt", [False, True])
@pytest.mark.parametrize("say", [returns, raises])
def test_each_message_of_a_batch_has_a_word_of_its_own(
    database_url: str, ledger: Ledger, kind: str, log_receipt: bool, say: Any
) -> None:
    async def scenario() -> list[Outcome]:
        deeds = {A: [say(Retry(7.5))] * 3, B: [say(Reject("no"))] * 3}
        options: dict[str, Any] = {"batch": 3, "lease": LONG, "log_receipt": log_receipt}
        async with Life(database_url, None, handler=handler_of(kind, deeds), **options) as life:
            return await life.handle(*map(delivery, (A, B, C)))

    assert asyncio.run(scenario()) == [Retry(7.5), Reject("no"), CONSUMED]
    assert ledger.effects() == [C]


@pytest.mark.parametrize("kind", KINDS)
def test_one_object_that_is_returned_again_and_again_does_not_grow(
    database_url: str, ledger: Ledger, kind: str
) -> None:
    again = Retry(0.02, counts=False)

    def frames() -> int:
        found, count = again.__traceback__, 0
        while found is not None:
            found, count = found.tb_next, count + 1
        return count

    handled(database_url, None, kind, returns(again))
    once = frames()
    handled(database_url, None, kind, *[returns(again)] * 5)
    assert frames() == once
