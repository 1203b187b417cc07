"""A key is read from a field that the payload's model has: a wrong name is refused at import."""

from typing import Any

import pytest
from pydantic import BaseModel

from reliable_mq import ReliableMQ
from reliable_mq.errors import MessageRefused, UsageError


class Address(BaseModel):
    street: str


class Order(BaseModel):
    order_id: int
    address: Address
    extra: dict[str, Any] = {}

    @property
    def key(self) -> str:
        return str(self.order_id)


class Open(BaseModel, extra="allow"):
    """May have any field."""


def _declare(path: str, model: type[BaseModel]) -> None:
    shop = ReliableMQ("shop", database="sqlite:///unused.db")

    def pay(order: Any) -> None: ...

    pay.__annotations__["order"] = model
    shop.consumer("orders", group="payments", idempotent_by=path)(pay)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("ordr_id", "Order has no field 'ordr_id'"),
        ("address.stret", "Address has no field 'stret'"),
        ("address.street.nope", None),
        ("extra.anything", None),
        ("order_id", None),
        ("key", None),
    ],
)
def test_a_field_that_the_model_lacks_is_refused(path: str, says: str | None) -> None:
    if says is None:
        _declare(path, Order)
        return
    with pytest.raises(UsageError, match=says):
        _declare(path, Order)


def test_a_model_that_takes_any_field_is_not_asked() -> None:
    _declare("anything", Open)


def test_a_property_without_a_name_is_refused(tmp_path: Any) -> None:
    """It was dropped silently: consumers saw the other properties only."""
    shop = ReliableMQ("shop", database=f"sqlite:///{tmp_path}/shop.db")
    shop.create_tables()

    with pytest.raises(MessageRefused, match="give the property a name"), shop.transaction() as tx:
        tx.send("orders", {"id": 1}, key="1", properties={"": "x"})
