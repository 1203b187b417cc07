"""A half message: the broker has it before the transaction commits, and shows it only after.

What the broker cannot take fails the order at once, instead of waiting in a table. If the process
dies in between, the broker asks, and any process of the application answers from the table of
stubs; there is no code to write for that.
"""

from threading import Event

from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", broker="embedded:broker", database="sqlite:///shop.db")
packed: list[str] = []
all_packed = Event()


class Table(DeclarativeBase):
    """What the application's tables have in common."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    article: Mapped[str] = mapped_column(primary_key=True)


@mq.consumer("orders", group="warehouse")
def pack(article: str) -> None:
    """Pack what was ordered."""
    packed.append(article)
    if article == "tea":
        all_packed.set()


def place(article: str) -> None:
    """Place an order, and tell the warehouse."""
    with mq.transaction(half=True) as tx:
        tx.session.add(Order(article=article))
        tx.send("orders", article, ordering_key="one customer")
        if article == "cake":
            raise LookupError("cake is sold out")


mq.create_tables()
Table.metadata.create_all(mq.database.engine)
with mq:
    for article in ("books", "cake", "tea"):
        try:
            place(article)
        except LookupError as error:
            print("not ordered:", error)
    all_packed.wait(timeout=60)

with Session(mq.database.engine) as session:
    print("ordered:", sorted(session.scalars(select(Order.article))))
print("packed:", packed)
