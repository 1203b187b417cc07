"""Flaws that the matrix must find: the protocol that this project began with, and its relatives."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tests.crash_matrix.modes import Kind, Mode, Redis, Role, modes_of
from tests.crash_matrix.selection import Points, Wanted

from reliable_mq.consume import asyncio_delivery
from reliable_mq.consume.retry_decider import Results
from reliable_mq.consume.sql_consume_transaction import AttemptStart, ConsumeTransaction
from reliable_mq.consume.sql_receipts import Attempt
from reliable_mq.idempotency.claim import Claim, ClaimStep, first_step
from reliable_mq.idempotency.redis_leases import RedisLeases, _Ended

SHOWS_AT = "take_payment: after INSERT effects#1"
"""Where it shows: the effect is there and not committed."""


def insert_then_handle() -> None:
    """The seed's order of steps: the log says CONSUMED, is committed, and then the handler runs."""
    begin = ConsumeTransaction.begin

    def begun(
        self: ConsumeTransaction, session: Any, attempt: Attempt, results: Results, *more: Any
    ) -> AttemptStart:
        answer = begin(self, session, attempt, results, *more)
        if attempt.receipt:
            self.log.consume(session.connection(), attempt.entry, time.time())
        session.commit()
        session.connection()
        return answer

    def finished(self: ConsumeTransaction, session: Any, attempt: Attempt) -> float:
        session.flush()
        return time.time()

    ConsumeTransaction.begin = begun  # type: ignore[method-assign,assignment]
    ConsumeTransaction.finish = finished  # type: ignore[method-assign]


def key_never_leased() -> None:
    """The seed's key: it says "done" from the first moment, and is believed whoever asks."""
    claim = RedisLeases.claim
    asyncio_delivery.first_step = partial(_believing, first_step)  # type: ignore[attr-defined]

    async def claimed(
        self: RedisLeases, claims: Sequence[tuple[str, str]], lease: float
    ) -> list[Claim]:
        answers = await claim(self, claims, lease)
        await self._call((), [_Ended(key, token, "done") for key, token in claims])
        return answers

    RedisLeases.claim = claimed  # type: ignore[method-assign]


def _believing(step: Callable[..., ClaimStep], claim: Claim, **given: Any) -> ClaimStep:
    return step(claim, **(given | {"is_consumed": True}))


class Flaw(NamedTuple):
    """How a flaw is planted into a process, and in which modes a death shows it."""

    plant: Callable[[], None]
    modes: Sequence[Mode]


_WORKERS = modes_of(Role.WORKER, tuple(Kind))
FLAWS: Mapping[str, Flaw] = {
    "insert then handle": Flaw(insert_then_handle, _WORKERS),
    # Where Redis forgets, or is not asked, the key does no harm.
    "key never leased": Flaw(
        key_never_leased,
        [mode for mode in _WORKERS if mode.redis in {Redis.UP, Redis.FAILING_OVER}],
    ),
}


def plant(flaw: str) -> None:
    """Plant a flaw in this process; empty: none."""
    if flaw:
        FLAWS[flaw].plant()


def deaths_of(flaw: str, points: Points) -> Wanted:
    """Return the deaths that show a flaw, one in each mode of these points where it applies."""
    return [
        (Role.WORKER, mode, point)
        for mode in FLAWS[flaw].modes
        for point in points.get((Role.WORKER, mode), ())
        if point.endswith(SHOWS_AT)
    ]
