"""Under Apache's controller: it elects the master of our brokers, of Apache's, and of mixtures."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec
import pytest
from bench.apache_controller import ApacheController
from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.admin_shell import AdminShell
from tests.interop.test_promotion import bodies_in
from tests.waiting import until
from tests.with_java import INTEROP, Broker, skipped_without_java

from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ReliableMQError
from reliable_mq.failover import controller_messages as messages
from reliable_mq.message import Message, SendStatus
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

pytestmark = INTEROP

NAME = "pair"
SETTINGS = {
    "mappedFileSizeCommitLog": str(1024 * 1024),
    "maxMessageSize": "131072",
    "brokerName": NAME,
    "slaveReadEnable": "true",
    "registerNameServerPeriod": "10000",
}
Make = Callable[[Path, ApacheController], Broker]
B = TypeVar("B", bound=Broker)


def ours(folder: Path, controller: ApacheController, **settings: str) -> ReliableMQBroker:
    settings = {**SETTINGS, **controller.properties, **settings}
    names = controller.name_server_address
    return ReliableMQBroker(folder, settings=settings, name_servers=names)


def apaches(folder: Path, controller: ApacheController) -> Broker:
    # Apache's master acknowledges without its slaves, unless it is told otherwise.
    safe = {"inSyncReplicas": "2", "allAckInSyncStateSet": "true", "brokerIP2": "127.0.0.1"}
    settings = {**SETTINGS, **controller.properties, **safe}
    names = controller.name_server_address
    return ApacheRocketMQ(folder, "SYNC_FLUSH", settings, names, SMALL_BROKER_FLAGS)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ApacheController]:
    with skipped_without_java(), ApacheController(tmp_path / "names") as started:
        yield started


def asked(address: str, command: Command) -> Command:
    with BlockingLink(address, 10) as link:
        return link.call(command)


def leadership(controller: ApacheController) -> messages.Leadership:
    """Return who the master is; nobody while the controller does not lead yet."""
    try:
        return messages.leadership_of(asked(controller.address, messages.ask_leadership(NAME)))
    except (ReliableMQError, OSError, ValueError):
        return messages.Leadership(0, "", 0)


def in_sync(controller: ApacheController, *replicas: int) -> None:
    """Wait until the controller knows exactly these replicas as in sync."""
    until(lambda: leadership(controller).in_sync == set(replicas), lambda: leadership(controller))


def log_end(address: str) -> int:
    """Return where a broker's log ends; -1: it does not answer."""
    try:
        body = asked(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO)).body
    except (OSError, ReliableMQError):
        return -1
    table = msgspec.json.decode(body, type=dict[str, dict[str, str]])["table"]
    return int(table["commitLogMaxOffset"])


def log_bytes(broker: Broker, end: int) -> bytes:
    folder = broker.directory / "store" / "commitlog"
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))[:end]


def epochs(address: str) -> list[tuple[int, int]]:
    """Return epoch and start of each epoch of a broker's log."""
    body = asked(address, Command(RequestCode.GET_BROKER_EPOCH_CACHE)).body
    return [(each["epoch"], each["startOffset"]) for each in msgspec.json.decode(body)["epochList"]]


def send(client: Client, body: bytes) -> bool:
    """Send a message; return whether all replicas in sync have it."""
    try:
        status: object = client.send(Message(topic="t", body=body)).status
    except ReliableMQError as error:
        status = error
    if status != SendStatus.SEND_OK:
        print(f"{body!r}: {status}")  # for the report of a test that fails
    return status == SendStatus.SEND_OK


def end(broker: Broker) -> None:
    """SIGKILL of the broker alone."""
    (broker.process if isinstance(broker, ReliableMQBroker) else broker.broker).kill()


def begin(broker: Broker) -> None:
    """Start a broker again, on its store."""
    if isinstance(broker, ReliableMQBroker):
        broker.start()
    else:
        broker.start_broker()


def said(broker: ReliableMQBroker) -> str:
    return "".join(file.read_text() for file in sorted(broker.directory.glob("broker-*.log")))


def send_some(client: Client, kind: str, count: int = 30) -> set[bytes]:
    """Send messages; return those that all replicas in sync have."""
    bodies = [f"{kind} {number}".encode() for number in range(count)]
    return {body for body in bodies if send(client, body)}


def send_all(client: Client, kind: str, count: int = 30) -> set[bytes]:
    """Send messages, each until all replicas in sync have it: a busy disk is late at times."""
    bodies = [f"{kind} {number}".encode() for number in range(count)]
    for body in bodies:
        until(partial(send, client, body))
    return set(bodies)


