"""The doctor on masters and slaves: who follows whom, what is lacking, and who can have the log."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.access.access_world import ON, ROOT, SECRET
from tests.doctor.test_doctor import context
from tests.doctor.worlds import PATIENT, World, running_broker
from tests.waiting import until

from reliable_mq.client.administering.cluster_facts import BrokerFacts, ClusterFacts
from reliable_mq.doctor.finding import CheckFindings, Finding, Level
from reliable_mq.doctor.redis_examination import CHECKS
from reliable_mq.doctor.replica_checks import replicas
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.runtime.name_server import NameServer

MASTER = BrokerFacts(
    name="b",
    address="10.0.0.1:10911",
    config={
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "brokerIP1": "10.0.0.1",
        "haListenPort": "10912",
    },
    replication={"haConnectionInfo": [{"addr": "10.0.0.2:4711", "diff": 7, "inSync": True}]},
)
SLAVE = BrokerFacts(
    name="b",
    address="10.0.0.2:10911",
    broker_id=1,
    config={"brokerRole": "SLAVE"},
    runtime={"masterTablesAgeSeconds": "4", "masterTablesFailure": ""},
    replication={"haClientRuntimeInfo": {"masterAddr": "10.0.0.1:10912"}},
)
ACTS = {"enableSlaveActingMaster": "true"}
ALONE: dict[str, Any] = {"replication": {"haConnectionInfo": []}}
FAR = {"haConnectionInfo": [{"addr": "10.0.0.2:4711", "diff": 300_000_000, "inSync": False}]}
TWO = {"haConnectionInfo": MASTER.replication["haConnectionInfo"] * 2}


def changed(facts: BrokerFacts, **values: Any) -> BrokerFacts:
    """Return the facts of a broker with other values; properties are added to those it has."""
    config = {**facts.config, **values.pop("config", {})}
    return msgspec.structs.replace(facts, config=config, **values)


def found(master: BrokerFacts | None, *slaves: BrokerFacts, **more: Any) -> list[Finding]:
    masters = () if master is None else (master,)
    cluster = ClusterFacts(masters, frozenset(), frozenset(), slaves=slaves, **more)
    told = CheckFindings("replicas")
    replicas(context(cluster=cluster), told)
    return told.findings


def test_a_sound_pair_is_told_with_its_roles_and_its_lag() -> None:
    (told,) = found(MASTER, SLAVE)
    assert told.level is Level.OK
    assert told.text == (
        "slave 1 at 10.0.0.2:10911 of broker b at 10.0.0.1:10911 (SYNC_MASTER): 1 connected, "
        "lacking 7 bytes"
    )


def test_brokers_without_slaves_are_sound() -> None:
    (told,) = found(changed(MASTER, config={"brokerRole": "ASYNC_MASTER"}, **ALONE))
    assert (told.level, told.text) == (Level.OK, "no broker has a slave")


ASYNC = {"brokerRole": "ASYNC_MASTER"}
FAULTS: list[tuple[BrokerFacts | None, list[BrokerFacts], str, Level]] = [
    (changed(MASTER, **ALONE), [], "needs 1 slave(s) that keep up, and has 0", Level.ERROR),
    (changed(MASTER, **ALONE), [SLAVE], "needs 1 slave(s) that keep up, and has 0", Level.ERROR),
    (changed(MASTER, config=ASYNC, **ALONE), [SLAVE], "1 of 1 slave(s) of broker b", Level.ERROR),
    (
        changed(MASTER, config={**ASYNC, "ownNameServer": "false"}, **ALONE),
        [],
        "is there for slaves (haListenPort=10912), and none is connected",
        Level.WARNING,
    ),
    (changed(MASTER, config={"inSyncReplicas": "1"}), [SLAVE], "waits for no slave", Level.WARNING),
    (
        changed(MASTER, config=ASYNC, replication=FAR),
        [SLAVE],
        "does not keep up with broker b: it lacks 300000000 bytes",
        Level.WARNING,
    ),
    (changed(MASTER, replication=TWO), [SLAVE], "two have the same brokerId", Level.WARNING),
    (changed(MASTER, config={"ownNameServer": "true"}), [SLAVE], "same process", Level.WARNING),
    (
        changed(MASTER, config={"haOpenToEverybody": "true"}),
        [SLAVE],
        "GIVES EVERY MESSAGE TO EVERYBODY: whoever reaches its port 10912",
        Level.ERROR,
    ),
    (None, [SLAVE], "broker b has no master: clients can read from slave 1", Level.ERROR),
    (MASTER, [changed(SLAVE, failure="gone")], "slave 1 of broker b at 10.0.0.2", Level.ERROR),
    (MASTER, [changed(SLAVE, config=ASYNC)], "it follows nobody", Level.ERROR),
    (
        changed(MASTER, config={"mappedFileSizeCommitLog": "2"}),
        [changed(SLAVE, config={"mappedFileSizeCommitLog": "1"})],
        "mappedFileSizeCommitLog=1, and its master 2: it cannot copy",
        Level.ERROR,
    ),
    (
        MASTER,
        [changed(SLAVE, replication={"haClientRuntimeInfo": {"masterAddr": ""}})],
        "follows no master",
        Level.ERROR,
    ),
    (
        MASTER,
        [changed(SLAVE, replication={"haClientRuntimeInfo": {"masterAddr": "10.0.0.9:10912"}})],
        "follows 10.0.0.9:10912, and the master of this name takes slaves at 10.0.0.1:10912",
        Level.ERROR,
    ),
    (
        MASTER,
        [
            changed(
                SLAVE,
                runtime={"masterTablesAgeSeconds": "9", "masterTablesFailure": "request 21 is no"},
            )
        ],
        "of its master for 9 s: request 21 is no",
        Level.ERROR,
    ),
    (
        MASTER,
        [changed(SLAVE, runtime={"masterTablesAgeSeconds": "900", "masterTablesFailure": ""})],
        "of its master for 900 s",
        Level.ERROR,
    ),
]


@pytest.mark.parametrize(("master", "slaves", "says", "level"), FAULTS)
def test_a_fault_of_a_pair_is_found(
    master: BrokerFacts | None, slaves: list[BrokerFacts], says: str, level: Level
) -> None:
    (told,) = found(master, *slaves)
    assert told.level is level
    assert says in told.text
    assert told.remedy


def test_a_slave_of_a_sync_master_that_does_not_keep_up_is_an_error_twice() -> None:
    told = found(changed(MASTER, replication=FAR), SLAVE)
    assert [each.level for each in told] == [Level.ERROR, Level.ERROR]


def test_name_servers_that_know_different_masters_are_told() -> None:
    rivals = {"b": frozenset({"10.0.0.1:10911", "10.0.0.9:10911"})}
    (told,) = found(MASTER, SLAVE, rivals=rivals)
    assert told.level is Level.ERROR
    assert "2 masters are called b: 10.0.0.1:10911, 10.0.0.9:10911" in told.text


@pytest.mark.parametrize(
    "followed", ["master.example:10912", "10.0.0.1:10912", "[10.0.0.1]:10912", "odd", ":"]
)
def test_an_address_that_may_be_the_same_is_no_finding(followed: str) -> None:
    """A host name is not resolved here: it may mean another address elsewhere."""
    slave = changed(SLAVE, replication={"haClientRuntimeInfo": {"masterAddr": followed}})
    assert [each.level for each in found(MASTER, slave)] == [Level.OK]


@pytest.mark.parametrize(
    "answer",
    [{}, {"haConnectionInfo": None}, {"haConnectionInfo": [None, 5]}, {"haConnectionInfo": "x"}],
)
def test_an_odd_answer_of_a_master_is_none(answer: dict[str, Any]) -> None:
    master = changed(MASTER, config=ASYNC, replication=answer)
    (told,) = found(master, changed(SLAVE, replication=answer))
    assert "1 of 1 slave(s) of broker b are not connected" in told.text


def test_brokers_that_cannot_be_asked_are_skipped() -> None:
    told = CheckFindings("replicas")
    CHECKS["replicas"](context(cluster=None), told)
    assert [each.level for each in told.findings] == [Level.SKIPPED]


@contextmanager
def running_name_server() -> Iterator[str]:
    thread, server = LoopThread("names"), NameServer()
    thread.run(server.start("127.0.0.1", 0))
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        thread.run(server.close())
        thread.close()


SLAVES = {"brokerRole": "SLAVE", "brokerId": "1"}


def levels(world: World) -> list[tuple[Level, str]]:
    return [(each.level, each.text) for each in world.findings("replicas")]


def test_a_real_pair_is_examined(database_url: str, tmp_path: Path) -> None:
    with (
        running_name_server() as names,
        running_broker(tmp_path / "master", names, brokerRole="SYNC_MASTER"),
        closing(World(database_url, broker=names, **PATIENT)) as world,
    ):
        assert [level for level, _ in levels(world)] == [Level.ERROR], "no slave is there"
        with running_broker(tmp_path / "slave", names, **SLAVES):
            until(lambda: [level for level, _ in levels(world)] == [Level.OK])
            ((_, text),) = levels(world)
            assert "(SYNC_MASTER): 1 connected, lacking 0 bytes" in text
        until(lambda: "and has 0" in levels(world)[0][1])


def test_a_slave_that_was_killed_is_missed(database_url: str, tmp_path: Path) -> None:
    """The name server forgets it at once; that its master takes slaves is enough."""
    with (
        running_name_server() as names,
        running_broker(tmp_path / "master", names, brokerRole="ASYNC_MASTER"),
        closing(World(database_url, broker=names, **PATIENT)) as world,
    ):
        slave = ReliableMQBroker(tmp_path / "slave", settings=SLAVES, name_servers=names)
        with slave:
            until(lambda: [level for level, _ in levels(world)] == [Level.OK])
            slave.kill()
            until(lambda: "none is connected" in levels(world)[0][1])


def test_a_slave_that_may_not_read_the_tables_is_found(database_url: str, tmp_path: Path) -> None:
    """It knows the secret of nobody; the application's user may ask both."""
    with (
        running_name_server() as names,
        running_broker(tmp_path / "master", names, brokerRole="ASYNC_MASTER", **ON),
        running_broker(tmp_path / "slave", names, **SLAVES),
        closing(
            World(database_url, broker=names, access_key=ROOT, secret_key=SECRET, **PATIENT)
        ) as world,
    ):
        until(lambda: any("username cannot be null" in text for _, text in levels(world)))
        assert any("follows no master" in text for _, text in levels(world))


def test_a_master_whose_name_server_ends_with_it_is_told(database_url: str, tmp_path: Path) -> None:
    with (
        running_broker(tmp_path / "master", brokerRole="ASYNC_MASTER") as names,
        running_broker(tmp_path / "slave", names, **SLAVES),
        closing(World(database_url, broker=names, **PATIENT)) as world,
    ):
        until(lambda: [level for level, _ in levels(world)] == [Level.WARNING])
        assert "runs in the same process" in levels(world)[0][1]


def test_a_slave_that_stands_in_is_named() -> None:
    (told,) = found(None, changed(SLAVE, runtime={**SLAVE.runtime, "standsIn": "true"}))
    assert told.level is Level.ERROR
    assert told.text.endswith("; slave 1 at 10.0.0.2:10911 stands in for it")


def test_a_master_that_does_not_ask_who_stood_in_for_it_is_told() -> None:
    (told,) = found(MASTER, changed(SLAVE, config=ACTS))
    assert told.level is Level.WARNING
    assert "those messages come twice" in told.text
    (fine,) = found(changed(MASTER, config=ACTS), changed(SLAVE, config=ACTS))
    assert fine.level is Level.OK
