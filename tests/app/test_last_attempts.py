"""A message that kills its process makes no dead letter of those that were handled beside it."""

import asyncio
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import A, B, C, Ledger, Life, delivery, write_effect
from tests.app.test_commands import Shop
from tests.forked_programs import Programs
from tests.waiting import until

from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject

POISON = B
ATTEMPTS = 3
LEASE = 2.0
"""Seconds in which all three have begun, also on a busy machine."""
PATIENCE = 60.0
"""Seconds for which two handlers wait for each other; more than a busy machine needs."""


class Together:
    """A handler whose poison kills when all innocents run beside it, as far as there are any."""

    def __init__(self, beside: int) -> None:
        self.switch = KillSwitch()
        self.beside = beside
        self.running: Counter[str] = Counter()
        self.most_beside_the_last = 0
        self._change = threading.Condition()

    def __call__(self, session: Session, message: ReceivedMessage) -> None:
        with self._change:
            self.running[message.message_id] += 1
            self._change.notify_all()
            if self.beside:
                is_poison = message.message_id == POISON
                assert self._change.wait_for(  # an innocent that went on by itself could commit
                    lambda: self.switch.dead or (is_poison and self.running.total() == self.beside),
                    PATIENCE,
                )
            else:
                self.most_beside_the_last = max(self.most_beside_the_last, self.running.total())
            try:
                if self.switch.dead or message.message_id == POISON:
                    self.switch.dead = True
                    raise Killed(message.message_id)
                write_effect(session, message)
            finally:
                if not self.beside:
                    self.running[message.message_id] -= 1
                self._change.notify_all()


def test_a_last_attempt_after_one_that_did_not_finish_is_made_alone(
    postgres_url: str, redis: str | None
) -> None:
    """All three die together twice; then each is called by itself, and only the poison dies.

    In an SQLite file no two handlers run beside each other: it has one writer.
    """
    names = [A, B, C]
    ledger = Ledger(postgres_url)
    ledger.create(*names)
    settled: dict[str, Any] = {}

    async def life_of(beside: int) -> Together:
        handler = Together(beside)

        def call(session: Session, message: ReceivedMessage) -> None:
            handler(session, message)

        life = Life(
            postgres_url, redis, handler.switch, handler=call, max_attempts=ATTEMPTS, lease=LEASE
        )

        async def until_it_ends(name: str) -> None:
            (settled[name],) = await life.until_settled(delivery(name))

        async with life:
            waiting = [name for name in names if name not in settled]
            ends = await asyncio.gather(*map(until_it_ends, waiting), return_exceptions=True)
        assert all(end is None or isinstance(end, Killed) for end in ends), ends
        return handler

    for _ in range(ATTEMPTS - 1):
        assert asyncio.run(life_of(len(names))).running.total() == len(names)
    last = asyncio.run(life_of(0))
    while POISON not in settled or len(settled) < len(names):
        last = asyncio.run(life_of(0))

    assert last.most_beside_the_last <= 1
    assert [settled[name] for name in (A, C)] == [CONSUMED] * 2
    assert isinstance(settled[POISON], Reject)
    assert "3 attempts did not finish" in settled[POISON].reason
    assert ledger.effects() == [A, C]
    ledger.database.close()


APPLICATION = """
import os, signal, threading
from sqlalchemy import text
from sqlalchemy.orm import Session
from reliable_mq import ReceivedMessage, ReliableMQ

mq = ReliableMQ("shop", claim_lease_seconds=1.0, retry_waits_seconds=(0.2,))
neighbours = threading.Semaphore(0)
ATTEMPTS, NEIGHBOURS = 3, 7

def is_last(message: ReceivedMessage) -> bool:
    return message.reconsume_times == ATTEMPTS - 1

@mq.consumer("orders", group="payments", max_attempts=ATTEMPTS, ordered=False)
def pay(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
    if order["id"] == 1:
        if not is_last(message):
            for _ in range(NEIGHBOURS):
                assert neighbours.acquire(timeout=60)
        os.kill(os.getpid(), signal.SIGKILL)
    write(session, order, message, 0)

@mq.consumer("orders", group="loyalty", max_attempts=ATTEMPTS, ordered=False)
def count(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
    write(session, order, message, 1)

def write(session: Session, order: dict[str, int], message: ReceivedMessage, loyalty: int) -> None:
    if not is_last(message):
        neighbours.release()
        threading.Event().wait()  # until it is killed
    values = order | {"loyalty": loyalty}
    session.execute(text("INSERT INTO effects VALUES (:id, :loyalty)"), values)
"""


@pytest.mark.processes
@pytest.mark.parametrize("with_redis", [False, True])
def test_only_what_kills_becomes_a_dead_letter(
    programs: Programs,
    tmp_path: Path,
    postgres_url: str,
    redis_url: str,
    with_redis: bool,
) -> None:
    shop = Shop(programs, tmp_path, postgres_url, redis_url if with_redis else "")
    (tmp_path / "shop_app.py").write_text(APPLICATION)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    shop.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    shop.sql("CREATE TABLE effects (id INT, is_loyalty INT)")
    assert shop.python("mq.create_tables()") == 0
    with shop.broker():
        sent = "[tx.send('orders', {'id': n}) for n in range(4)]"
        assert shop.python(f"\nwith mq.transaction() as tx: {sent}\nmq.close()") == 0
        deaths = 0

        def is_over() -> bool:
            done = shop.sql("SELECT count(*) FROM effects")[0][0]
            return bool(done >= 7 and shop.sql("SELECT 1 FROM rmq_escalation"))

        while not is_over():
            with shop.running("run", "shop_app:mq") as worker:
                until(lambda: worker.poll() is not None or is_over(), seconds=60)
                deaths += worker.poll() is not None
            assert deaths <= 8

    assert shop.sql("SELECT id, is_loyalty FROM effects ORDER BY is_loyalty, id") == [
        *((0, 0), (2, 0), (3, 0)),
        *((0, 1), (1, 1), (2, 1), (3, 1)),
    ]
    dead = shop.sql("SELECT consumer_group, reason FROM rmq_escalation")
    assert dead == [("payments", "3 attempts did not finish")]
    assert deaths == ATTEMPTS
