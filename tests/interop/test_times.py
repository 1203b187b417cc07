"""When the messages of an application arrive at our broker and at Apache's, by the wall clock."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.waiting import until
from tests.with_java import INTEROP, Broker, started

from reliable_mq import ReliableMQ

pytestmark = INTEROP
SECONDS_MAX = 90.0
LATE_MAX = {"ours": 0.5, "apache": 2.5}
"""Seconds: Apache's wheel turns once a second, and this machine is busy."""
BROKERS: dict[str, Callable[..., Broker]] = {
    "ours": lambda folder, settings: ReliableMQBroker(folder, settings=settings),
    "apache": lambda folder, settings: ApacheRocketMQ(
        folder, "ASYNC_FLUSH", settings, flags=SMALL_BROKER_FLAGS
    ),
}


class Shop:
    """An application that notes when its messages arrive."""

    def __init__(self, folder: Path, name_server: str) -> None:
        self.arrived: dict[str, float] = {}
        self.mq = mq = ReliableMQ(
            "times",
            database=f"sqlite:///{folder}/shop.db",
            broker=name_server,
            send_outside_transaction="allow",
        )
        mq.create_tables()

        @mq.consumer("reminders", group="people")
        def remind(reminder: dict[str, str]) -> None:
            self.arrived.setdefault(reminder["name"], time.time())

    def wait_for(self, *names: str) -> None:
        until(
            lambda: self.arrived.keys() >= set(names),
            lambda: f"arrived: {self.arrived}",
            seconds=SECONDS_MAX,
            look_seconds=0.01,
        )


@pytest.fixture(scope="module", params=["ours", "apache"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def shop(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp(f"times-{kind}")
    with started(BROKERS[kind](folder, {})) as broker:
        made = Shop(folder, broker.name_server_address)
        with made.mq:
            with made.mq.transaction() as tx:
                tx.send("reminders", {"name": "first"})
            made.wait_for("first")
            yield made


def test_messages_arrive_at_their_time_and_never_early(kind: str, shop: Shop) -> None:
    # Given messages with a delay, and one with an instant, of a transaction and without one
    now = datetime.now(UTC)
    wanted = {}
    with shop.mq.transaction() as tx:
        for name, delay in (("3s", timedelta(seconds=3)), ("soon", timedelta(milliseconds=1))):
            tx.send("reminders", {"name": name}, delay=delay)
            wanted[name] = time.time() + delay.total_seconds()
        at = now + timedelta(seconds=4, milliseconds=321)
        tx.send("reminders", {"name": "at"}, deliver_at=at)
        tx.send("reminders", {"name": "past"}, deliver_at=now - timedelta(days=1))
        wanted |= {"at": at.timestamp(), "past": now.timestamp()}
    at = datetime.now(UTC) + timedelta(seconds=3)
    shop.mq.producer.send("reminders", {"name": "direct"}, deliver_at=at)
    wanted["direct"] = at.timestamp()

    # When all have arrived
    shop.wait_for(*wanted)

    # Then each came at its time
    late = {name: shop.arrived[name] - due for name, due in wanted.items()}
    print(f"{kind}: late by {late}")
    assert all(-0.02 <= seconds <= LATE_MAX[kind] for seconds in late.values()), late
