"""The tables and the payloads of the shop."""

from dataclasses import dataclass

from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from reliable_mq import schema


class Table(DeclarativeBase):
    """What the tables have in common."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    is_paid: Mapped[bool] = mapped_column(default=False)


def with_currency(old: dict[str, object]) -> dict[str, object]:
    """Upgrade version 1."""
    return {**old, "currency": "EUR"}


@schema("order.placed", version=2, upgrades={1: with_currency})
class OrderPlaced(BaseModel):
    """The payload of the topic "orders"."""

    id: int
    amount: int
    currency: str = "EUR"


@dataclass
class Refund:
    """The payload of the topic "refunds"."""

    order: int
