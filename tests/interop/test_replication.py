"""Masters and slaves, of ours and of Apache's in any mixture: one log, byte for byte."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import msgspec
import pytest
from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.waiting import NEVER_BUSY, eventually, run_scene, until
from tests.with_java import INTEROP, Broker

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import Message, SendStatus
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

pytestmark = INTEROP

SMALL = {
    "mappedFileSizeCommitLog": str(1024 * 1024),
    "maxMessageSize": "131072",
    "brokerName": "pair",
}
MASTER = {**SMALL, "brokerRole": "ASYNC_MASTER"}
SYNC = {**SMALL, **NEVER_BUSY, "brokerRole": "SYNC_MASTER", "slaveTimeout": "60000"}
SLAVE = {**SMALL, "brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
COUNT = 600
TOGETHER, ROUNDS = 32, 40
Make = Callable[[Path, dict[str, str], str], Broker]


def ours(folder: Path, settings: dict[str, str], name_servers: str = "") -> ReliableMQBroker:
    return ReliableMQBroker(folder, "ASYNC_FLUSH", settings=settings, name_servers=name_servers)


def apaches(folder: Path, settings: dict[str, str], name_servers: str = "") -> Broker:
    settings = {"brokerIP2": "127.0.0.1", **settings}
    return ApacheRocketMQ(folder, "ASYNC_FLUSH", settings, name_servers, SMALL_BROKER_FLAGS)


def log_end(address: str) -> int:
    """Return where a broker's log ends, by its own account.

    Apache's broker has no figures in its first second, and refuses (`StoreStatsService.getPutTps`).
    """
    answer = Command(RequestCode.GET_BROKER_RUNTIME_INFO)

    def has_figures() -> bool:
        nonlocal answer
        with BlockingLink(address, 10) as link:
            answer = link.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        return "NoSuchElementException" not in (answer.remark or "")

    until(has_figures)
    assert answer.code == ResponseCode.SUCCESS, f"{address}: {answer.code}, {answer.remark}"
    table = msgspec.json.decode(answer.body, type=dict[str, dict[str, str]])["table"]
    return int(table["commitLogMaxOffset"])


def log_bytes(folder: Path, end: int) -> tuple[int, bytes]:
    """Return where a log begins, and its bytes up to its end, from its files."""
    files = sorted((folder / "store" / "commitlog").iterdir())
    first = int(files[0].name)
    return first, b"".join(file.read_bytes() for file in files)[: end - first]


@pytest.mark.parametrize("slave_is", [ours, apaches])
@pytest.mark.parametrize("master_is", [ours, apaches])
def test_the_logs_of_a_pair_are_the_same(master_is: Make, slave_is: Make, tmp_path: Path) -> None:
    random = Random(1)
    master = master_is(tmp_path / "master", MASTER, "")
    with ExitStack() as stack:
        stack.enter_context(master)
        names = master.name_server_address
        slave: Broker = slave_is(tmp_path / "slave", SLAVE, names)
        with Client(names) as client:
            client.create_topic("t", 4)
            stack.enter_context(slave)
            for number in range(COUNT):
                body = random.randbytes(random.choice((10, 1_000, 100_000)) if number % 9 else 5)
                client.send(Message(topic="t", body=body, tag=f"tag{number % 3}"))
            until(lambda: log_end(slave.address) == log_end(master.address))
            end = log_end(master.address)
        assert end > 3 * 1024 * 1024
    first, copied = log_bytes(tmp_path / "slave", end)
    begin, log = log_bytes(tmp_path / "master", end)
    assert copied == log[first - begin :]
    assert first == begin or (master_is, slave_is) == (apaches, apaches), "the whole log is copied"


@pytest.mark.parametrize(("master_is", "slave_is"), [(ours, apaches), (apaches, ours)])
def test_a_synchronous_pair_has_one_log_when_many_send_at_once(
    master_is: Make, slave_is: Make, tmp_path: Path
) -> None:
    """Our master gathers what comes while a batch is on its way; our slave reads alike records."""

    async def send_much(names: str) -> None:
        async with AsyncClient(names) as client:

            async def has_slave() -> bool:
                sent = await client.send(Message(topic="t", body=b"first"))
                return sent.status is SendStatus.SEND_OK

            await eventually(has_slave)
            for number in range(ROUNDS):
                body = b"%04d" % number * (5 if number % 4 else 500)
                sends = [client.send(Message(topic="t", body=body)) for _ in range(TOGETHER)]
                results = await asyncio.gather(*sends)
                assert {each.status for each in results} == {SendStatus.SEND_OK}

    with master_is(tmp_path / "master", SYNC, "") as master:
        names = master.name_server_address
        with Client(names) as client:
            client.create_topic("t", 4)
        with slave_is(tmp_path / "slave", SLAVE, names) as slave:
            run_scene(send_much(names))
            end = log_end(master.address)
            until(lambda: log_end(slave.address) == end)
    assert log_bytes(tmp_path / "slave", end) == log_bytes(tmp_path / "master", end)


def said(broker: ReliableMQBroker) -> str:
    return "".join(file.read_text() for file in sorted(broker.directory.glob("broker-*.log")))


def test_a_slave_of_ours_finds_that_its_log_differs_from_the_one_of_apaches_master(
    tmp_path: Path,
) -> None:
    """It was a master of its own for one message. It is not at Apache's name server then."""
    with apaches(tmp_path / "master", MASTER, "") as master:
        names = master.name_server_address
        with Client(names) as client:
            client.create_topic("t", 1)
            client.send(Message(topic="t", body=b"both"))
            with ours(tmp_path / "slave", SLAVE, names) as slave:
                until(lambda: log_end(slave.address) == log_end(master.address))
            end = log_end(master.address)
            with (
                ours(tmp_path / "slave", MASTER) as alone,
                Client(alone.name_server_address) as own,
            ):
                own.send(Message(topic="t", body=b"alone"))
            for number in range(5):
                client.send(Message(topic="t", body=b"%d" % number * 5_000))
            again = ReliableMQBroker(tmp_path / "slave", settings=SLAVE, name_servers=names)
            again.starts = 5
            with again:
                until(lambda: f"differ from log offset {end} on" in said(again))
                assert log_end(again.address) < log_end(master.address)


def test_at_apaches_name_server_a_former_master_ends_too(tmp_path: Path) -> None:
    with apaches(tmp_path / "names", {**MASTER, "brokerName": "other"}, "") as other:
        names = other.name_server_address
        with ours(tmp_path / "one", MASTER, names) as one:
            address = one.address
            with ours(tmp_path / "two", SLAVE, names) as two:
                until(lambda: "this slave follows master" in said(two))
            promoted = ReliableMQBroker(tmp_path / "two", settings=MASTER, name_servers=names)
            promoted.starts = 5
            with promoted:
                until(
                    lambda: f"the master of pair is {promoted.address}: its epoch is 1" in said(one)
                )
                until(lambda: not answers(address))


def answers(address: str) -> bool:
    try:
        log_end(address)
    except (OSError, ReliableMQError):
        return False
    return True
