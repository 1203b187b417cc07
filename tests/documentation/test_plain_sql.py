"""The page on plain SQL: what it inserts is sent, consumed and confirmed."""

import re
from pathlib import Path
from threading import Event
from typing import Literal

import psycopg
import pytest
from sqlalchemy import select
from tests.waiting import until

from reliable_mq import ReceivedMessage, ReliableMQ
from reliable_mq.database.row_values import StubStatus

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "plain_sql.md").read_text()
pytestmark = pytest.mark.processes


def statements() -> list[str]:
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    return [each.strip() for each in block.split(";") if each.strip()]


@pytest.mark.parametrize("relay", ["own", "shared"])
def test_a_row_that_sql_inserts_is_consumed_and_confirmed(
    relay: Literal["own", "shared"], postgres_url: str, tmp_path: Path
) -> None:
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}", database=postgres_url, relay=relay)
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
        with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
            for each in statements():
                connection.execute(each.encode())
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
