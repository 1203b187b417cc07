"""The page on plain SQL: what it inserts is sent, consumed and confirmed."""

import re
from pathlib import Path
from threading import Event
from typing import Literal

import pytest
from sqlalchemy import NullPool, create_engine, select
from tests.waiting import until

from reliable_mq import ReceivedMessage, ReliableMQ
from reliable_mq.database.row_values import StubStatus

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "plain_sql.md").read_text()
pytestmark = pytest.mark.processes


def statements(heading: str) -> list[str]:
    """Return the statements of the page under a heading."""
    _, _, part = PAGE.partition(f"## {heading}\n")
    block = re.findall(r"```sql\n(.*?)```", part, re.DOTALL)[0]
    return [each.strip() for each in block.split(";") if each.strip()]


@pytest.mark.parametrize(
    ("heading", "url", "relay"),
    [
        ("PostgreSQL", "postgres_url", "own"),
        ("PostgreSQL", "postgres_url", "shared"),
        ("MySQL and MariaDB", "mysql_url", "own"),
    ],
)
def test_a_row_that_sql_inserts_is_consumed_and_confirmed(
    heading: str,
    url: str,
    relay: Literal["own", "shared"],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    database = request.getfixturevalue(url)
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}", database=database, relay=relay)
    paid, counted = Event(), Event()
    seen: list[str] = []

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int], message: ReceivedMessage) -> None:
        seen.append(f"{order} {message.keys}")
        paid.set()

    @mq.consumer("orders", group="loyalty")
    def count(order: dict[str, int]) -> None:
        counted.set()

    mq.create_tables()
    with mq:
        with create_engine(database, poolclass=NullPool).begin() as connection:
            for each in statements(heading):
                connection.exec_driver_sql(each)
        until(lambda: paid.is_set() and counted.is_set())
        stubs = mq.database.stubs
        with mq.database.engine.connect() as connection_of_ours:
            until(
                lambda: (
                    connection_of_ours.execute(select(stubs.c.status)).scalar()
                    == StubStatus.CONFIRMED.value
                )
            )
    assert seen == ["{'id': 7} ('7',)"]
