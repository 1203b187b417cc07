"""The tables of the shop. Nothing here knows of messages."""

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Table(DeclarativeBase):
    """What the tables have in common."""


class Order(Table):
    """An order of a customer."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    is_paid: Mapped[bool] = mapped_column(default=False)


class Payment(Table):
    """A payment of an order."""

    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
