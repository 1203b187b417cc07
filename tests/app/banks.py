"""An application that takes payments by idempotent calls."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Row, select, text
from sqlalchemy.orm import Session

from reliable_mq import IdempotentCall, ReliableMQ

LEASE = 0.3


class Receipt(BaseModel):
    number: int
    amount: int


class Bank:
    """An application that takes payments, and what is left of them in its database."""

    def __init__(self, url: str, lease: float = LEASE) -> None:
        self.mq = ReliableMQ("bank", broker="127.0.0.1:9", database=url, claim_lease_seconds=lease)
        self.mq.create_tables()
        with self.mq.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS effects (id TEXT)"))

    def effects(self) -> list[str]:
        with self.mq.database.engine.begin() as connection:
            return sorted(connection.execute(text("SELECT id FROM effects")).scalars())

    def rows(self) -> list[Row[Any]]:
        with self.mq.database.engine.begin() as connection:
            return list(connection.execute(select(self.mq.database.calls)).all())

    def pay(self, **options: Any) -> Callable[..., Receipt]:
        """Return a function with its effect in the database."""
        numbers = iter(range(1, 1000))

        @self.mq.idempotent(**{"key": "request", "scope": "pay", **options})
        def pay(request: str | None, amount: int, session: Session) -> Receipt:
            session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": request})
            if amount < 0:
                raise ValueError("no such amount")
            return Receipt(number=next(numbers), amount=amount)

        return pay


def elsewhere(bank: Bank, work: Callable[[IdempotentCall], str], **options: Any) -> Any:
    """Return a function with its effect outside the database."""

    @bank.mq.idempotent(**{"key": "request", "scope": "elsewhere", **options})
    def ask(request: str, call: IdempotentCall) -> str:
        return work(call)

    return ask
