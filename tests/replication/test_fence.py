"""Two masters of one name: the promoted one stays, the former one takes no message and ends."""

import logging
from pathlib import Path

import pytest
from tests.broker_core.broker_world import (
    BrokerWorld,
    pull_header,
    send_header,
    there,
    waiting_pull_header,
)
from tests.broker_core.pop_world import PopWorld
from tests.replication.test_diverged import copied_pair, follows, name_server, send
from tests.replication.test_pair import MASTER, SLAVE, SYNC_MASTER, end_of, serving, told
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.errors import FormerMaster
from reliable_mq.message import Message, SendStatus
from reliable_mq.runtime import fence, ha_slave
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")
    monkeypatch.setattr(ha_slave, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(fence, "LOOK_SECONDS", 0.1)


def log_bytes(server: BrokerServer) -> bytes:
    log = server._core.state.store.log
    return log.read(0, log.written)


def test_an_old_master_that_comes_back_says_what_it_has_and_serves_nobody(tmp_path: Path) -> None:
    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, SYNC_MASTER, b"both")
            async with serving(tmp_path / "one", address, **SYNC_MASTER) as one:
                told_end = end_of(one)
                assert await send(address, b"alone") == {SendStatus.SLAVE_NOT_AVAILABLE}
                own_end = end_of(one)
            async with serving(tmp_path / "two", address, **MASTER) as promoted:
                await send(address, b"new")
                with pytest.raises(FormerMaster) as caught:
                    async with serving(tmp_path / "one", address, **SYNC_MASTER):
                        pass
                for part in (
                    f"the master of broker-a is {promoted.address}: its epoch is 1",
                    f"its log ends at {end_of(promoted)}",
                    f"this store has epoch 0, its log ends at {own_end}",
                    f"up to {told_end} it may have been acknowledged",
                ):
                    assert part in str(caught.value)
                assert await send(address, b"newer") == {SendStatus.SEND_OK}

    run_scene(scene())


def test_a_master_that_runs_ends_when_its_slave_is_promoted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, MASTER, b"both")
            async with (
                serving(tmp_path / "one", address, **MASTER) as one,
                AsyncClient(address) as old_route,
            ):
                await old_route.send(Message(topic="t", body=b"last"))
                end = end_of(one)
                async with serving(tmp_path / "two", address, **MASTER) as promoted:
                    await eventually(lambda: one.role.is_fenced)
                    sent = await old_route.send(Message(topic="t", body=b"old route"))
                    assert sent.status is SendStatus.SEND_OK
                    assert end_of(one) == end
                    assert b"old route" in log_bytes(promoted)

    run_scene(scene())
    (line,) = told(caplog, "master_fenced")
    assert "its epoch is 1" in line


def test_the_epoch_outlives_restarts_and_a_slave_learns_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, MASTER, b"both")
            async with serving(tmp_path / "two", address, **MASTER) as two:
                assert two.role.note.epoch == 1
            async with serving(tmp_path / "two", address, **MASTER) as two:
                assert two.role.note.epoch == 1
                async with serving(tmp_path / "one", address, **SLAVE) as one:
                    await follows(one, two)
                    assert one.role.note.epoch == 1
            async with serving(tmp_path / "one", address, **MASTER) as one:
                assert one.role.note.epoch == 2

    run_scene(scene())
    assert told(caplog, "role_changed") == [
        f"this store has role {role} and epoch {epoch} now"
        for role, epoch in (("ASYNC_MASTER", 1), ("SLAVE", 0), ("ASYNC_MASTER", 2))
    ]


def test_two_slaves_of_one_id_are_one_too_many(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            name_server() as address,
            serving(tmp_path / "one", address, **MASTER),
            serving(tmp_path / "two", address, **SLAVE),
        ):
            with pytest.raises(FormerMaster, match="broker id 1 of broker-a is taken by"):
                async with serving(tmp_path / "three", address, **SLAVE):
                    pass

    run_scene(scene())


def test_a_master_at_its_own_address_again_is_no_second_one(tmp_path: Path) -> None:
    port, ha_port = str(free_port()), str(free_port())

    async def scene() -> None:
        async with name_server() as address:
            for _ in range(2):
                async with serving(tmp_path / "one", address, port, **MASTER, haListenPort=ha_port):
                    assert await send(address, b"x") == {SendStatus.SEND_OK}

    run_scene(scene())


def test_a_fenced_broker_takes_and_shows_no_message() -> None:
    world = BrokerWorld()
    world.create_topic()
    world.send(b"before")
    end = world.state.store.log.end

    world.core.fence()

    for code in (Ask.SEND_MESSAGE_V2, Ask.SEND_BATCH_MESSAGE, Ask.CONSUMER_SEND_MSG_BACK):
        assert world.ask(code, send_header(), b"x").code == Code.SYSTEM_BUSY
    for code, header in ((Ask.PULL_MESSAGE, pull_header()), (Ask.VIEW_MESSAGE_BY_ID, {})):
        assert world.ask(code, header).code == Code.SYSTEM_BUSY
    assert world.state.store.log.end == end


@pytest.mark.parametrize("code", [Ask.PULL_MESSAGE, Ask.POP_MESSAGE, Ask.NOTIFICATION])
def test_a_fenced_broker_refuses_who_waited_when_a_message_comes(code: Ask) -> None:
    world = PopWorld()
    header = waiting_pull_header() if code == Ask.PULL_MESSAGE else world.pop_header(pollTime=9_000)
    assert world.begin(code, header, of=2) is None
    opaque = world.last_opaque
    world.is_writing = False
    assert world.begin(Ask.SEND_MESSAGE_V2, send_header(), b"of the former master") is None

    world.core.fence()
    end = world.state.store.log.end
    world.is_writing = True
    world.finish_turn()

    answer = there(world.reply_to(opaque, of=2))
    assert (answer.code, answer.body) == (Code.SYSTEM_BUSY, b"")
    assert world.state.store.log.end == end, "no checkpoint"
