"""A producer of half messages that dies where it is told to.

python -m tests.interop.half_producer NAME_SERVERS DATABASE_URL ORDER ENDING
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from reliable_mq import ReliableMQ
from reliable_mq.app.thread_connections import Connections
from reliable_mq.message import Half
from reliable_mq.outbox.half_sender import HalfSender

TOPIC, GROUP = "orders", "shipping"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(ending: str) -> None:
    """Let the process die before or after it ends its half."""
    if ending == "after the commit":
        HalfSender.send_many = lambda *_: die()  # type: ignore[method-assign,assignment]
    if ending == "after the end":
        commit = Connections.commit_halves

        def commit_and_die(self: Connections, halves: Sequence[Half]) -> Any:
            results = commit(self, halves)
            assert not [result for result in results if isinstance(result, Exception)]
            die()

        Connections.commit_halves = commit_and_die  # type: ignore[method-assign]


def main(broker: str, database: str, order: str, ending: str) -> None:
    arm(ending)
    mq = ReliableMQ("shop", broker=broker, database=database, relay_lease_seconds=2.0)
    mq.topic(TOPIC, groups=[GROUP])
    with Session(mq.database.engine) as session, mq.transaction(session, half=True) as tx:
        session.execute(text("INSERT INTO placed VALUES (:id)"), {"id": order})
        tx.send(TOPIC, order, key=order)
        if ending == "before the commit":
            die()
        if ending == "rolled back":
            session.rollback()
    mq.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
