"""Brokers under a controller: they take the roles that it says, and refuse what cannot be right."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.failover.small_controller import SmallController, small_controller
from tests.replication.test_diverged import name_server
from tests.replication.test_pair import log_of
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.cli.broker_store import change_store
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.errors import ConfigurationError, ReliableMQError, StoreError
from reliable_mq.failover.epochs import Epoch, load_epochs
from reliable_mq.message import Message, SendStatus
from reliable_mq.runtime import controller_member, table_follower
from reliable_mq.runtime.broker_server import BrokerOptions
from reliable_mq.runtime.controlled_broker import ControlledBroker
from reliable_mq.wire.command import Command

ON = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_member, "JOIN_SECONDS", 0.05)
    monkeypatch.setattr(controller_member, "HEARTBEAT_SECONDS", 0.1)


def broker(store: Path, names: str, controller: str, **properties: str) -> ControlledBroker:
    settings = {
        "mappedFileSizeCommitLog": str(1024 * 1024),
        "maxMessageSize": "100000",
        "slaveReadEnable": "true",
        "syncBrokerMetadataPeriod": "100",
        **ON,
        "controllerAddr": controller,
        **properties,
    }
    return ControlledBroker(
        BrokerOptions(store=store, port=0, name_servers=names, properties=settings)
    )


@asynccontextmanager
async def serving(
    store: Path, names: str, controller: SmallController, **properties: str
) -> AsyncIterator[ControlledBroker]:
    started = broker(store, names, controller.address, **properties)
    await started.start()
    try:
        yield started
    finally:
        await started.close()


async def status_of_send(names: str, body: bytes) -> SendStatus | None:
    async with AsyncClient(names) as client:
        with contextlib.suppress(ReliableMQError):
            return (await client.send(Message(topic="t", body=body))).status
    return None


def test_one_is_elected_the_other_follows_and_takes_over_in_the_same_process(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
        ):
            first = broker(one, names, controller.address)
            await first.start()
            second = broker(two, names, controller.address)
            await second.start()
            await eventually(lambda: controller.in_sync == {1, 2})
            assert (controller.master, controller.epoch) == (1, 1)
            assert await status_of_send(names, b"both") == SendStatus.SEND_OK
            assert int(controller.beats[2]["brokerId"]) == 2
            await first.close()
            await eventually(lambda: second.starts == 2)
            assert (controller.master, controller.epoch) == (2, 2)

            async def is_stored() -> bool:
                return await status_of_send(names, b"x") == SendStatus.SLAVE_NOT_AVAILABLE

            await eventually(is_stored)
            async with serving(one, names, controller):
                await eventually(lambda: controller.in_sync == {1, 2})
                await eventually(lambda: log_of(one) == log_of(two))
            await second.close()
        found = [(store / "epochFileCheckpoint").read_text() for store in (one, two)]
        assert found[0] == found[1]
        assert load_epochs(found[0]).all[0] == Epoch(1, 0)
        assert (one / "brokerIdentity").read_text() == "DefaultCluster#broker-a#1"
        with pytest.raises(StoreError, match="a controller decides the role of this store"):
            change_store("promote", one)

    run_scene(scene())


def test_who_is_elected_after_a_new_topic_has_the_topic_as_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave learns of it by a hint, and not only with its next look at the tables."""
    monkeypatch.setattr(table_follower, "TABLES_SECONDS", 3600.0)

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller),
            serving(tmp_path / "two", names, controller) as second,
            AsyncClient(names) as client,
        ):
            await eventually(lambda: controller.in_sync == {1, 2})
            await client.create_topic("t", 3)
            await eventually(lambda: second._server._core.state.topics.get("t"))
            controller.elect(2)
            await eventually(lambda: second.starts == 2)
            topic = second._server._core.state.topics.get("t")
            assert topic is not None
            assert topic.queue_count == 3

    run_scene(scene())


def test_a_replica_of_the_set_is_waited_for_until_the_controller_lets_it_go(
    tmp_path: Path,
) -> None:
    """With `inSyncReplicas=1` the set alone decides: a master alone says SEND_OK."""
    one, two = tmp_path / "one", tmp_path / "two"
    alone = {"inSyncReplicas": "1", "slaveTimeout": "300"}

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(one, names, controller, **alone),
        ):
            assert await status_of_send(names, b"alone") == SendStatus.SEND_OK
            async with serving(two, names, controller, **alone):
                await eventually(lambda: controller.in_sync == {1, 2})
                controller.takes_sets = False
            assert await status_of_send(names, b"late") == SendStatus.FLUSH_SLAVE_TIMEOUT
            controller.takes_sets = True
            await eventually(lambda: controller.in_sync == {1})

            async def is_acknowledged() -> bool:
                return await status_of_send(names, b"again") == SendStatus.SEND_OK

            await eventually(is_acknowledged)

    run_scene(scene())


