"""Flask: an extension, a transaction for each request, a consumer in the application's context."""

from threading import Event

from flask import Flask, current_app, request
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReliableMQ
from reliable_mq.contrib.flask import FlaskMQ

mq = ReliableMQ("shop", broker="embedded:broker", database="sqlite:///shop.db")
messages = FlaskMQ(mq)
paid = Event()


class Table(DeclarativeBase):
    """What the shop's tables have in common."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    is_paid: Mapped[bool] = mapped_column(default=False)


def create_app() -> Flask:
    """Return the application."""
    app = Flask("shop")
    messages.init_app(app)

    @app.post("/orders")
    def place() -> tuple[str, int]:
        order = Order(item=request.form["item"])
        messages.tx.session.add(order)
        messages.tx.session.flush()
        messages.tx.send("orders", {"id": order.id})
        if order.item == "rum":
            return "no rum is left", 422  # rolled back: the status is 400 or more
        return str(order.id), 201

    return app


@messages.consumer("orders", group="payments")
def take_payment(placed: dict[str, int], session: Session) -> None:
    """Take the payment; it commits together with the note that this message is done."""
    order = session.get_one(Order, placed["id"])
    order.is_paid = True
    print(f"{current_app.name}: order {order.id} {order.item} is paid")
    paid.set()


if __name__ == "__main__":
    mq.create_tables()
    Table.metadata.create_all(mq.database.engine)
    client = create_app().test_client()
    with mq:
        for item in ("rum", "tea"):
            answer = client.post("/orders", data={"item": item})
            print(item, answer.status_code, answer.text)
        paid.wait(timeout=60)
