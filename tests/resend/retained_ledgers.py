"""The ledgers that retention is tested with: what is settled, what waits, and for how long."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, update
from tests.resend.watching import watched_retention

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.retention.retention import Retention
from reliable_mq.retention.sql_keeping import retention_ledgers
from reliable_mq.retention.sql_retention import SqlRetention

UNCONFIRMED, CONFIRMED, VOIDED = StubStatus
KEPT, LOGGED = 100.0, 200.0
"""Windows of stubs and of logs."""


class Ledgers:
    """Stubs and logs of a database, and one life of a process that removes them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = Database(url, prefix="rmq_", connections=4)

    def fill(self, settled: Sequence[str], waiting: str) -> None:
        """Begin anew with messages that are consumed, and one whose stub waits all the same."""
        with self.database.engine.begin() as connection:
            for table in (self.database.stubs, self.database.logs, self.database.retention_duties):
                connection.execute(table.delete())
            for name in (*settled, waiting):
                status = UNCONFIRMED if name == waiting else CONFIRMED
                self._stub(connection, name, status, 1000.0)
                self._log(connection, name, "g", 1000.0)

    def stub(self, name: str, status: StubStatus, *, settled: float = 1000.0) -> str:
        with self.database.engine.begin() as connection:
            return self._stub(connection, name, status, settled)

    def log(self, name: str, *, group: str = "g", consumed: float | None = 1000.0) -> None:
        with self.database.engine.begin() as connection:
            self._log(connection, name, group, consumed)

    def _stub(self, connection: Connection, name: str, status: StubStatus, settled: float) -> str:
        table = self.database.stubs
        stub = Stub(seq=0, message_id=name.ljust(32, "0"), topic="orders", content=b"x")
        SqlStubs(self.database.engine, table).insert(connection, [stub], "relay", 900.0, 5.0)
        values: dict[str, Any] = {"status": status.value, "update_date": utc_datetime(settled)}
        if status is not UNCONFIRMED:
            values["resend_time"] = None
        this = table.c.message_id == stub.message_id
        connection.execute(update(table).where(this).values(**values))
        return stub.message_id

    def _log(self, connection: Connection, name: str, group: str, consumed: float | None) -> None:
        row = {
            "consumer_group": group,
            "message_id": name.ljust(32, "0"),
            "topic": "orders",
            "broker_name": "b",
            "queue_id": 0,
            "offset": 1,
            "state": 0 if consumed is None else 1,
            "attempt": 1,
            "create_date": utc_datetime(900.0),
            "consume_date": None if consumed is None else utc_datetime(consumed),
        }
        connection.execute(insert(self.database.logs), row)

    def names(self, of: str) -> list[str]:
        table = self.database.stubs if of == "stubs" else self.database.logs
        with self.database.engine.begin() as connection:
            ids = connection.execute(select(table.c.message_id)).scalars()
            return sorted(each.rstrip("0") for each in ids)

    def ledgers(self) -> SqlRetention:
        return retention_ledgers(self.database)

    def retention(self, owner: str = "one", batch: int = 10, **more: Any) -> Retention:
        return watched_retention(
            self.database,
            owner=owner,
            stub_retention=KEPT,
            log_retention=LOGGED,
            lease=60.0,
            batch=batch,
            **more,
        )
