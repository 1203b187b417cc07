"""A shop whose orders, payments and loyalty points never disagree; what `make demo` runs."""

from examples.shop.app import OrderPlaced, mq, place_order, write_order
from examples.shop.models import (
    LoyaltyAccount,
    NewLine,
    NewOrder,
    Order,
    OrderLine,
    Payment,
    ShopTable,
)

__all__ = [
    "LoyaltyAccount",
    "NewLine",
    "NewOrder",
    "Order",
    "OrderLine",
    "OrderPlaced",
    "Payment",
    "ShopTable",
    "mq",
    "place_order",
    "write_order",
]
