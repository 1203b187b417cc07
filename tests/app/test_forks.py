"""A process that is forked from one that uses the application, as Gunicorn and Celery do it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from tests.client.cluster import bundled
from tests.forked_child import in_child
from tests.waiting import run_process, until

from reliable_mq import ReliableMQ


@pytest.fixture
def shop(database_url: str) -> Iterator[ReliableMQ]:
    with bundled() as broker:
        mq = ReliableMQ("shop", broker=broker.name_server_address, database=database_url)
        mq.topic("orders")

        @mq.consumer("orders", group="payments")
        def pay(order: dict[str, int], session: Session) -> None:
            session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": order["id"]})

        mq.create_tables()
        with mq.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (id INTEGER)"))
        yield mq
        mq.close()


def send(mq: ReliableMQ, number: int) -> None:
    """Send an order; only the relay of this process can bring it to the broker in time."""
    with mq.transaction() as tx:
        message_id = tx.send("orders", {"id": number})
    stubs = mq.database.stubs.c
    question = select(stubs.broker_name).where(stubs.message_id == message_id)

    def has_gone() -> bool:
        with mq.database.engine.connect() as connection:
            return connection.execute(question).scalar() is not None

    until(has_gone)


def effects(mq: ReliableMQ) -> list[int]:
    with mq.database.engine.connect() as connection:
        return sorted(connection.execute(text("SELECT id FROM effects")).scalars())


def consume(mq: ReliableMQ, *numbers: int) -> None:
    with mq:
        until(lambda: effects(mq) == sorted(numbers))


def owners(mq: ReliableMQ) -> dict[str, str]:
    """Return who handled each message, without the number of the delivery."""
    logs = mq.database.logs.c
    with mq.database.engine.connect() as connection:
        rows = connection.execute(select(logs.message_id, logs.owner)).all()
    return {row.message_id: str(row.owner).rpartition("-")[0] for row in rows}


def test_a_forked_child_sends_and_consumes_by_itself_and_its_parent_goes_on(
    shop: ReliableMQ,
) -> None:
    # Given a parent whose relay, client and connections are in use
    send(shop, 1)
    consume(shop, 1)
    send(shop, 2)
    parent = shop._connections.owner

    def work() -> None:
        assert shop._connections.owner != parent
        send(shop, 3)
        consume(shop, 1, 2, 3)

    # When a child is forked, which sends, consumes, and closes what it has
    in_child(work)

    # Then the parent's connections are what they were
    assert shop._connections.owner == parent
    send(shop, 4)
    consume(shop, 1, 2, 3, 4)
    assert len(set(owners(shop).values())) == 3  # a worker before, one in the child, one after


def test_a_child_that_only_ends_leaves_the_parents_connections_open(shop: ReliableMQ) -> None:
    shop.start()
    send(shop, 1)
    until(lambda: effects(shop) == [1])

    in_child(shop.close)

    send(shop, 2)
    until(lambda: effects(shop) == [1, 2])


def test_no_two_resend_schedulers_have_one_name(shop: ReliableMQ) -> None:
    names = [shop.scheduler()._owner for _ in range(3)]

    assert len(set(names)) == 3
    assert max(map(len, names)) <= 64  # the column's length


FORKS_WITH_A_BROKER_INSIDE = """
import os, sys
from reliable_mq import ReliableMQ
from reliable_mq.errors import StoreInUse

folder = sys.argv[1]
mq = ReliableMQ("shop", broker=f"embedded:{folder}/broker", database=f"sqlite:///{folder}/shop.db")
mq.topic("orders", groups=[])
mq.create_tables()
mq._connections.client  # the broker runs
child = os.fork()
if child == 0:
    sys.exit(0)  # not os._exit: the interpreter takes everything apart
status = os.waitpid(child, 0)[1]
child = os.fork()
if child == 0:
    try:
        mq._connections.client
    except StoreInUse as error:
        sys.exit(f"process {os.getppid()}, of which this process" not in str(error))
    sys.exit(2)
status = status or os.waitpid(child, 0)[1]
mq._connections.client.transactions
mq.close()
sys.exit(status)
"""


def test_a_fork_of_a_process_with_a_broker_inside_ends_well_and_is_told_that_it_has_none(
    tmp_path: Path,
) -> None:
    """A thread of libuv's, had the broker looked its host up in one, would end the child."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS_WITH_A_BROKER_INSIDE, str(tmp_path)]

    ended = run_process(command, capture_output=True, timeout=60)

    assert ended.returncode == 0, ended.stderr
