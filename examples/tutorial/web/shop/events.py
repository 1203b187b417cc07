"""What the parts of the shop tell each other."""

from pydantic import BaseModel

from reliable_mq import schema


@schema("order.placed", version=1)
class OrderPlaced(BaseModel):
    """An order was placed."""

    order_id: int
    item: str
