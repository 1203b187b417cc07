"""Print how many payments each order has."""

from sqlalchemy import func, select

from shop import Order, Payment, mq

with mq.database.engine.connect() as connection:
    paid = (
        select(Order.id, func.count(Payment.id))
        .outerjoin(Payment, Payment.order_id == Order.id)
        .group_by(Order.id)
    )
    for order, count in connection.execute(paid):
        print("order", order, "payments", count)
