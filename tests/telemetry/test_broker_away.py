"""A broker that is killed, and comes back, as the log of a worker and a scheduler shows it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.child_process import LoggedProcess
from tests.forked_programs import ForkedProcess, Programs
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.testing.local_servers import free_port

COMMAND = ("-m", "reliable_mq.cli.main")
SHOP = """
import os
from sqlalchemy.orm import Session
from reliable_mq import ReliableMQ
mq = ReliableMQ("shop", broker=os.environ["SHOP_BROKER"], database=os.environ["SHOP_DATABASE"])
mq.topic("orders", groups=["payments", "billing"])

@mq.consumer("orders", group="payments")
def take_payment(order: dict, session: Session) -> None: ...

@mq.consumer("orders", group="billing")
def write_bill(order: dict, session: Session) -> None: ...
"""

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs(
        *("uvloop", "reliable_mq.app.application", "reliable_mq.cli.main", "reliable_mq.cli.run"),
        *("reliable_mq.cli.broker", "reliable_mq.cli.resend", "sqlalchemy.dialects.sqlite"),
    ) as made:
        yield made


@pytest.fixture
def children() -> Iterator[list[LoggedProcess]]:
    """Give a list; what is in it in the end is killed."""
    started: list[LoggedProcess] = []
    yield started
    for child in started:
        child.kill()


def test_each_process_tells_once_that_a_broker_is_lost_and_once_that_it_is_back(
    programs: Programs,
    tmp_path: Path,
    children: list[LoggedProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, name_server_port = free_port(), free_port()
    (tmp_path / "away_shop.py").write_text(SHOP)
    monkeypatch.setenv("SHOP_BROKER", f"127.0.0.1:{name_server_port}")
    monkeypatch.setenv("SHOP_DATABASE", f"sqlite:///{tmp_path / 'shop.db'}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    def start(name: str, *words: str) -> LoggedProcess:
        child = ForkedProcess(programs, [*COMMAND, *words], tmp_path / name)
        children.append(child)
        return child

    def start_broker(name: str) -> LoggedProcess:
        ports = ("--port", str(port), "--namesrv-port", str(name_server_port))
        patient = ("--set", "osPageCacheBusyTimeOutMills=3600000")
        broker = start(name, "broker", "--store", str(tmp_path / "store"), *ports, *patient)
        broker.wait_for(r"^ready ", 60.0)
        return broker

    broker = start_broker("broker-1")
    mq = ReliableMQ(
        "shop", broker=f"127.0.0.1:{name_server_port}", database=os.environ["SHOP_DATABASE"]
    )
    mq.topic("orders", groups=["payments", "billing"])
    mq.create_tables()
    worker = start("worker", "run", "away_shop:mq")
    worker.wait_for("application_ready", 60.0)
    resend = start("resend", "resend", "away_shop:mq")
    resend.wait_for("resend_started", 60.0)

    def order(number: int) -> None:
        with mq.transaction() as tx:
            tx.send("orders", {"n": number}, key=f"o{number}")

    for number in range(10):
        order(number)
    broker.kill()
    late = start("late", "run", "away_shop:mq")
    late.wait_for("application_waits", 60.0)
    for number in range(10, 20):
        order(number)
    worker.wait_for("peer_lost", 60.0)
    resend.wait_for("topic_closed", 120.0)
    start_broker("broker-2")
    worker.wait_for("peer_back", 120.0)
    resend.wait_for("peer_back", 120.0)
    late.wait_for("application_ready", 120.0)
    until(lambda: unconfirmed(mq) == 0, seconds=180.0)
    mq.close()

    for child in (worker, resend):
        lines = child.output().splitlines()
        lost = [line for line in lines if line.endswith(("[peer_lost]", "[peer_not_reached]"))]
        assert 1 <= len(lost) <= 2  # the broker, and its name server
        assert len({line.split(" WARNING ")[1].split()[0] for line in lost}) == len(lost)
        loud = [line for line in lines if " WARNING " in line or " ERROR " in line]
        allowed = ("[peer_lost]", "[peer_not_reached]", "[topic_closed]", "[topic_open]")
        assert [line for line in loud if not line.endswith(allowed)] == []
        assert "Traceback" not in child.output()


def unconfirmed(mq: ReliableMQ) -> int:
    with mq.database.engine.connect() as connection:
        stubs = mq.database.stubs
        return len(connection.execute(stubs.select().where(stubs.c.status == 0)).all())
