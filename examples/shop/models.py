"""The shop's own tables. Nothing here knows of messages."""

from datetime import datetime
from decimal import Decimal
from typing import TypedDict

from sqlalchemy import BigInteger, ForeignKey, Numeric, bindparam, insert, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class ShopTable(DeclarativeBase):
    """What the shop's tables have in common: one metadata."""


class Order(ShopTable):
    """One basket that a household paid for at the till."""

    __tablename__ = "shop_order"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    household_id: Mapped[int] = mapped_column(BigInteger)
    placed_at: Mapped[datetime]
    amount: Mapped[Decimal] = mapped_column(Numeric(10, 2))


class OrderLine(ShopTable):
    """One product of an order."""

    __tablename__ = "shop_order_line"

    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    product_id: Mapped[int] = mapped_column(BigInteger)
    quantity: Mapped[int]
    price: Mapped[Decimal] = mapped_column(Numeric(10, 2))


class Payment(ShopTable):
    """Money taken for an order.

    The order is deliberately not unique here: were a message handled twice, it would show.
    """

    __tablename__ = "shop_payment"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(BigInteger, index=True)
    amount: Mapped[Decimal] = mapped_column(Numeric(10, 2))


class LoyaltyAccount(ShopTable):
    """The points of a household: a sum, so one message lost or doubled makes it wrong for ever."""

    __tablename__ = "shop_loyalty_account"

    household_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    points: Mapped[int] = mapped_column(BigInteger)


class NewOrder(TypedDict):
    """An order as the till hands it over."""

    id: int
    household_id: int
    placed_at: datetime
    amount: Decimal


class NewLine(TypedDict):
    """One line of it; `number` counts from 1."""

    number: int
    product_id: int
    quantity: int
    price: Decimal


# Statements of every order are built once, on the tables: a session that writes objects would cost
# half as much again.
_TABLES = ShopTable.metadata.tables
_account = _TABLES["shop_loyalty_account"]
INSERT_ORDER = insert(_TABLES["shop_order"])
INSERT_LINES = insert(_TABLES["shop_order_line"])
ADD_POINTS = (
    update(_account)
    .where(_account.c.household_id == bindparam("household"))
    .values(points=_account.c.points + bindparam("more"))
    .returning(_account.c.points)
)
