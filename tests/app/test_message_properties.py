"""What an application gives a message, its consumer reads, however the message was sent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.waiting import until

from reliable_mq import Client, Message, ReceivedMessage, ReliableMQ

# Options of `tx.send` and `mq.producer.send`, which are fields of both kinds of message, too.
OPTIONS: dict[str, Any] = {
    "tag": "paid",
    "ordering_key": "c-7",
}


def by_outbox(mq: ReliableMQ, _name_server: str) -> None:
    with mq.transaction() as tx:
        tx.send("orders", b"1", correlation_id="r-17", **OPTIONS)


def by_producer(mq: ReliableMQ, _name_server: str) -> None:
    mq.producer.send("orders", b"1", correlation_id="r-17", **OPTIONS)


def by_client(_mq: ReliableMQ, name_server: str) -> None:
    with Client(name_server) as client:
        client.send(Message("orders", b"1", properties={"CORRELATION_ID": "r-17"}, **OPTIONS))


@pytest.mark.processes
@pytest.mark.parametrize("send", [by_outbox, by_producer, by_client])
def test_a_consumer_reads_what_the_sender_wrote(
    send: Callable[[ReliableMQ, str], None], tmp_path: Path
) -> None:
    """Given a message that has everything, when it is sent, then its consumer reads all of it."""
    seen: list[ReceivedMessage] = []
    with ReliableMQBroker(tmp_path / "broker") as broker:
        mq = ReliableMQ(
            "shop",
            broker=broker.name_server_address,
            database=f"sqlite:///{tmp_path / 'shop.db'}",
            send_outside_transaction="allow",
        )
        mq.create_tables()

        @mq.consumer("orders", group="payments")
        def pay(order: bytes, message: ReceivedMessage) -> None:
            seen.append(message)

        with mq:
            send(mq, broker.name_server_address)
            until(lambda: seen)

    assert {name: getattr(seen[0], name) for name in OPTIONS} == OPTIONS
    assert seen[0].correlation_id == "r-17"
