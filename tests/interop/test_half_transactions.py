"""`mq.transaction(half=True)` and listeners at both brokers, while producers are killed.

One application, one database; processes of it die by SIGKILL between the half and its end. The
process of this test is another one of the application; it runs no resend scheduler, so that what
the dead have left is settled by check-backs alone.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from tests.broker_core.raw_client import RawClient
from tests.interop.half_producer import GROUP, TOPIC
from tests.waiting import run_process, until
from tests.with_java import INTEROP, Broker, started

from reliable_mq import Decision, Message, ReceivedMessage, ReliableMQ
from reliable_mq.broker_core.names import GIVEN_UP_TOPIC
from reliable_mq.wire.codes import RequestCode

WAIT_SECONDS_MAX = 90.0
HASTY = {"transactionCheckInterval": "1000", "transactionTimeOut": "3000"}
HASTY["transactionCheckMax"] = "3"
HASTY_THERE = {**HASTY, "transactionOpBatchInterval": "200"}
ENDINGS = {
    "kept": "none",
    "kept-after-commit": "after the commit",
    "kept-after-end": "after the end",
    "gone-before-commit": "before the commit",
    "gone-rolled-back": "rolled back",
}

pytestmark = INTEROP


def apache(directory: Path) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, "SYNC_FLUSH", settings=HASTY_THERE)


def ours(directory: Path) -> ReliableMQBroker:
    return ReliableMQBroker(directory, settings=HASTY)


@pytest.fixture(scope="module", params=[ours, apache], ids=["ours", "apache"])
def broker(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with started(request.param(tmp_path_factory.mktemp("halves"))) as broker:
        yield broker


@pytest.fixture
def shop(broker: Broker, postgres_url: str) -> Iterator[ReliableMQ]:
    mq = ReliableMQ("shop", broker=broker.name_server_address, database=postgres_url)
    mq.create_tables()
    with mq.database.engine.begin() as connection:
        for table in ("placed", "shipped"):
            connection.execute(text(f"CREATE TABLE {table} (id TEXT)"))
    yield mq
    mq.close()


def column(mq: ReliableMQ, table: str) -> list[str]:
    with mq.database.engine.begin() as connection:
        return sorted(connection.execute(text(f"SELECT id FROM {table}")).scalars())


def stubs(mq: ReliableMQ) -> dict[str, tuple[int, bool]]:
    """Return status, and whether it is a tombstone, by message id."""
    table = mq.database.stubs
    with mq.database.engine.begin() as connection:
        return {
            row.message_id: (row.status, not bytes(row.content))
            for row in connection.execute(select(table))
        }


def end_of(broker: Broker, topic: str) -> int:
    with RawClient(broker.address) as client:
        answer = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": 0})
        return int(answer.ext_fields.get("offset", 0)) if answer.code == 0 else 0


def ship(mq: ReliableMQ) -> None:
    """Register the consumer: an effect for each order."""

    @mq.consumer(TOPIC, group=GROUP)
    def pack(order: str, session: Session) -> None:
        session.execute(text("INSERT INTO shipped VALUES (:id)"), {"id": order})


def test_what_dead_producers_left_is_settled_by_another_process(
    broker: Broker, shop: ReliableMQ
) -> None:
    ship(shop)
    kept = sorted(order for order in ENDINGS if order.startswith("kept"))
    with shop:
        dead = {}
        for order, ending in ENDINGS.items():
            words = [sys.executable, "-m", "tests.interop.half_producer"]
            words += [broker.name_server_address, str(shop.settings.database), order, ending]
            dead[order] = run_process(words, timeout=WAIT_SECONDS_MAX).returncode
        until(lambda: column(shop, "shipped") == kept)
        until(lambda: (2, True) in stubs(shop).values())  # it died before its commit
        until(lambda: list(stubs(shop).values()).count((1, False)) == len(kept))

    killed = {order for order, code in dead.items() if code == -signal.SIGKILL}
    assert killed == {"kept-after-commit", "kept-after-end", "gone-before-commit"}
    assert (dead["kept"], dead["gone-rolled-back"]) == (0, 0)
    assert column(shop, "placed") == kept
    assert column(shop, "shipped") == kept  # each once


def test_a_transaction_may_outlast_every_check_back(broker: Broker, shop: ReliableMQ) -> None:
    ship(shop)
    given_up = end_of(broker, GIVEN_UP_TOPIC)
    with shop:
        with shop.transaction(half=True) as tx:
            tx.session.execute(text("INSERT INTO placed VALUES ('slow')"))
            tx.send(TOPIC, "slow")
            until(lambda: end_of(broker, GIVEN_UP_TOPIC) > given_up)
        shop.scheduler().run_once(shop.database.clock.now() + 3600)  # as `reliable-mq resend`
        until(lambda: column(shop, "shipped") == ["slow"])
        until(lambda: [status for status, _ in stubs(shop).values()] == [1])


class Ledger:
    """A listener whose local transaction is no database of ours."""

    def __init__(self) -> None:
        self.decided: dict[str, Decision] = {}
        self.checked: list[str] = []

    def execute(self, message: Message, argument: Decision) -> Decision:
        text = message.body.decode()
        self.decided[text] = Decision.ROLLBACK if "gone" in text else Decision.COMMIT
        if "raises" in text:
            raise LookupError(text)
        return argument

    async def check(self, message: ReceivedMessage) -> Decision:
        text = message.body.decode()
        self.checked.append(text)
        return Decision.UNKNOWN if self.checked.count(text) < 2 else self.decided[text]


def test_listeners_decide_at_once_or_when_they_are_asked(broker: Broker, shop: ReliableMQ) -> None:
    ledger = Ledger()
    other = Ledger()
    shop.transaction_listener("transfers")(ledger)
    shop.transaction_listener("refunds")(other)
    received: list[str] = []
    lock = threading.Lock()

    for topic in ("transfers", "refunds"):

        @shop.consumer(topic, group=f"readers-of-{topic}", ordered=False)
        def read(body: str) -> None:
            with lock:
                received.append(body)

    send = shop.producer.send_in_transaction
    with shop:
        assert send("transfers", "now", Decision.COMMIT).decision is Decision.COMMIT
        send("transfers", "now-gone", Decision.ROLLBACK)
        send("transfers", "later", Decision.UNKNOWN)
        send("transfers", "later-gone", Decision.UNKNOWN)
        send("refunds", "other", Decision.UNKNOWN)
        with pytest.raises(LookupError):
            send("refunds", "raises", Decision.UNKNOWN)
        until(lambda: len(received) >= 4 and ledger.checked.count("later-gone") >= 2)

    assert sorted(received) == ["later", "now", "other", "raises"]
    assert set(ledger.checked) == {"later", "later-gone"}
    assert set(other.checked) == {"other", "raises"}
