"""An outbox over a real database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, text

from reliable_mq.app.sql_database import Database
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_transaction import TransactionScope
from reliable_mq.outbox.stub import Stub


class Bench:
    """An outbox over a real database, and a relay that only remembers what it was handed."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=4)
        self.database.create_tables()
        with self.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER)"))
        self.handed: list[str] = []
        self.outbox = SqlOutbox(
            SqlStubs(self.database.engine, self.database.stubs),
            self,
            owner="relay",
            lease=5.0,
            groups_of_topic=lambda topic, _tag: ("payments",) if topic == "orders" else (),
        )

    def hand(self, stubs: Sequence[Stub], written: float) -> None:
        self.handed += [stub.message_id for stub in stubs]

    def transaction(self, session: Any = None) -> TransactionScope:
        database = self.database
        return TransactionScope(self.outbox, database.session, database.async_session, session)

    def stubs(self) -> list[Any]:
        with self.database.engine.begin() as connection:
            table = self.database.stubs
            return list(connection.execute(select(table).order_by(table.c.seq)).all())

    def ids(self) -> list[str]:
        return [row.message_id for row in self.stubs()]

    def orders(self) -> int:
        with self.database.engine.begin() as connection:
            return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())
