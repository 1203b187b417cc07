"""The shop that the tests of web frameworks share; Django's tests have a project instead."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from reliable_mq import ReliableMQ


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ReliableMQ]:
    """Give an application with a table of orders. No broker runs, so its messages wait."""
    made = ReliableMQ("shop", broker="127.0.0.1:1", database=f"sqlite:///{tmp_path / 'shop.db'}")
    made.create_tables()
    with made.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INT UNIQUE)"))
    made.topic("orders", groups=["payments"])
    yield made
    made.close()
