"""A message that kills its process takes no neighbour of its batch along."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy.orm import Session
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import A, B, C, Ledger, Life, delivery, write_effect
from tests.waiting import eventually

from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject, Retry

D = "D" * 32
NAMES = (A, B, C, D)
POISON = B


class Poison:
    """A handler that kills its process at one message, and notes whom it was called for."""

    def __init__(self) -> None:
        self.switch = KillSwitch()
        self.calls: list[str] = []

    def __call__(self, session: Session, message: ReceivedMessage) -> None:
        self.calls.append(message.message_id)
        if message.message_id == POISON:
            self.switch.dead = True
            raise Killed(POISON)
        write_effect(session, message)


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_message_that_kills_costs_its_neighbours_one_attempt_and_ends_as_a_dead_letter(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    ledger.create(*NAMES)
    settled: dict[str, Any] = {}
    deaths = 0

    async def life_of(waiting: list[str]) -> list[str]:
        """Live until a message kills; return whom that call was for, in order."""
        poison = Poison()
        options: dict[str, Any] = {"batch": 4, "max_attempts": 3, "log_receipt": log_receipt}

        def handler(session: Session, message: ReceivedMessage) -> None:
            poison(session, message)

        life = Life(database_url, redis, poison.switch, handler=handler, **options)
        async with life:

            async def are_settled() -> bool:
                outcomes = await life.handle(*map(delivery, waiting))
                for name, outcome in zip(list(waiting), outcomes, strict=True):
                    if not isinstance(outcome, Retry):
                        settled[name] = outcome
                        waiting.remove(name)
                return not waiting

            with suppress(Killed):
                await eventually(are_settled, lambda: waiting)
        return poison.calls

    waiting = list(NAMES)
    calls = []
    while waiting:
        calls.append(asyncio.run(life_of(waiting)))
        assert len(calls) <= 6, calls
        deaths += bool(waiting)
        # What was committed is known to whoever asks, not to the dead.
        done = set(ledger.effects())
        assert POISON not in done

    assert {name: settled[name] for name in (A, C, D)} == dict.fromkeys((A, C, D), CONSUMED)
    assert isinstance(settled[POISON], Reject)
    assert "3 attempts did not finish" in settled[POISON].reason
    assert deaths == 3  # one for each attempt of the poison
    assert ledger.effects() == [A, C, D]
    attempts = {name: attempt for (_, name), (_, attempt) in ledger.logs().items()}
    assert all(attempts[name] <= 2 for name in (A, C, D))  # of three


def test_a_doubt_outlives_an_attempt_that_failed_and_one_that_did_not_count(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    """P5: attempt 1 may have had an effect elsewhere, and attempt 3 must still be told."""
    doubts: list[bool] = []

    def handler(session: Session, message: ReceivedMessage) -> None:
        doubts.append(message.in_doubt)
        if len(doubts) < 3:
            raise ValueError("not yet")

    async def die() -> None:
        switch = KillSwitch()

        def kills(session: Session, message: ReceivedMessage) -> None:
            switch.dead = True
            raise Killed

        async with Life(database_url, redis, switch, handler=kills, log_receipt=True) as life:
            with pytest.raises(Killed):
                await life.handle(delivery(A))

    async def live() -> None:
        async with Life(database_url, redis, handler=handler, log_receipt=True) as life:
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(die())
    asyncio.run(live())

    assert doubts == [True, True, True]
