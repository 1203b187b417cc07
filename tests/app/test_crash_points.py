"""P4: whatever dies at whatever step, the effect of a message happens exactly once.

Each mode is run again and again; the n-th run dies at the n-th step it takes and is followed by a
life that gets the message again. The modes end when a run comes through alive.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import Ledger, Life, delivery
from tests.steps import last_steps

from reliable_mq.consume.retry_decider import Results
from reliable_mq.consume.sql_consume_transaction import AttemptStart, ConsumeTransaction
from reliable_mq.consume.sql_receipts import Attempt
from reliable_mq.idempotency.business_key import BusinessKey, business_key
from reliable_mq.idempotency.key_reading import KeyReader
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED
from reliable_mq.testing.local_servers import LocalValkey

ONE = ("A" * 32,)
BATCH = tuple(letter * 32 for letter in "ABC")
STEPS_MAX = 200


def by_id(_payload: Any, message: ReceivedMessage) -> BusinessKey:
    """A business key that no two messages share: it must not stand in its message's way."""
    return business_key(message.message_id)


MODES: dict[str, dict[str, Any]] = {
    "one commit": {},
    "one commit, Redis flushed at the death": {"flush": True},
    "Redis away after the death": {"redis_dies": True},
    "no Redis": {"redis": False},
    "receipt first": {"log_receipt": True},
    "receipt first, Redis flushed at the death": {"log_receipt": True, "flush": True},
    "batch": {"batch": 3, "names": BATCH},
    "batch, receipt first": {"batch": 3, "names": BATCH, "log_receipt": True},
    "batch, no Redis": {"batch": 3, "names": BATCH, "redis": False},
    "business key, batch, no Redis": {
        "batch": 2,
        "names": BATCH[:2],
        "redis": False,
        "read_key": KeyReader(by_id),
    },
}


class Matrix:
    """Runs one mode with a death at every step, and says what it found."""

    def __init__(self, database_url: str, redis_url: str, valkey: LocalValkey) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        self.valkey = valkey
        self.ledger = Ledger(database_url)

    def run(
        self,
        *,
        names: tuple[str, ...] = ONE,
        redis: bool = True,
        flush: bool = False,
        redis_dies: bool = False,
        one_in: int = 8,
        **options: Any,
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield the name of each step, and the effects that a death at it left."""
        for step in last_steps(STEPS_MAX, one_in):
            self.valkey.flush()
            self.ledger.create(*names)
            switch = KillSwitch(step)
            url = self.redis_url if redis else None
            asyncio.run(self.die(url, switch, names, options))
            if not switch.dead:
                assert len(switch.names) >= 10
                return
            if flush:
                self.valkey.flush()
            asyncio.run(self.live(None if redis_dies else url, names, options))
            if "make_attempts" not in options:
                self.check(names, switch)
            yield f"{step}: {switch.names[-1]}", self.ledger.effects()
        raise AssertionError("a run that never comes through alive")

    async def die(
        self, redis: str | None, switch: KillSwitch, names: tuple[str, ...], options: Any
    ) -> None:
        async with Life(self.database_url, redis, switch, **options) as life:
            try:
                await life.handle(*map(delivery, names))
                if life.leases is not None:
                    await life.leases.close()
            except Killed:
                pass

    async def live(self, redis: str | None, names: tuple[str, ...], options: Any) -> None:
        async with Life(self.database_url, redis, **options) as life:
            assert await life.until_settled(*map(delivery, names)) == [CONSUMED] * len(names)

    def check(self, names: tuple[str, ...], switch: KillSwitch) -> None:
        states = {state for state, _ in self.ledger.logs().values()}
        assert states == {1}, switch.names
        assert len(self.ledger.logs()) == len(names)
        assert {row.status for row in self.ledger.stubs().values()} == {1}, switch.names


@pytest.fixture
def matrix(database_url: str, redis_url: str, valkey_server: LocalValkey) -> Iterator[Matrix]:
    made = Matrix(database_url, redis_url, valkey_server)
    yield made
    made.ledger.database.close()


@pytest.mark.parametrize("mode", MODES)
def test_the_effect_happens_once_whichever_step_is_the_last(matrix: Matrix, mode: str) -> None:
    names = MODES[mode].get("names", ONE)

    found = dict(matrix.run(**MODES[mode]))

    assert {step: effects for step, effects in found.items() if effects != sorted(names)} == {}


class InsertThenHandle(ConsumeTransaction):
    """The seed's protocol: the log says "consumed", is committed, and then the handler runs."""

    def begin(self, session: Any, attempt: Attempt, results: Results) -> AttemptStart:
        begun = super().begin(session, attempt, results)
        session.commit()
        session.connection()
        return begun


def test_the_matrix_finds_the_flaw_of_inserting_before_handling(matrix: Matrix) -> None:
    found = matrix.run(make_attempts=InsertThenHandle, one_in=1)

    assert any(effects == [] for _, effects in found)  # the canary: a message that is gone for good
