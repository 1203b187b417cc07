"""When the messages of an application arrive at our broker and at Apache's, by the wall clock."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import select
from tests.waiting import until
from tests.with_java import INTEROP, Broker, started

from reliable_mq import ReliableMQ
from reliable_mq.resend.thread_scheduler import run_forever

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


def test_a_message_that_waits_survives_a_broker_that_is_killed(kind: str, tmp_path: Path) -> None:
    # Given a broker that looks six seconds ahead, and messages four and ten seconds ahead
    with started(BROKERS[kind](tmp_path / "broker", {"timerMaxDelaySec": "6"})) as broker:
        shop = Shop(tmp_path, broker.name_server_address)
        with shop.mq, resending(shop.mq):
            with shop.mq.transaction() as tx:
                tx.send("reminders", {"name": "first"})
            shop.wait_for("first")
            began = time.time()
            wanted = {"near": 4.0, "far": 10.0}
            with shop.mq.transaction() as tx:
                for name, seconds in wanted.items():
                    tx.send("reminders", {"name": name}, delay=timedelta(seconds=seconds))
            until(lambda: sent(shop.mq, "near"), lambda: "near is not sent", seconds=SECONDS_MAX)

            # When the broker is killed at once, and starts again
            restart(broker)
            shop.wait_for(*wanted)

    # Then neither came early, and each came
    early = {name: shop.arrived[name] - began - wanted[name] for name in wanted}
    print(f"{kind}: late by {early}")
    assert all(seconds >= -0.02 for seconds in early.values()), early


def test_without_timers_a_message_comes_at_the_end_of_the_next_level(
    kind: str, tmp_path: Path
) -> None:
    with started(BROKERS[kind](tmp_path / "broker", {"timerWheelEnable": "false"})) as broker:
        shop = Shop(tmp_path, broker.name_server_address)
        with shop.mq:
            began = time.time()
            with shop.mq.transaction() as tx:
                tx.send("reminders", {"name": "level"}, delay=timedelta(seconds=3))
            shop.mq.producer.send("reminders", {"name": "direct"}, delay=timedelta(seconds=3))
            shop.wait_for("level", "direct")
            with shop.mq.database.engine.connect() as connection:
                stub = connection.execute(select(shop.mq.database.stubs)).one()

    assert "rounded up to a delay level of 5 s" in stub.note
    assert shop.arrived["level"] >= stub.deliver_time.timestamp() - 0.02
    assert min(shop.arrived.values()) - began >= 5.0


def sent(mq: ReliableMQ, name: str) -> bool:
    """Say whether a broker has acknowledged a message."""
    stub = mq.database.stubs.c
    with mq.database.engine.connect() as connection:
        rows = connection.execute(select(stub.content, stub.broker_name)).all()
    return any(name.encode() in row.content and row.broker_name for row in rows)


@contextmanager
def resending(mq: ReliableMQ) -> Iterator[None]:
    """Let a scheduler run beside the block."""
    over, scheduler = threading.Event(), mq.scheduler()
    work = {"interval": 0.1, "clock": mq.database.clock.measured_now}
    thread = threading.Thread(target=run_forever, args=(scheduler, over), kwargs=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def restart(broker: Broker) -> None:
    """Kill a broker, and start it on its store."""
    broker.kill()
    broker.start()
