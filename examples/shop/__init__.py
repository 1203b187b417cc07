"""A shop whose orders, payments and loyalty points never disagree; what `make demo` runs."""

from examples.shop.app import OrderPlaced, mq, place_order
from examples.shop.models import LoyaltyAccount, Order, OrderLine, Payment, ShopTable

__all__ = [
    "LoyaltyAccount",
    "Order",
    "OrderLine",
    "OrderPlaced",
    "Payment",
    "ShopTable",
    "mq",
    "place_order",
]