def is_stored(client: Client) -> bool:
    """Whether the master stores a message, also if its slaves lack it."""
    try:
        client.send(Message(topic="t", body=b"alone"))
    except ReliableMQError:
        return False
    return True


def has_topic(broker: Broker) -> bool:
    """Whether a slave has the topic: else it makes one of more queues when it is elected."""
    answer = asked(broker.address, Command(RequestCode.GET_TOPIC_CONFIG, ext_fields={"topic": "t"}))
    return answer.code == ResponseCode.SUCCESS


def elect(shell: AdminShell, controller: ApacheController, number: int) -> None:
    """Have a broker elected by mqadmin; wait until it is the master."""
    words = ("-a", controller.address, "-b", number, "-bn", NAME, "-c", "DefaultCluster")
    shell.run("electMaster", *words)
    until(lambda: leadership(controller).master_id == number, seconds=120)


class Pair(NamedTuple, Generic[B]):
    """Two brokers in sync, and a client. Both have the topic "t". The first one is the master."""

    one: B
    two: B
    client: Client


@contextmanager
def in_step(controller: ApacheController, one: B, two: B, queues: int = 1) -> Iterator[Pair[B]]:
    """Run two brokers until both are in sync and have a topic; kill them at the end."""
    with ExitStack() as stack:
        for broker in (one, two):
            broker.start()
            stack.callback(broker.kill)
        in_sync(controller, 1, 2)
        client = stack.enter_context(Client(controller.name_server_address))
        client.create_topic("t", queues)
        until(lambda: has_topic(two), seconds=120)
        yield Pair(one, two, client)


@contextmanager
def our_pair(
    controller: ApacheController, folder: Path, queues: int = 1, **settings: str
) -> Iterator[Pair[ReliableMQBroker]]:
    """Run two brokers of ours; see `in_step`."""
    one, two = (ours(folder / name, controller, **settings) for name in ("one", "two"))
    with in_step(controller, one, two, queues) as pair:
        yield pair


@pytest.mark.parametrize("second_is", [ours, apaches])
@pytest.mark.parametrize("first_is", [ours, apaches])
def test_the_slave_is_elected_and_the_former_master_follows_it(
    first_is: Make, second_is: Make, controller: ApacheController, tmp_path: Path
) -> None:
    first, second = first_is(tmp_path / "one", controller), second_is(tmp_path / "two", controller)
    with in_step(controller, first, second, 2) as pair:
        client = pair.client
        acknowledged = send_all(client, "first")
        end(first)
        until(lambda: leadership(controller).master_id == 2)
        until(lambda: is_stored(client), seconds=120)
        begin(first)
        in_sync(controller, 1, 2)
        acknowledged |= send_all(client, "second")
        assert acknowledged <= bodies_in(second.address)
        until(lambda: log_end(first.address) == log_end(second.address))
        whole = log_end(second.address)
        assert log_bytes(first, whole) == log_bytes(second, whole)
        assert [each for each, _start in epochs(second.address)] == [1, 2]
        until(lambda: epochs(first.address) == epochs(second.address))


def test_mqadmin_shows_and_changes_who_is_the_master(
    controller: ApacheController, shell: AdminShell, tmp_path: Path
) -> None:
    with our_pair(controller, tmp_path) as (one, two, client):
        assert send(client, b"x")
        names = controller.name_server_address
        leader = shell.run("getControllerMetaData", "-a", controller.address)
        assert f"#ControllerLeaderAddress\t{controller.address}" in leader
        replicas = shell.run("getSyncStateSet", "-a", controller.address, "-b", NAME)
        assert f"#MasterAddr\t{one.address}" in replicas
        assert "#SyncStateSetNums\t2" in replicas
        assert f"brokerAddress='{two.address}', alive=true" in replicas
        until(lambda: "#brokerAddr" in shell.run("getBrokerEpoch", "-n", names, "-b", NAME))
        shown = shell.run("getBrokerEpoch", "-n", names, "-b", NAME)
        end_ = log_end(one.address)
        assert shown.count(f"EpochEntry{{epoch=1, startOffset=0, endOffset={end_}}}") == 2, shown
        assert "#InSyncSlaveNum\t1" in shell.run("haStatus", "-b", one.address)
        elect(shell, controller, 2)
        in_sync(controller, 1, 2)
        until(lambda: send(client, b"y"))
        assert bodies_in(two.address) == {b"x", b"y"}
        for broker in (one, two):
            assert broker.starts == 1, "the process is the same"
            until(lambda: epochs(one.address) == epochs(two.address))


