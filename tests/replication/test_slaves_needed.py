"""How many slaves a synchronous master waits for, and which of them count."""

import asyncio
from pathlib import Path

import pytest
from tests.replication.test_pair import (
    HASTY_MASTER,
    PATIENT,
    SLAVE,
    SYNC_MASTER,
    end_of,
    held_syncs,
    send_until_acknowledged,
    serving,
    slaves_of,
)
from tests.replication.test_transfers import followed, port_of
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message, SendStatus
from reliable_mq.replication.ha_frames import encode_report
from reliable_mq.runtime import ha_slave

OK = SendStatus.SEND_OK
SECOND_SLAVE = {**SLAVE, "brokerId": "2"}


def test_with_three_replicas_two_slaves_have_a_message_before_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "master", **HASTY_MASTER, inSyncReplicas="3") as master:
            names = master.name_server_address
            async with (
                AsyncClient(names, settings=PATIENT) as client,
                serving(tmp_path / "one", names, **SLAVE),
            ):
                await client.create_topic("t", 1)
                await eventually(lambda: len(slaves_of(master)) == 1)
                alone = await client.send(Message(topic="t", body=b"one slave"))
                assert alone.status is SendStatus.SLAVE_NOT_AVAILABLE
                async with serving(tmp_path / "two", names, **SECOND_SLAVE) as two:
                    await eventually(lambda: end_of(two) == end_of(master))
                    await eventually(lambda: len(slaves_of(master)) == 2)
                    await send_until_acknowledged(client, b"two slaves")
                    assert two._core.state.store.log.durable == end_of(master)
                    with held_syncs(two):
                        late = await client.send(Message(topic="t", body=b"one is slow"))
                        assert late.status is SendStatus.FLUSH_SLAVE_TIMEOUT

    run_scene(scene())


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_slave_holds_nobody_up_while_another_one_keeps_up(tmp_path: Path, slow: int) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "master", **SYNC_MASTER) as master:
            names = master.name_server_address
            async with (
                AsyncClient(names, settings=PATIENT) as client,
                serving(tmp_path / "one", names, **SLAVE) as one,
                serving(tmp_path / "two", names, **SECOND_SLAVE) as two,
            ):
                await client.create_topic("t", 1)
                await eventually(lambda: len(slaves_of(master)) == 2)
                slaves = (one, two)
                with held_syncs(slaves[slow]):
                    for number in range(20):
                        sent = await client.send(Message(topic="t", body=b"%d" % number))
                        assert sent.status is OK
                    assert slaves[slow]._core.state.store.log.durable == 0
                await eventually(lambda: all(end_of(each) == end_of(master) for each in slaves))

    run_scene(scene())


def test_a_slave_that_lacks_too_much_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`haMaxGapNotInSync`: the answer says so at its next report, and not after `slaveTimeout`."""
    monkeypatch.setattr(ha_slave, "REPORT_SECONDS", 0.05)
    monkeypatch.setattr(ha_slave, "_TEND_SECONDS", 0.05)
    own = {**SYNC_MASTER, "haMaxGapNotInSync": "2000"}

    async def scene() -> None:
        async with serving(tmp_path / "master", **own) as master:
            names = master.name_server_address
            async with (
                AsyncClient(names, settings=PATIENT) as client,
                serving(tmp_path / "slave", names, **SLAVE) as slave,
            ):
                await client.create_topic("t", 1)
                await eventually(lambda: len(slaves_of(master)) == 1)
                assert (await client.send(Message(topic="t", body=b"1"))).status is OK
                with held_syncs(slave):
                    far = await client.send(Message(topic="t", body=b"x" * 4_000))
                    assert far.status is SendStatus.SLAVE_NOT_AVAILABLE
                await eventually(lambda: slaves_of(master)[0].acknowledged == end_of(master))
                near = await client.send(Message(topic="t", body=b"x"))
                assert near.status is OK

    run_scene(scene())


def test_a_slave_that_has_only_asked_for_the_log_acknowledges_nothing(tmp_path: Path) -> None:
    """It compares from there on, and its log may differ before: it is a former master's."""

    async def scene() -> None:
        async with serving(tmp_path / "master", **SYNC_MASTER) as master:
            silent = await followed(master)
            silent.is_silent = True
            async with AsyncClient(master.name_server_address, settings=PATIENT) as client:
                await client.create_topic("t", 1)
                sending = asyncio.ensure_future(client.send(Message(topic="t", body=b"1")))
                await eventually(lambda: bool(silent.transfers))
                end = end_of(master)
                _reader, writer = await asyncio.open_connection("127.0.0.1", port_of(master))
                writer.write(encode_report(end))
                await eventually(lambda: len(slaves_of(master)) == 2)
                assert master._core.state.answers.released < end
                writer.write(encode_report(end))
                assert (await sending).status is OK
                writer.close()

    run_scene(scene())


def test_a_slave_that_connects_again_does_not_count_twice(tmp_path: Path) -> None:
    """Its old connection broke without a word. Another slave at this host reports again."""

    async def scene() -> None:
        async with serving(tmp_path / "master", **SYNC_MASTER, inSyncReplicas="3") as master:
            old, silent = await followed(master), await followed(master)
            await eventually(lambda: len(slaves_of(master)) == 2)
            silent.is_silent = True
            async with AsyncClient(master.name_server_address, settings=PATIENT) as client:
                await client.create_topic("t", 1)
                sending = asyncio.ensure_future(client.send(Message(topic="t", body=b"1")))
                await eventually(lambda: bool(old.transfers and silent.transfers))
                end = end_of(master)
                await eventually(lambda: any(each.proven == end for each in slaves_of(master)))
                _reader, writer = await asyncio.open_connection("127.0.0.1", port_of(master))
                writer.write(encode_report(end))
                await eventually(lambda: len(slaves_of(master)) == 3)
                writer.write(encode_report(end))
                await eventually(lambda: slaves_of(master)[2].proven == end)
                assert master._core.state.answers.released < end
                old.report()
                assert (await sending).status is OK
                writer.close()

    run_scene(scene())
