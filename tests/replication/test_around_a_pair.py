"""Who connects to a master and its slave: consumers, slaves of Apache's, and slaves that lie."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from bench.child_process import port_beside
from tests.broker_core.raw_client import RawClient
from tests.replication.test_pair import MASTER, SLAVE, SYNC_MASTER, end_of, serving, told
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import Message, ReceivedMessage, SendStatus
from reliable_mq.outcomes import CONSUMED, Consumed
from reliable_mq.replication.ha_frames import encode_report
from reliable_mq.runtime import ha_slave, table_follower
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire.codes import RequestCode as Ask


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_master_answers_two_ports_below_too_where_slaves_of_apache_ask(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_taken: bool
) -> None:
    """If that port is taken, the log says what follows from it, and the master serves."""
    port = port_beside(-2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port - 2))
        if is_taken:
            other.listen()
        else:
            other.close()

        async def scene() -> None:
            async with serving(tmp_path / "master", "", str(port), **MASTER):
                with RawClient(f"127.0.0.1:{port if is_taken else port - 2}") as client:
                    code = Ask.GET_ALL_TOPIC_CONFIG
                    answer = await asyncio.to_thread(client.ask, code)
                    assert b"TBW102" in answer.body

        run_scene(scene())
    lines = told(caplog, "tables_port_taken")
    assert len(lines) == is_taken
    assert all("Apache's get no topics without it" in line for line in lines)


QUICK = ClientSettings(
    route_refresh_seconds=0.2,
    offset_commit_seconds=0.1,
    pull_suspend_seconds=1.0,
    pull_retry_seconds_max=0.2,
)


@pytest.mark.parametrize("stays", [True, False])
def test_a_consumer_goes_on_at_the_slave_and_comes_back_to_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    """What it has committed at the slave counts at the master, also if it ends meanwhile."""
    monkeypatch.setattr(table_follower, "TABLES_SECONDS", 0.2)
    monkeypatch.setattr(ha_slave, "RETRY_SECONDS", 0.1)
    port = str(free_port())
    own = {**MASTER, "haListenPort": str(free_port())}
    seen: list[bytes] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> Consumed:
        seen.extend(each.body for each in messages)
        return CONSUMED

    def offset_at(server: BrokerServer) -> int | None:
        return server._core.state.offsets.get("g", "t", 0)

    async def consuming(stack: AsyncExitStack, address: str) -> None:
        client = await stack.enter_async_context(AsyncClient(address, settings=QUICK))
        wanted = Subscription(group="g", topics={"t": "*"}, ordered=False)
        await client.consume(wanted, handle)

    async def scene() -> None:
        names = NameServer()
        await names.start("127.0.0.1", 0)
        address = f"127.0.0.1:{names.port}"
        async with AsyncExitStack() as slaves, AsyncExitStack() as consumers:
            async with serving(tmp_path / "master", address, port, **own) as master:
                slave = await slaves.enter_async_context(
                    serving(tmp_path / "slave", address, **SLAVE)
                )
                async with AsyncClient(address) as client:
                    await client.create_topic("t", 1)
                    async with AsyncExitStack() as once:
                        await consuming(once, address)
                        await eventually(lambda: "g" in slave._core.state.groups.by_name)
                    for body in (b"1", b"2", b"3"):
                        await client.send(Message(topic="t", body=body))
                await eventually(lambda: end_of(slave) == end_of(master))
                await eventually(lambda: "t" in slave._core.state.topics.by_name)
            await consuming(consumers, address)
            await eventually(lambda: len(seen) >= 3)
            await eventually(lambda: offset_at(slave) == 3)
            if not stays:
                await consumers.aclose()
            async with serving(tmp_path / "master", address, port, **own) as master:
                await eventually(lambda: offset_at(master) == 3)
                async with AsyncClient(address) as client:
                    await client.send(Message(topic="t", body=b"4"))
                if not stays:
                    await consuming(consumers, address)
                await eventually(lambda: len(seen) >= 4)
                await eventually(lambda: offset_at(master) == 4)
                await consumers.aclose()
        await names.close()

    run_scene(scene())
    assert sorted(seen) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("later", [False, True])
def test_a_slave_that_reports_more_than_the_master_has_acknowledges_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, later: bool
) -> None:
    """It has another log, or it forges. The first report may be too large, or a later one."""

    async def scene() -> None:
        async with (
            serving(tmp_path / "master", **SYNC_MASTER) as master,
            AsyncClient(master.name_server_address) as client,
        ):
            await client.create_topic("t", 1)
            await client.send(Message(topic="t", body=b"1"))
            end, place = end_of(master), master._replication.master
            assert place is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            if later:
                writer.write(encode_report(end))
                await reader.read(1)
            writer.write(encode_report(end + 1_000_000))
            await eventually(lambda: told(caplog, "slave_cut"))
            sent = await client.send(Message(topic="t", body=b"2"))
            assert sent.status is SendStatus.SLAVE_NOT_AVAILABLE
            writer.close()

    run_scene(scene())
    (line,) = told(caplog, "slave_cut")
    assert "it has another master's log" in line
