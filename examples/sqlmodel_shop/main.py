"""SQLModel: its session is the transaction, its models are tables and payloads."""

from threading import Event

from sqlalchemy import orm
from sqlmodel import Field, Session, SQLModel, select

from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", broker="embedded:broker", database="sqlite:///shop.db")
paid = Event()


class Order(SQLModel, table=True):
    """An order."""

    id: int | None = Field(default=None, primary_key=True)
    item: str
    is_paid: bool = False


class OrderPlaced(SQLModel):
    """What the message says."""

    id: int
    item: str


def place(item: str) -> None:
    """Write an order and announce it: both, or neither."""
    with Session(mq.database.engine) as session, session.begin():
        order = Order(item=item)
        session.add(order)
        session.flush()
        assert order.id is not None
        with mq.transaction(session) as tx:
            tx.send("orders", OrderPlaced(id=order.id, item=item))


@mq.consumer("orders", group="payments")
def take_payment(placed: OrderPlaced, session: orm.Session) -> None:
    """Take the payment; it commits together with the note that this message is done."""
    session.get_one(Order, placed.id).is_paid = True
    paid.set()


if __name__ == "__main__":
    mq.create_tables()
    SQLModel.metadata.create_all(mq.database.engine)
    with mq:
        place("tea")
        paid.wait(timeout=60)
    with Session(mq.database.engine) as reading:
        for order in reading.exec(select(Order)):
            print(order.item, "is paid:", order.is_paid)
