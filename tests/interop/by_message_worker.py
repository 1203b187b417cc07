"""A worker that consumes by the message, and kills itself at one place.

python -m tests.interop.by_message_worker PLACE BROKER DATABASE_URL
"""

import os
import signal
import sys
from collections.abc import Sequence
from unittest import mock

from sqlalchemy import text
from sqlalchemy.orm import Session

from reliable_mq import ReliableMQ
from reliable_mq.client.consuming import asyncio_pop_acks, pop_leases
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.popped_queue import PopLease
from reliable_mq.client.flow import Flow

PLACES = ("none", "begin of a handler", "end of a handler", "before an ack", "after an ack")
NTH = 3  # time that the place is reached
LEASE_SECONDS = 4.0


class Reaper:
    """Kills this process when it reaches its place for the n-th time."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._times = 0

    def pass_by(self, place: str) -> None:
        if place == self.place:
            self._times += 1
            if self._times == NTH:
                os.kill(os.getpid(), signal.SIGKILL)


def application(broker: str, database: str, reaper: Reaper) -> ReliableMQ:
    """Return an application whose effect is one row for each message."""
    mq = ReliableMQ("shop", broker=broker, database=database)

    @mq.consumer(
        "orders",
        group="payments",
        by="message",
        ordered=False,
        lease=LEASE_SECONDS,
        concurrency=2,
    )
    def pay(order: dict[str, int], session: Session) -> None:
        reaper.pass_by("begin of a handler")
        session.execute(text("INSERT INTO effects VALUES (:number)"), {"number": order["number"]})
        reaper.pass_by("end of a handler")

    return mq


def main() -> None:
    place, broker, database = sys.argv[1:4]
    reaper = Reaper(place)
    mq = application(broker, database, reaper)

    def acknowledge(
        group: ConsumerGroup, broker_name: str, leases: Sequence[PopLease]
    ) -> Flow[None]:
        reaper.pass_by("before an ack")
        yield from pop_leases.acknowledge(group, broker_name, leases)
        reaper.pass_by("after an ack")

    with mock.patch.object(asyncio_pop_acks, "acknowledge", acknowledge):
        mq.run()


if __name__ == "__main__":
    main()
