"""A master that comes back after a slave has stood in for it, and slaves that find their master."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.broker_core.raw_client import RawClient
from tests.replication.acting_world import acting_world, hasten
from tests.replication.test_around_a_pair import QUICK
from tests.replication.test_pair import serving, told
from tests.waiting import Budget, eventually, run_scene

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Consumed
from reliable_mq.replication.standing_in import Members
from reliable_mq.runtime import broker_members, ha_slave, pre_online
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.properties import DELAY

ALL = ("other", "master", "slave")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)


BEATS = {"brokerHeartbeatInterval": "100"}


@pytest.mark.parametrize("is_ordered", [False, True])
def test_consumers_go_on_at_the_slave_and_the_master_knows_it_before_it_serves(
    tmp_path: Path, is_ordered: bool
) -> None:
    """Those with an order, too: the slave locks their queues."""
    seen: list[bytes] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> Consumed:
        seen.extend(each.body for each in messages)
        return CONSUMED

    async def scene() -> None:
        async with acting_world(tmp_path, ("master", "slave"), **BEATS) as world:
            wanted = Subscription(group="g", topics={"t": "*"}, ordered=is_ordered)
            async with AsyncClient(world.address, settings=QUICK) as client:
                await client.consume(wanted, handle)
                await world.send("master", [b"0"])
                await eventually(lambda: seen == [b"0"])
                slave = world.brokers["slave"]._core.state
                await eventually(lambda: "g" in slave.groups.by_name)
            await world.send("master", [b"1", b"2", b"3"])
            await world.copied()
            await world.stop("master")
            await eventually(world.is_acting)
            async with AsyncClient(world.address, settings=QUICK) as client:
                await client.consume(wanted, handle)
                await eventually(lambda: seen == [b"0", b"1", b"2", b"3"])
                await eventually(lambda: slave.offsets.get("g", "t", 0) == 4)
            master = await world.start("master")
            assert master._core.state.offsets.get("g", "t", 0) == 4

    run_scene(scene())


def test_a_reset_at_the_master_is_not_undone_by_its_slave(tmp_path: Path) -> None:
    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            master = world.brokers["master"]._core.state
            await world.send("master", [b"1", b"2", b"3"])
            master.groups.find("g", now_ms())
            master.offsets.commit("g", "t", 0, 3)
            await world.copied()
            await world.stop("slave")
            master.offsets.commit("g", "t", 0, 1)
            await world.stop("master")
            await world.start("slave")
            await eventually(world.is_acting)
            assert world.brokers["slave"]._core.state.offsets.get("g", "t", 0) == 3
            again = await world.start("master")
            assert again._core.state.offsets.get("g", "t", 0) == 1

    run_scene(scene())


def test_a_master_serves_without_a_slave_that_does_not_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then it refuses everybody but slaves."""
    monkeypatch.setattr(pre_online, "GIVE_UP_SECONDS", 0.5)
    monkeypatch.setattr(pre_online, "_RETRY_SECONDS", 0.1)

    async def scene() -> None:
        async with acting_world(tmp_path, ("other", "master", "slave"), **BEATS) as world:
            await world.copied()
            await world.stop("master")
            await eventually(world.is_acting)
            stand_in = world.brokers["slave"]._core.state.stand_in
            stand_in.on_master = lambda _ha_address, _address: None  # it does not give way
            slave = world.brokers["slave"]._replication._slave
            assert slave is not None
            slave._find_master = lambda: ""
            monkeypatch.setattr(pre_online, "ANSWER_SECONDS", 1.0)
            refused: list[str | None] = []

            def ask() -> None:
                with RawClient(f"127.0.0.1:{world._ports['master'][0]}") as client:
                    refused.append(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).remark)

            starting = asyncio.ensure_future(world.start("master"))
            while not refused:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(ask)
            await starting
            assert "takes over what its slaves have done" in str(refused[0])
            await world.send("master", [b"served"])

    run_scene(scene())
    assert "What they have delivered comes again" in told(caplog, "pre_online_given_up")[0]


def test_a_master_asks_who_its_slaves_are_until_a_name_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an answer it would serve at once, and repeat what its slave has delivered."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(pre_online, "_RETRY_SECONDS", 0.01)
    answers: list[list[Members | None]] = [[None], [None]]
    ask = broker_members.all_members

    async def late(links: Links, config: BrokerConfig) -> list[Members | None]:
        return answers.pop() if answers else await ask(links, config)

    async def never(*_: object) -> list[Members | None]:
        return [None]

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.copied()
            caplog.clear()
            for how in (late, never):
                await world.stop("master")
                monkeypatch.setattr(pre_online, "all_members", how)
                await world.start("master")
                assert len(told(caplog, "progress_taken_back")) == 1
                assert not answers
                monkeypatch.setattr(pre_online, "GIVE_UP_SECONDS", 0.1)

    run_scene(scene())
    words = "serves without the progress of its slaves: no name server answers"
    assert words in told(caplog, "pre_online_given_up")[0]


def test_the_progress_of_a_slave_that_is_ahead_is_not_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The master was restored from an older copy: its messages may be other ones."""

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.copied()
            await world.stop("master")
            shutil.copytree(tmp_path / "master", tmp_path / "copy")
            await world.start("master")
            await world.send("master", [b"1"], **{DELAY: 1})
            await eventually(lambda: world.bodies("master") == [b"1"])
            await world.copied()
            await world.stop("master")
            shutil.rmtree(tmp_path / "master")
            (tmp_path / "copy").rename(tmp_path / "master")
            await world.start("master")
            assert world.brokers["master"]._core.state.schedule.next_of(1) == 0

    run_scene(scene())
    assert "its progress is not taken over" in told(caplog, "slave_ahead")[0]


def test_a_slave_follows_a_restarted_master_within_a_moment(tmp_path: Path) -> None:
    async def scene() -> None:
        async with acting_world(tmp_path, ("master", "slave"), skipPreOnline="true") as world:
            await world.copied()
            await world.stop("master")
            slave = world.brokers["slave"]._replication._slave
            assert slave is not None
            await eventually(lambda: not slave.is_following)
            master = await world.start("master")
            budget = Budget(ha_slave.RETRY_SECONDS - 1)
            place = master._replication.master
            assert place is not None
            await eventually(lambda: bool(place.slaves))
            assert budget.is_left()

    run_scene(scene())


def test_a_slave_that_is_sent_to_another_broker_says_both_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`haMasterAddress` is that of another broker; nothing is copied."""
    port = free_port()

    async def scene() -> None:
        async with acting_world(tmp_path, ("master",), **BEATS) as world:
            ha_port = str(port + 1)
            own = {"brokerRole": "ASYNC_MASTER", "brokerName": "wrong", "haListenPort": ha_port}
            async with serving(tmp_path / "wrong", world.address, str(port), **own):
                slave = await world.start("slave", haMasterAddress=f"127.0.0.1:{ha_port}")
                await eventually(lambda: told(caplog, "master_lost"))
                assert slave._core.state.store.log.end == 0

    run_scene(scene())
    line = told(caplog, "master_lost")[0]
    assert f"the broker at 127.0.0.1:{port} has brokerName=wrong" in line
    assert "this slave has brokerName=pair" in line
