"""By the message, too, effects happen once wherever a worker is killed, at both brokers."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import create_engine, text
from tests.interop.by_message_worker import LEASE_SECONDS, PLACES, Reaper, application
from tests.interop.test_by_message import OURS_HAS_POP
from tests.waiting import until
from tests.with_java import INTEROP, Broker, started

from reliable_mq import Client, Message

pytestmark = INTEROP

MESSAGES = 30
REAPPEARS_SECONDS = LEASE_SECONDS + 6.0
"""So late comes what a dead worker had, at Apache's broker, too."""


@pytest.fixture(
    params=[
        "apache",
        pytest.param(
            "ours",
            marks=pytest.mark.skipif(not OURS_HAS_POP, reason="our broker has no POP_MESSAGE yet"),
        ),
    ]
)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    made: Broker = ReliableMQBroker(tmp_path / "broker")
    if request.param == "apache":
        made = ApacheRocketMQ(tmp_path / "broker", "ASYNC_FLUSH", flags=SMALL_BROKER_FLAGS)
    with started(made):
        yield made


def test_each_effect_happens_once_wherever_workers_are_killed(
    broker: Broker, database_url: str
) -> None:
    mq = application(broker.name_server_address, database_url, Reaper("none"))
    mq.create_tables()
    mq.close()
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (number integer)"))
    with Client(broker.name_server_address) as client:
        client.create_topic("orders", 4)
        for number in range(MESSAGES):
            client.send(Message(topic="orders", body=json.dumps({"number": number}).encode()))

    def effects() -> list[int]:
        with engine.connect() as connection:
            found: Any = connection.execute(text("SELECT number FROM effects ORDER BY number"))
            return [row.number for row in found]

    for place in PLACES[1:]:
        worker = _worker(place, broker, database_url)
        until(lambda each=worker: each.poll() is not None, effects)  # type: ignore[misc]
        assert worker.returncode == -9, place
    last = _worker("none", broker, database_url)
    try:
        until(lambda: len(set(effects())) == MESSAGES, effects)
        # What was handled and not acknowledged comes, too.
        ends = time.monotonic() + REAPPEARS_SECONDS
        until(lambda: time.monotonic() >= ends)
        assert effects() == list(range(MESSAGES))
    finally:
        last.terminate()
        assert last.wait(60) == 0
    with engine.connect() as connection:
        rows: Any = connection.execute(
            text("SELECT state, count(*) AS many FROM rmq_consume_log GROUP BY 1")
        )
        assert [row.many for row in rows] == [MESSAGES], "one row for each, all consumed"
    engine.dispose()


def _worker(place: str, broker: Broker, database_url: str) -> subprocess.Popen[bytes]:
    words = ("-m", "tests.interop.by_message_worker", place, broker.name_server_address)
    return subprocess.Popen([sys.executable, *words, database_url])
