"""What the page about groups says to do, done: a late group, and a renamed one."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import DONE, run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "renaming.md"
pytestmark = pytest.mark.processes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with ReliableMQBroker(tmp_path / "broker", "ASYNC_FLUSH") as running:
        yield running.name_server_address


def follow(heading: str, broker: str) -> None:
    """Do the commands for the cluster that the page has under a heading."""
    part = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [each.strip() for each in part.splitlines() if each.strip().startswith("reliable-mq ")]
    commands = [each for each in lines if "127.0.0.1:9876" in each]
    assert len(commands) >= 2
    for each in commands:
        with pytest.raises(SystemExit) as ended:
            run(shlex.split(re.sub("127.0.0.1:9876", broker, each))[1:])
        assert ended.value.code in (None, DONE), each


@contextmanager
def shop(folder: Path, broker: str, *groups: str) -> Iterator[ReliableMQ]:
    mq = ReliableMQ("shop", broker=broker, database=f"sqlite:///{folder}/shop.db")

    def consume(group: str) -> None:
        @mq.consumer("orders", group=group)
        def enter(order: dict[str, int], session: Session) -> None:
            session.execute(text("INSERT INTO effects VALUES (:g, :id)"), {"g": group} | order)

    for each in groups:
        consume(each)
    try:
        mq.create_tables()
        with mq.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS effects (g TEXT, id INTEGER)"))
        with mq:
            yield mq
    finally:
        mq.close()


def effects(mq: ReliableMQ) -> list[tuple[str, int]]:
    with mq.database.engine.begin() as connection:
        rows = connection.execute(text("SELECT g, id FROM effects ORDER BY g, id"))
        return [(str(group), int(number)) for group, number in rows]


def send(mq: ReliableMQ, number: int) -> None:
    with mq.transaction() as tx:
        tx.send("orders", {"id": number})


def test_a_group_that_is_added_later_as_the_page_says_gets_new_messages_only(
    tmp_path: Path, broker: str
) -> None:
    with shop(tmp_path, broker, "payments") as mq:
        send(mq, 1)
        until(lambda: effects(mq) == [("payments", 1)])
    follow("Add a group later", broker)

    with shop(tmp_path, broker, "payments", "analytics") as mq:
        send(mq, 2)
        wanted = [("analytics", 2), ("payments", 1), ("payments", 2)]
        until(lambda: effects(mq) == wanted, seen=lambda: effects(mq))


def test_a_group_that_is_renamed_as_the_page_says_has_no_effect_twice(
    tmp_path: Path, broker: str
) -> None:
    with shop(tmp_path, broker, "payments") as mq:
        send(mq, 1)
        until(lambda: effects(mq) == [("payments", 1)])
    follow("Rename a group", broker)

    with shop(tmp_path, broker, "charges") as mq:
        send(mq, 2)
        wanted = [("charges", 2), ("payments", 1)]
        until(lambda: effects(mq) == wanted, seen=lambda: effects(mq))
