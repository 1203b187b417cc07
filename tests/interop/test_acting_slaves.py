"""A slave stands in for its master, both ours or Apache's: what is due comes from another master.

When the master is back it delivers nothing again, if both are ours. Where one is Apache's, messages
may come twice: it hands progress over while it goes on to deliver, and only what it has noted.
"""

import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.raw_client import RawClient
from tests.interop.test_promotion import PATIENCE, bodies_in, knows
from tests.interop.test_replication import MASTER, SLAVE, Make, apaches, log_end, ours
from tests.interop.test_timers import kill
from tests.waiting import until
from tests.with_java import INTEROP, Broker

from reliable_mq.client.thread_client import Client
from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.properties import DELAY, TIMER_DELIVER_MS, UNIQ_KEY, encode_properties

pytestmark = INTEROP

ACTS = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "totalReplicas": "2",
    "messageDelayLevel": "1s 15s",
}
COUNT = 20
WAITS = timedelta(seconds=15)
LEVEL = 2


def send(address: str, name: str, count: int = COUNT) -> set[bytes]:
    """Send delayed and timed messages to one broker; return their bodies."""
    bodies = [b"%s %d" % (name.encode(), number) for number in range(count)]
    due_ms = int((time.time() + WAITS.total_seconds()) * 1000)
    with RawClient(address) as client:
        for number, body in enumerate(bodies):
            late = {DELAY: str(LEVEL)} if number % 2 else {TIMER_DELIVER_MS: str(due_ms)}
            key = f"{name:>16}{number:016X}".replace(" ", "0")
            text = encode_properties({UNIQ_KEY: key, **late}).decode()
            header = {"a": "p", "b": "t", "c": "TBW102", "d": 1, "e": 0, "f": 0}
            header |= {"g": int(time.time() * 1000), "h": 0, "i": text}
            assert client.ask(Ask.SEND_MESSAGE_V2, header, body).code == Code.SUCCESS
    return set(bodies)


def delivered(address: str) -> int:
    """Return how many messages of the delay level are delivered, by the broker's account."""
    with RawClient(address) as client:
        table = fastjson.loads(client.ask(Ask.GET_ALL_DELAY_OFFSET).body.decode())
    return int({str(k): v for k, v in table["offsetTable"].items()}.get(str(LEVEL), 0))


def start_again(broker: Broker) -> None:
    if isinstance(broker, ReliableMQBroker):
        broker.start()
    else:
        broker.start_broker()


@pytest.mark.parametrize("slave_is", [ours, apaches])
@pytest.mark.parametrize("master_is", [ours, apaches])
def test_what_is_due_comes_while_the_master_is_away(
    master_is: Make, slave_is: Make, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        other = ours(tmp_path / "other", {"brokerName": "other"})
        stack.enter_context(other)
        names = other.name_server_address
        with RawClient(names) as client:
            client.ask(Ask.UPDATE_NAMESRV_CONFIG, {}, b"supportActingMaster=true")
        place = {"haListenPort": str(free_port())}
        master: Broker = master_is(tmp_path / "master", {**MASTER, **ACTS, **place}, names)
        stack.enter_context(master)
        slave: Broker = slave_is(tmp_path / "slave", {**SLAVE, **ACTS}, names)
        stack.enter_context(slave)
        with Client(names) as client:
            client.create_topic("t", 2)
        until(lambda: knows(slave.address, '"t"', Ask.GET_ALL_TOPIC_CONFIG), seconds=PATIENCE)
        sent = send(master.address, "early")
        until(lambda: bodies_in(master.address) == sent, seconds=PATIENCE)
        until(lambda: delivered(slave.address) == COUNT // 2, seconds=PATIENCE)
        late = send(master.address, "late")
        until(lambda: log_end(slave.address) == log_end(master.address))
        kill(master)
        until(
            lambda: bodies_in(other.address) >= late,
            lambda: f"missing: {sorted(late - bodies_in(other.address))}",
            seconds=PATIENCE,
        )
        start_again(master)
        last = send(master.address, "last", 2)
        until(lambda: bodies_in(master.address) >= last, seconds=PATIENCE)
        until(lambda: delivered(master.address) == COUNT + 1, seconds=PATIENCE)
        again = (bodies_in(other.address) - late) | (bodies_in(master.address) - sent - last)
        print(f"{master_is.__name__}/{slave_is.__name__}: {len(again)} came again: {sorted(again)}")
        if (master_is, slave_is) == (ours, ours):
            assert not again
