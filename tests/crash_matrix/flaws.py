"""Flaws that the matrix must find: the protocol that this project began with, and its relatives."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reliable_mq.app.judging import Results
from reliable_mq.app.sql_attempts import Attempts, Begun
from reliable_mq.app.sql_receipts import Attempt
from reliable_mq.idempotency.claim import Claim
from reliable_mq.idempotency.redis_leases import RedisLeases, _Ended


def insert_then_handle() -> None:
    """The seed's order of steps: the log says CONSUMED, is committed, and then the handler runs."""
    begin = Attempts.begin

    def begun(self: Attempts, session: Any, attempt: Attempt, results: Results) -> Begun:
        answer = begin(self, session, attempt, results)
        session.commit()
        session.connection()
        return answer

    Attempts.begin = begun  # type: ignore[method-assign]


def key_never_leased() -> None:
    """The seed's key: it says "done" from the first moment, not after the effect."""
    claim = RedisLeases.claim

    async def claimed(
        self: RedisLeases, claims: Sequence[tuple[str, str]], lease: float
    ) -> list[Claim]:
        answers = await claim(self, claims, lease)
        await self._call((), [_Ended(key, token, "done") for key, token in claims])
        return answers

    RedisLeases.claim = claimed  # type: ignore[method-assign]


FLAWS: Mapping[str, Callable[[], None]] = {
    "insert then handle": insert_then_handle,
    "key never leased": key_never_leased,
}


def plant(flaw: str) -> None:
    """Plant a flaw in this process; empty: none."""
    if flaw:
        FLAWS[flaw]()
