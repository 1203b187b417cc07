"""Applications to plant faults in, for the doctor to find."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import event, insert, text

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import run
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.doctor.finding import Finding
from reliable_mq.escalate.sql_settlement import settlement_of
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.sql_resending import topics_of
from reliable_mq.resend.topic_gate import PROBE_STUBS
from reliable_mq.runtime import file_disk
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.testing.local_servers import free_port

SQLITE, POSTGRES, MYSQL = "sqlite", "postgresql", "mysql"
EVERY = (SQLITE, POSTGRES, MYSQL)
PATIENT: dict[str, Any] = {"redis_timeout_seconds": 60.0, "claim_lease_seconds": 600.0}
"""Settings by which a Redis is sound that a busy machine lets answer late."""


@contextmanager
def running_broker(directory: Path, name_servers: str = "", **properties: str) -> Iterator[str]:
    """Run a broker on a disk that is half full, however full this machine's is.

    Without `name_servers` it has one inside.
    """
    thread = LoopThread("broker")
    options = BrokerOptions(
        store=directory,
        port=0,
        name_server_port=0,
        name_servers=name_servers,
        properties=properties,
    )
    server = BrokerServer(options)
    with patch.object(file_disk, "used_ratio_of", return_value=0.5):
        thread.run(server.start())
        try:
            yield server.name_server_address
        finally:
            thread.run(server.close())
            thread.close()


class World:
    """An application with its tables, to plant faults in."""

    def __init__(self, url: str, *, makes_tables: bool = True, **settings: Any) -> None:
        settings = {"broker": f"127.0.0.1:{free_port()}", **settings}
        self.mq = ReliableMQ("shop", database=url, **settings)

        @self.mq.consumer("orders", group="payments")
        def pay(order: dict[str, int]) -> None: ...

        self.database = self.mq.database
        self.dialect = self.database.dialect
        if makes_tables:
            self.database.create_tables()

    def sql(self, *statements: str) -> None:
        with self.database.engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def renew(self) -> None:
        """Let connections be new ones, on which settings of the database hold."""
        self.database.engine.dispose()

    def on_connect(self, statement: str) -> None:
        @event.listens_for(self.database.engine, "connect")
        def _plant(connection: Any, _record: object) -> None:
            cursor = connection.cursor()
            cursor.execute(statement)
            cursor.close()

        self.renew()

    def stub(self, message_id: str = "A" * 32, **values: Any) -> None:
        now = time.time()
        table = self.database.stubs
        stubs = SqlStubs(self.database.engine, table)
        stub = Stub(
            seq=0,
            message_id=message_id,
            topic="orders",
            content=b"{}",
            required_groups=("payments",),
        )
        with self.database.engine.begin() as connection:
            stubs.insert(connection, [stub], "relay", now, 5.0)
            if values:
                it = table.c.message_id == message_id
                connection.execute(table.update().where(it).values(**values))

    def close_topic(self, at: float, **values: Any) -> None:
        """Write a stub to whose topic so many sends have failed in a row that it closed."""
        self.stub(**values)
        topics = topics_of(self.database)
        topics.add_failures("orders", PROBE_STUBS, at, "ConnectionLost: gone")

    def pause_topic(self, note: str, **values: Any) -> None:
        """Write a stub whose topic a person has paused."""
        self.stub(**values)
        self.mq.resending.pause("orders", note=note)

    def give_up(self, message_id: str = "A" * 32) -> None:
        """Let its only group give a message up, so that a person is told."""
        self.stub(message_id)
        with self.database.engine.begin() as connection:
            settlement_of(self.database).exhaust(
                connection, message_id, group="payments", reason="no", now=time.time()
            )

    def log(self, **values: Any) -> None:
        row = {
            "consumer_group": "payments",
            "message_id": "A" * 32,
            "topic": "orders",
            "broker_name": "b",
            "queue_id": 0,
            "offset": 0,
            "attempt": 1,
            "create_date": utc_datetime(time.time()),
        }
        with self.database.engine.begin() as connection:
            connection.execute(insert(self.database.logs), row | values)

    def process(self, **values: Any) -> None:
        row = {
            "owner": "shop-1",
            "application": "shop",
            "host": "there",
            "pid": 7,
            "package_version": "0",
            "clock_ahead": 0.0,
            "handling": "{}",
            "start_date": utc_datetime(time.time()),
            "seen_date": utc_datetime(time.time()),
        }
        with self.database.engine.begin() as connection:
            connection.execute(insert(self.database.processes), row | values)

    def findings(self, check: str) -> list[Finding]:
        return [each for each in self.mq.examine() if each.check == check]

    def close(self) -> None:
        self.mq.close()


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        run(words)
    return int(str(end.value.code or 0))
