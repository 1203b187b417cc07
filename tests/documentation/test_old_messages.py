"""What the pages "Handle old messages again" and "Move to another database" say, done."""

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

from reliable_mq import Client, ReceivedMessage, ReliableMQ
from reliable_mq.cli.main import DONE, run

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
pytestmark = pytest.mark.processes


def commands(page: str, verb: str) -> list[list[str]]:
    """Return the command lines of a page that begin with a verb, without the program's name."""
    blocks = re.findall(
        r"^ *```sh\n(.*?)^ *```", (HOW_TO / page).read_text(), re.DOTALL | re.MULTILINE
    )
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    found = [words[1:] for words in lines if words[1 : 1 + len(verb.split())] == verb.split()]
    assert found, verb
    return found


def follow(page: str, verb: str, changes: dict[str, str]) -> None:
    """Do the commands of a page with the addresses and times of the test."""
    for words in commands(page, verb):
        with pytest.raises(SystemExit) as ended:
            run([changes.get(each, each) for each in words])
        assert (ended.value.code or DONE) == DONE, words


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with ReliableMQBroker(tmp_path / "broker", "ASYNC_FLUSH") as running:
        yield running.name_server_address


@contextmanager
def shop(url: str, broker: str, group: str = "payments") -> Iterator[ReliableMQ]:
    """An application whose handler writes one row for each message."""
    mq = ReliableMQ("shop", broker=broker, database=url)

    @mq.consumer("orders", group=group)
    def take_payment(order: dict[str, int], message: ReceivedMessage, session: Session) -> None:
        values = {"id": order["id"], "of": group, "born": message.born_time_ms}
        session.execute(text("INSERT INTO payments VALUES (:id, :of, :born)"), values)

    try:
        mq.create_tables()
        with mq.database.engine.begin() as connection:
            connection.execute(
                text("CREATE TABLE IF NOT EXISTS payments (id INTEGER, by_group TEXT, born BIGINT)")
            )
        yield mq
    finally:
        mq.close()


def place(mq: ReliableMQ, *numbers: int) -> None:
    for each in numbers:
        with mq.transaction() as tx:
            tx.send("orders", {"id": each})


def paid(mq: ReliableMQ, group: str = "payments") -> list[int]:
    with mq.database.engine.begin() as connection:
        statement = text("SELECT id FROM payments WHERE by_group = :of ORDER BY id")
        return list(connection.scalars(statement, {"of": group}))


def lag(broker: str, group: str) -> int:
    with Client(broker) as client:
        return client.admin.offsets.progress(group).value.lag


def unconfirmed(mq: ReliableMQ) -> int:
    with mq.database.engine.begin() as connection:
        table = mq.database.stubs.name
        return connection.scalar(text(f"SELECT count(*) FROM {table} WHERE status = 0")) or 0


def test_a_helper_group_handles_old_messages_once_and_stubs_do_not_wait_for_it(
    tmp_path: Path, broker: str
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with shop(url, broker) as mq, mq:
        place(mq, 1, 2)
        until(lambda: paid(mq) == [1, 2] and unconfirmed(mq) == 0)
    page, changes = "handle_again.md", {"127.0.0.1:9876": broker, "2026-11-24T00:00": "-1h"}
    follow(page, "group create", changes)
    follow(page, "group reset", changes)

    with shop(url, broker, "payments_again") as helper, helper:
        until(lambda: paid(helper, "payments_again") == [1, 2])
        until(lambda: lag(broker, "payments_again") == 0)
    with shop(url, broker) as mq, mq:
        place(mq, 3)
        until(lambda: paid(mq) == [1, 2, 3] and unconfirmed(mq) == 0)
    follow(page, "group progress", changes)
    follow(page, "group delete", changes)

    with shop(url, broker) as mq:
        assert (paid(mq), paid(mq, "payments_again")) == ([1, 2, 3], [1, 2])


def test_the_own_group_suppresses_what_it_has_consumed(tmp_path: Path, broker: str) -> None:
    """So a helper group is needed."""
    url = f"sqlite:///{tmp_path}/shop.db"
    with shop(url, broker) as mq, mq:
        place(mq, 1, 2)
        until(lambda: paid(mq) == [1, 2] and unconfirmed(mq) == 0)
    with pytest.raises(SystemExit):
        run(["group", "reset", "payments", "orders", "--to-start", "--broker", broker])

    with shop(url, broker) as mq, mq:
        until(lambda: lag(broker, "payments") == 0)
        assert paid(mq) == [1, 2]


def test_after_the_move_groups_go_on_where_they_were_and_nothing_is_paid_twice(
    tmp_path: Path, postgres_url: str, broker: str
) -> None:
    old = f"sqlite:///{tmp_path}/shop.db"
    with shop(old, broker) as mq, mq:
        place(mq, 1, 2, 3)
        until(lambda: unconfirmed(mq) == 0 and lag(broker, "payments") == 0)
        assert paid(mq) == [1, 2, 3]
    follow("move_database.md", "group progress", {"127.0.0.1:9876": broker})

    with shop(postgres_url, broker) as moved, moved:
        place(moved, 4, 5)
        until(lambda: unconfirmed(moved) == 0 and lag(broker, "payments") == 0)
        assert paid(moved) == [4, 5]


def test_a_reset_after_the_move_pays_again(tmp_path: Path, postgres_url: str, broker: str) -> None:
    """The page warns of it: the new consume log does not know what was consumed."""
    with shop(f"sqlite:///{tmp_path}/shop.db", broker) as mq, mq:
        place(mq, 1)
        until(lambda: unconfirmed(mq) == 0 and lag(broker, "payments") == 0)
    with pytest.raises(SystemExit):
        run(["group", "reset", "payments", "orders", "--to-start", "--broker", broker])

    with shop(postgres_url, broker) as moved, moved:
        until(lambda: paid(moved) == [1])
