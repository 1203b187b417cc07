"""An outbox over a real database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, text

from reliable_mq.database.sql_database import Database
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_transaction import TransactionScope
from reliable_mq.outbox.stub import Stub
from reliable_mq.outbox.transaction_block import source_of


class Bench:
    """An outbox over a real database, and a relay that only remembers what it was handed.

    Without an owner its stubs are for any relay.
    """

    def __init__(self, url: str, *, owner: str | None = "relay") -> None:
        self.database = Database(url, prefix="rmq_", connections=4)
        self.database.create_tables()
        with self.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER)"))
        self.handed_stubs: list[Stub] = []
        self.outbox = SqlOutbox(
            SqlStubs(self.database.engine, self.database.stubs),
            self,
            owner=owner,
            lease=5.0,
            groups_of_topic=lambda topic, _tag: ("payments",) if topic == "orders" else (),
        )

    def accept_committed(self, stubs: Sequence[Stub]) -> None:
        self.handed_stubs += stubs

    @property
    def handed(self) -> list[str]:
        return [stub.message_id for stub in self.handed_stubs]

    def transaction(self, session: Any = None) -> TransactionScope:
        database = self.database
        source = None if session is None else source_of(session)
        return TransactionScope(self.outbox, database.session, database.async_session, source)

    def stubs(self) -> list[Any]:
        with self.database.engine.begin() as connection:
            table = self.database.stubs
            return list(connection.execute(select(table).order_by(table.c.seq)).all())

    def ids(self) -> list[str]:
        return [row.message_id for row in self.stubs()]

    def read_back(self) -> list[str]:
        """Return what a relay would send of what it was handed."""
        stubs = SqlStubs(self.database.engine, self.database.stubs)
        there = stubs.sendable(self.handed, "relay")
        return [each for each in self.handed if each in there]

    def orders(self) -> int:
        with self.database.engine.begin() as connection:
            return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())
