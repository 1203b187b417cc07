"""What a request has left behind in the shop of `conftest.py`."""

from sqlalchemy import text

from reliable_mq import ReliableMQ

INSERT = text("INSERT INTO orders VALUES (:id)")


def kept(mq: ReliableMQ) -> tuple[list[int], int]:
    """Return the orders, and how many messages there are."""
    with mq.database.reading_engine.connect() as connection:
        orders = list(connection.execute(text("SELECT id FROM orders ORDER BY id")).scalars())
        stubs = connection.exec_driver_sql("SELECT count(*) FROM rmq_message_stub").scalar_one()
    return orders, stubs