def test_a_surplus_that_was_not_acknowledged_is_cut_and_kept(
    controller: ApacheController, tmp_path: Path
) -> None:
    with our_pair(controller, tmp_path, slaveTimeout="500") as (one, two, client):
        assert send(client, b"both")
        common = log_end(one.address)
        os.kill(two.pids[0], signal.SIGSTOP)
        try:
            sent = client.send(Message(topic="t", body=b"surplus"))
            assert sent.status == SendStatus.FLUSH_SLAVE_TIMEOUT
        finally:
            end(one)
            os.kill(two.pids[0], signal.SIGCONT)
        until(lambda: leadership(controller).master_id == 2, seconds=120)
        until(lambda: is_stored(client))
        begin(one)
        in_sync(controller, 1, 2)
        until(lambda: log_end(one.address) == log_end(two.address))
        assert bodies_in(one.address) == bodies_in(two.address)
        if b"surplus" not in bodies_in(two.address):  # it may have been on its way already
            (kept,) = (one.store / "surplus").iterdir()
            assert b"surplus" in kept.read_bytes()
            assert int(kept.name[:20]) == common


def test_a_master_that_was_stopped_for_long_acknowledges_nothing_and_follows(
    controller: ApacheController, tmp_path: Path
) -> None:
    timeout = "3000"
    with our_pair(controller, tmp_path, controllerHeartBeatTimeoutMills=timeout) as pair:
        one, two, client = pair
        assert send(client, b"both")
        os.kill(one.pids[0], signal.SIGSTOP)
        try:
            until(lambda: leadership(controller).master_id == 2, seconds=120)
            until(lambda: log_end(two.address) >= 0)
        finally:
            os.kill(one.pids[0], signal.SIGCONT)
        in_sync(controller, 1, 2)
        until(lambda: send(client, b"again"))
        assert {b"both", b"again"} <= bodies_in(two.address)
        until(lambda: log_end(one.address) == log_end(two.address))
        assert "this store has role SLAVE" in said(one)


def test_everything_acknowledged_survives_ten_deaths_of_the_master(
    controller: ApacheController, tmp_path: Path
) -> None:
    acknowledged: set[bytes] = set()
    with our_pair(controller, tmp_path, 2) as (one, two, client):
        brokers = (one, two)
        for death in range(10):
            master = brokers[leadership(controller).master_id - 1]
            acknowledged |= send_some(client, f"death {death}", 40)
            end(master)
            acknowledged |= send_some(client, f"meanwhile {death}", 3)
            begin(master)
            in_sync(controller, 1, 2)
            until(lambda: send(client, b"ready"))
        assert len(acknowledged) > 350
        until(lambda: log_end(one.address) == log_end(two.address))
        for broker in brokers:
            assert acknowledged <= bodies_in(broker.address)
        whole = log_end(one.address)
        assert log_bytes(one, whole) == log_bytes(two, whole)


def test_without_a_controller_nobody_is_elected_until_it_is_back(
    controller: ApacheController, tmp_path: Path
) -> None:
    with our_pair(controller, tmp_path) as (one, two, client):
        assert send(client, b"before")
        controller.kill()
        until(lambda: "no controller at" in said(two), seconds=120)
        end(one)
        assert not send(client, b"nobody takes it")
        assert log_end(two.address) >= 0, "it goes on as a slave"
        controller.start()
        until(lambda: leadership(controller).master_id == 2, seconds=120)
        begin(one)
        in_sync(controller, 1, 2)
        until(lambda: send(client, b"after"))
        until(lambda: bodies_in(two.address) >= {b"before", b"after"})


def test_a_controller_from_an_old_copy_is_not_believed_until_its_epoch_is_higher(
    controller: ApacheController, shell: AdminShell, tmp_path: Path
) -> None:
    """The way out is the one of the how-to page: elections, also of who is not in sync."""
    data, copy = controller.directory / "controller", tmp_path / "copy"
    with our_pair(controller, tmp_path) as (one, two, client):
        controller.kill()
        shutil.copytree(data, copy)
        controller.start()
        until(lambda: leadership(controller).master_id == 1, seconds=120)
        elect(shell, controller, 2)
        in_sync(controller, 1, 2)
        until(lambda: send(client, b"after the copy"))

        controller.kill()
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        controller.settings["enableElectUncleanMaster"] = "true"
        controller.start()
        words = "the data of the controller are an old copy"
        until(lambda: all(words in said(broker) for broker in (one, two)), seconds=120)
        assert send(client, b"meanwhile")
        for number in (2, 1, 2):
            elect(shell, controller, number)
        in_sync(controller, 1, 2)
        until(lambda: send(client, b"at last"))
        assert {b"after the copy", b"meanwhile", b"at last"} <= bodies_in(two.address)
        until(lambda: log_end(one.address) == log_end(two.address))