def test_what_the_former_master_alone_has_is_cut_and_kept(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            async with serving(one, names, controller):
                async with serving(two, names, controller):
                    await eventually(lambda: controller.in_sync == {1, 2})
                    assert await status_of_send(names, b"both") == SendStatus.SEND_OK
                    controller.takes_sets = False  # the slave stays in the set
                await status_of_send(names, b"alone")
            controller.takes_sets = True
            async with serving(two, names, controller):
                assert controller.master == 2
                await status_of_send(names, b"new")
                async with serving(one, names, controller) as former:
                    await eventually(lambda: log_of(one) == log_of(two))
                    assert former.starts >= 2, "it has started again for the cut"
        (kept,) = (one / "surplus").iterdir()
        assert b"alone" in kept.read_bytes()

    run_scene(scene())


def test_an_election_that_the_controller_tells_of_is_seen_at_once(tmp_path: Path) -> None:
    slow = {"syncBrokerMetadataPeriod": "3600000"}

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller, **slow) as first,
            serving(tmp_path / "two", names, controller, **slow) as second,
        ):
            await eventually(lambda: controller.in_sync == {1, 2})
            controller.elect(2)
            for each in (first, second):
                await each._member._links.call(each.address, Command(1008), 60.0)
            await eventually(lambda: (first.starts, second.starts) == (2, 2))

    run_scene(scene())


def test_a_broker_waits_for_its_controller_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            controller.is_away = True
            started = broker(tmp_path / "one", names, controller.address)
            starting = asyncio.ensure_future(started.start())
            await eventually(lambda: f"no controller at {controller.address}" in caplog.text)
            assert not starting.done()
            controller.is_away = False
            await starting
            controller.is_away = True
            await eventually(lambda: started._member._told)
            assert await status_of_send(names, b"x") == SendStatus.SLAVE_NOT_AVAILABLE
            controller.is_away = False
            await eventually(lambda: not started._member._told)
            await started.close()

    run_scene(scene())


@pytest.mark.parametrize(
    "says",
    [
        Command(3, remark="request type 1005 not supported"),
        Command(0, ext_fields={"controllerLeaderAddress": "nowhere"}),
        Command(0, ext_fields={"nextBrokerId": "x"}),
        Command(0, body=b"<html>"),
    ],
)
def test_a_controller_that_answers_something_else_is_told_and_asked_again(
    says: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            controller.says = says
            started = broker(tmp_path / "one", names, controller.address)
            starting = asyncio.ensure_future(started.start())
            await eventually(lambda: "says who the master is" in caplog.text)
            assert not starting.done()
            controller.says = None
            await starting
            await started.close()

    run_scene(scene())


def test_a_port_that_speaks_something_else_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)

    async def scene() -> None:
        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with name_server() as names:
            starting = asyncio.ensure_future(broker(tmp_path / "one", names, at).start())
            await eventually(lambda: f"no controller at {at}" in caplog.text)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        server.close()

    run_scene(scene())


def test_a_copy_of_a_store_does_not_start_beside_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller) as first,
        ):
            await status_of_send(names, b"x")
            (tmp_path / "copy").mkdir()
            shutil.copy(tmp_path / "one" / "brokerIdentity", tmp_path / "copy")
            with pytest.raises(StoreError, match=f"broker 1 .* runs at {first.address}, and"):
                await broker(tmp_path / "copy", names, controller.address).start()
            assert first.starts == 1

    run_scene(scene())


def test_a_broker_whose_number_another_one_takes_ends_with_one_line(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller) as first,
        ):
            controller.addresses[1] = "127.0.0.1:1"
            await eventually(lambda: first.role.ending is not None)
            assert first.role.ending is not None
            assert "runs at 127.0.0.1:1, and this one at" in str(first.role.ending.error)

    run_scene(scene())


def test_a_broker_of_another_cluster_gets_no_number(tmp_path: Path) -> None:
    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            async with serving(tmp_path / "one", names, controller):
                other = broker(
                    tmp_path / "two", names, controller.address, brokerClusterName="other"
                )
                with pytest.raises(StoreError, match="is of brokerClusterName=DefaultCluster at"):
                    await other.start()
                assert len(controller.codes) == 1
            renamed = broker(tmp_path / "one", names, controller.address, brokerName="b")
            with pytest.raises(StoreError, match="this store is broker 1 of brokerName=broker-a"):
                await renamed.start()

    run_scene(scene())


def test_an_application_whose_answer_was_lost_is_repeated_with_the_same_code(
    tmp_path: Path,
) -> None:
    (tmp_path / "one").mkdir()
    applied = "DefaultCluster#broker-a#1#127.0.0.1:5;77"
    (tmp_path / "one" / "brokerIdentity-temp").write_text(applied)

    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            controller.codes[1] = "127.0.0.1:5;77"
            async with serving(tmp_path / "one", names, controller):
                assert controller.codes == {1: "127.0.0.1:5;77"}
                assert not (tmp_path / "one" / "brokerIdentity-temp").exists()

    run_scene(scene())


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"controllerAddr": ""}, "needs controllerAddr=HOST:PORT"),
        ({"controllerAddr": "host"}, "controllerAddr=host: HOST:PORT"),
        ({"asyncLearner": "true"}, "asyncLearner=true is not supported: this broker can always"),
        ({"minInSyncReplicas": "2"}, "minInSyncReplicas=2 is not supported: sends are not"),
        ({"fetchControllerAddrByDnsLookup": "true"}, "name all controllers in controllerAddr"),
        ({"enableElectUncleanMaster": "true"}, "it is a setting of the controller"),
    ],
)
def test_a_setting_that_is_wrong_or_not_joined_is_refused(
    properties: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        broker_config({**ON, **properties})


def test_a_name_server_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs name servers elsewhere"):
        ControlledBroker(BrokerOptions(store=tmp_path, properties=ON))
