"""An application whose producers run no relay: its workers send what they commit."""

import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import select

from reliable_mq import ReliableMQ
from reliable_mq.errors import ConfigurationError

WAIT = 30.0


def test_a_worker_sends_what_a_process_that_reaches_no_broker_has_committed(
    database_url: str, tmp_path: Path
) -> None:
    # Given a worker, and a producer whose broker does not exist
    handled: list[int] = []
    is_handled = threading.Event()
    worker = ReliableMQ(
        "shop", broker=f"embedded:{tmp_path / 'broker'}", database=database_url, relay="shared"
    )
    producer = ReliableMQ("shop", broker="127.0.0.1:9", database=database_url, relay="shared")
    producer.topic("orders", groups=["payments"])

    @worker.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None:
        handled.append(order["id"])
        if len(handled) == 3:
            is_handled.set()

    worker.create_tables()
    with worker:
        # When both commit messages
        with producer.transaction() as tx:
            tx.send_many("orders", [{"id": 1}, {"id": 2}], ordering_key="c1")
        with worker.transaction() as tx:
            tx.send("orders", {"id": 3}, ordering_key="c1")

        # Then the worker sends and handles all, and the producer has connected to nothing
        assert is_handled.wait(WAIT)
        assert producer._connections._client is None
        assert producer._connections._relays == {}
    producer.close()

    assert handled == [1, 2, 3]


def test_a_process_that_only_commits_says_that_it_is_alive(database_url: str) -> None:
    """The doctor compares its clock with the others'."""
    producer = ReliableMQ("shop", broker="127.0.0.1:9", database=database_url, relay="shared")
    producer.topic("orders", groups=["payments"])
    producer.create_tables()
    is_told = threading.Event()
    tell = producer.database.clock.on_measured
    assert tell is not None

    def told(ahead: float, now: float) -> None:
        tell(ahead, now)
        is_told.set()

    producer.database.clock.on_measured = told
    with producer.transaction() as tx:
        tx.send("orders", {"id": 1})
        tx.session.execute(select(1))  # the file's only lock is held until the commit
    assert is_told.wait(WAIT)

    with producer.database.engine.begin() as connection:
        (row,) = connection.execute(select(producer.database.processes)).all()
    assert (row.application, row.pid) == ("shop", os.getpid())
    producer.close()


def test_a_relay_that_is_neither_own_nor_shared_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with pytest.raises(ConfigurationError, match="relay: it must be 'own' or 'shared'"):
        ReliableMQ("shop", database=url, relay="theirs")  # type: ignore[arg-type]
