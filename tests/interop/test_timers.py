"""Timed messages: Apache's Java client at both brokers, and each broker on the other's files."""

import time
from pathlib import Path

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.raw_client import RawClient
from tests.interop.java_shell import run_source
from tests.waiting import until
from tests.with_java import INTEROP, Broker, skipped_without_java

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.record import Record

TOPIC = "timers"
SETTINGS = {"recallMessageEnable": "true", "brokerName": "both"}
PENDING = {"later stays", "later comes", "later last"}  # "later gone" was taken back
SECONDS_MAX = 180.0

pytestmark = INTEROP


class Run:
    """What the Java program saw at one broker, and what the other one made of the files."""

    def __init__(self, told: dict[str, str], records: list[Record]) -> None:
        self.told = told
        self.records = records


def apache(directory: Path) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, "ASYNC_FLUSH", SETTINGS)


def ours(directory: Path) -> ReliableMQBroker:
    return ReliableMQBroker(directory, settings=SETTINGS)


def use(broker: Broker, directory: Path) -> dict[str, str]:
    """Run the Java program at a broker."""
    with RawClient(broker.address) as client:
        topic = {"topic": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        ext = {**topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
        assert client.ask(Ask.UPDATE_AND_CREATE_TOPIC, ext).code == 0
    lines = run_source("Timers", directory, broker.name_server_address, TOPIC)
    return dict(line.split("=", 1) for line in lines if "=" in line)


def wait_for_messages(broker: Broker, count: int) -> None:
    """Return when the topic holds so many messages."""
    with RawClient(broker.address) as client:

        def held() -> int:
            answer = client.ask(Ask.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
            return int(answer.ext_fields["offset"]) if answer.code == 0 else 0

        until(
            lambda: held() >= count,
            lambda: f"there are {held()} of {count} messages",
            seconds=SECONDS_MAX,
            look_seconds=0.1,
        )


def kill(broker: Broker) -> None:
    """SIGKILL: nothing is flushed, closed or said goodbye to."""
    if isinstance(broker, ReliableMQBroker):
        broker.kill()
    else:
        broker.broker.kill()
        if broker.name_server:
            broker.name_server.stop()


def stored(directory: Path) -> list[Record]:
    """Return what a stopped broker left in the topic."""
    disk = FileDisk(directory / "store")
    core = BrokerCore(broker_config({})[0], disk)
    core.open(int(time.time() * 1000))
    store = core.state.store
    queue = store.queue(TOPIC, 0)
    assert queue is not None
    units = [queue.unit(index) for index in range(queue.end)]
    records = [store.read_record(unit.commit_log_offset) for unit in units]
    core.close()
    disk.close()
    return [record for record in records if record]


def wait_for_checkpoint(directory: Path, since_ms: int) -> None:
    """Return when it is noted that everything before a time was delivered."""
    note = directory / "store/config/timercheck"

    def delivered_ms() -> int:
        return int.from_bytes(note.read_bytes()[:8], "big")

    until(
        lambda: delivered_ms() >= since_ms,
        lambda: f"delivered up to {delivered_ms()} of {since_ms}",
        seconds=SECONDS_MAX,
        look_seconds=0.1,
    )


def run_both(first: Broker, second: Broker, directory: Path, *, is_killed: bool = False) -> Run:
    """Use one broker, stop or kill it, and let the other one go on."""
    first.start()
    try:
        told = use(first, directory)
        if is_killed:
            # Apache's broker repeats what is not noted yet as delivered, of its own and of ours.
            wait_for_checkpoint(directory, int(told["at"]))
            kill(first)
    finally:
        if not is_killed:
            first.stop()
    with second:
        delivered = sum(value.lstrip("-").isdecimal() for value in told.values()) - 1
        wait_for_messages(second, delivered + len(PENDING))
    del told["at"]
    return Run(told, stored(directory))


@pytest.fixture(scope="module")
def at_apache(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("timers-of-apache")
    with skipped_without_java():
        return run_both(apache(directory), ours(directory), directory, is_killed=True)


@pytest.fixture(scope="module")
def at_ours(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("timers-of-ours")
    with skipped_without_java():
        return run_both(ours(directory), apache(directory), directory, is_killed=True)


def without_times(told: dict[str, str]) -> dict[str, str]:
    return {
        name: "came" if value.lstrip("-").isdecimal() else value for name, value in told.items()
    }


def test_the_java_client_is_told_the_same_by_both(at_apache: Run, at_ours: Run) -> None:
    assert without_times(at_ours.told) == without_times(at_apache.told)
    assert at_ours.told["gone"] == "never"
    assert at_ours.told["last"] != "never"


@pytest.mark.parametrize("where", ["at_apache", "at_ours"])
def test_no_message_comes_early(where: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(where)
    late = [int(value) for value in run.told.values() if value.lstrip("-").isdecimal()]

    assert len(late) == 9
    assert min(late) >= 0, run.told
    print(where, run.told)


def test_ours_come_long_before_apaches_would(at_ours: Run) -> None:
    late = [int(value) for value in at_ours.told.values() if value.lstrip("-").isdecimal()]

    assert sorted(late)[len(late) // 2] < 200, at_ours.told  # milliseconds, on a busy machine


@pytest.mark.parametrize("where", ["at_apache", "at_ours"])
def test_the_other_broker_delivers_what_waits_once_and_not_early(
    where: str, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(where)
    bodies = [record.body.decode() for record in run.records]

    assert len(set(bodies)) == len(bodies)
    assert {body for body in bodies if body.startswith("later")} == PENDING
    for record in run.records:
        properties = record.property_map()
        assert record.store_time_ms > int(properties.get("TIMER_OUT_MS", "0"))
