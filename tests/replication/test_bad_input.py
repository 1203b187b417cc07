"""What a slave or a master must not believe: each is one line, and nothing wrong is stored."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker_core.broker_world import BrokerWorld
from tests.replication.followers import KeptLog, following
from tests.replication.test_pair import MASTER, SLAVE, end_of, log_of, serving, told
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.errors import FormerMaster
from reliable_mq.message import Message
from reliable_mq.replication.copied_log import CopiedLog
from reliable_mq.replication.ha_frames import (
    REPORT_SIZE,
    Transfer,
    encode_report,
    encode_transfer,
)
from reliable_mq.replication.log_comparison import WINDOW
from reliable_mq.runtime import ha_slave
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.name_server import NameServer

Answer = Callable[[int, asyncio.StreamWriter], Awaitable[None]]
"""Receives the offset of the first report, and answers it."""
NO_MASTER_OF_NAME = "no name server knows a master of this slave's brokerName"
SIZE_OF_MASTER = "has mappedFileSizeCommitLog="
"""Why a slave does not follow. On a busy machine "no answer" may come before it."""


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note all lines, and try again at once."""
    caplog.set_level(logging.INFO, "reliable_mq")
    monkeypatch.setattr(ha_slave, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(ha_slave, "ALONE_SECONDS", 0.1)


@asynccontextmanager
async def pretending(answer: Answer) -> AsyncIterator[tuple[int, list[int]]]:
    """Be a master that answers as it is told; give its port, and the first reports so far."""
    reports: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reports.append(int.from_bytes(await reader.readexactly(REPORT_SIZE)))
            await answer(reports[-1], writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], reports
    finally:
        server.close()


def port_of(master: BrokerServer) -> int:
    assert master._replication.master is not None
    return master._replication.master.port


def log_bytes() -> bytes:
    world = BrokerWorld()
    world.create_topic()
    for number in range(3):
        world.send(b"%d" % number)
    log = world.state.store.log
    return log.read(0, log.end)


def test_a_transfer_that_tears_at_any_byte_leaves_whole_records_and_the_copy_goes_on() -> None:
    log = log_bytes()

    async def scene() -> None:
        places = iter(range(1, len(log) + 170, 7))

        async def answer(begin: int, writer: asyncio.StreamWriter) -> None:
            parts = [encode_transfer(at, log[at : at + 50]) for at in range(begin, len(log), 50)]
            writer.write(b"".join(parts)[: next(places, None)])
            await writer.drain()

        store = KeptLog(segment_size=1024 * 1024)
        async with pretending(answer) as (port, reports), following(port, store=store):
            await eventually(lambda: store.end == len(log))
            assert reports[0] == 1
            assert set(reports) == {0, 1}, "a log of less than 64 KiB is compared from its begin"
        assert b"".join(each.data for each in store.records) == log

    run_scene(scene())


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (4_096, "the master sent offset 4096; this slave has received up to 0"),
        (-1, "at offset -1: no master sends it"),
    ],
)
def test_a_transfer_of_a_wrong_offset_is_one_line_with_both(
    caplog: pytest.LogCaptureFixture, offset: int, says: str
) -> None:
    log = log_bytes()

    async def scene() -> None:
        async def answer(_begin: int, writer: asyncio.StreamWriter) -> None:
            sent = offset if offset < 0 else offset + 1  # an empty slave asks for offset 1
            writer.write(encode_transfer(sent, log[1:]))
            await writer.drain()

        async with pretending(answer) as (port, reports), following(port) as store:
            await eventually(lambda: len(reports) >= 4)
            assert store.records == []

    run_scene(scene())
    (line,) = told(caplog, "master_lost")
    assert says in line


def test_a_master_that_goes_backwards_is_one_line_and_the_slave_keeps_what_it_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    end = 100_000

    async def scene() -> None:
        async def answer(_begin: int, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_transfer(0, log_bytes()))
            await writer.drain()

        store = KeptLog(end=end)
        async with pretending(answer) as (port, reports), following(port, store=store):
            await eventually(lambda: len(reports) >= 3)
        assert store.records == []
        assert store.end == end

    run_scene(scene())
    (line,) = told(caplog, "master_lost")
    assert f"the master sent offset 0; this slave has asked for {end - WINDOW}" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no master sends it"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no master sends it"),
        (encode_transfer(1, b"x" * 200), "something else answers at the master's address"),
        (b"", "before it sent anything"),
    ],
    ids=["http", "ssh", "no records", "nothing"],
)
def test_a_port_that_answers_something_else_is_one_line_and_nothing_is_stored(
    caplog: pytest.LogCaptureFixture, words: bytes, says: str
) -> None:
    async def scene() -> None:
        async def answer(_begin: int, writer: asyncio.StreamWriter) -> None:
            writer.write(words)
            await writer.drain()

        async with pretending(answer) as (port, reports), following(port) as store:
            await eventually(lambda: len(reports) >= 4)
            assert store.records == []

    run_scene(scene())
    (line,) = told(caplog, "master_lost")
    assert says in line
    assert not told(caplog, "master_followed")


def test_the_port_for_clients_is_not_the_port_for_slaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with (
            serving(tmp_path / "m", **MASTER) as master,
            following(master._listener.port) as store,
        ):
            await eventually(lambda: told(caplog, "master_lost"))
            assert store.records == []

    run_scene(scene())
    assert not told(caplog, "master_followed")


def test_who_speaks_http_to_the_port_for_slaves_is_told_to_be_no_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(master))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
            writer.close()

    run_scene(scene())
    (line,) = told(caplog, "slave_cut")
    assert "which no log has: it is no slave" in line


def test_a_slave_that_is_ahead_is_refused_and_told_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        store = KeptLog(end=10_000_000)
        async with (
            serving(tmp_path / "m", **MASTER) as master,
            following(port_of(master), store=store),
        ):
            await eventually(lambda: len(told(caplog, "slave_cut")) >= 2)
            await eventually(lambda: told(caplog, "master_lost"))
        assert store.end == 10_000_000, "it keeps what it has"

    run_scene(scene())
    asked = 10_000_000 - WINDOW
    assert f"it reports offset {asked}, and can have this log up to" in told(caplog, "slave_cut")[0]
    assert len(told(caplog, "master_lost")) == 1


def test_a_slave_with_another_segment_size_is_one_line_with_both_sizes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[str] = []

    async def scene() -> None:
        async with serving(tmp_path / "master", **MASTER) as master:
            found.append(master.address)
            address = master.name_server_address
            async with AsyncClient(address) as client:
                await client.create_topic("t", 1)
                for number in range(30):
                    await client.send(Message(topic="t", body=b"%d" % number * 40_000))
            own = {**SLAVE, "mappedFileSizeCommitLog": str(2 * 1024 * 1024)}
            async with serving(tmp_path / "slave", address, **own) as slave:
                await eventually(lambda: SIZE_OF_MASTER in caplog.text, lambda: caplog.text)
                assert end_of(slave) <= 1024 * 1024

    run_scene(scene())
    (line,) = {each for each in told(caplog, "master_lost") if SIZE_OF_MASTER in each}
    assert f"the broker at {found[0]} has mappedFileSizeCommitLog=1048576" in line
    assert "this slave has mappedFileSizeCommitLog=2097152; both must be the same" in line


@pytest.mark.parametrize("is_named", [False, True], ids=["name server", "haMasterAddress"])
@pytest.mark.parametrize("what", ["brokerName", "brokerClusterName"])
def test_a_slave_of_other_names_copies_nothing_and_says_its_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, is_named: bool
) -> None:
    """Also if it was given the address: its name server knows no master of these names."""

    async def scene() -> None:
        names = NameServer()
        await names.start("127.0.0.1", 0)
        address = f"127.0.0.1:{names.port}"
        async with serving(tmp_path / "master", address, **MASTER) as master:
            async with AsyncClient(address) as client:
                await client.create_topic("t", 1)
                await client.send(Message(topic="t", body=b"1"))
            own = {**SLAVE, what: "other"}
            if is_named:
                own["haMasterAddress"] = f"127.0.0.1:{port_of(master)}"
            async with serving(tmp_path / "slave", address, **own) as slave:
                if is_named:
                    await eventually(lambda: NO_MASTER_OF_NAME in caplog.text, lambda: caplog.text)
                else:
                    await eventually(lambda: told(caplog, "master_unknown"))
                assert end_of(slave) == 0
        await names.close()

    run_scene(scene())
    if not is_named:
        (line,) = told(caplog, "master_unknown")
        assert f"{what}=other" in line


def test_a_second_slave_of_one_id_does_not_start_and_the_first_one_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "master", **MASTER) as master:
            address = master.name_server_address
            async with (
                AsyncClient(address) as client,
                serving(tmp_path / "one", address, **SLAVE) as one,
            ):
                with pytest.raises(FormerMaster, match="broker id 1 of broker-a is taken by"):
                    async with serving(tmp_path / "two", address, **SLAVE):
                        pass
                await client.create_topic("t", 1)
                for number in range(20):
                    await client.send(Message(topic="t", body=b"%d" % number))
                await eventually(lambda: end_of(one) == end_of(master) > 0)

    run_scene(scene())
    assert log_of(tmp_path / "one") == log_of(tmp_path / "master")


def test_a_report_that_is_torn_by_the_end_acknowledges_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            place = master._replication.master
            assert place is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(encode_report(1))
            await reader.readexactly(12)
            (slave,) = place.slaves
            writer.write(encode_report(1 << 40)[:7])
            writer.close()
            await eventually(lambda: not place.slaves)
            assert slave.acknowledged <= 1

    run_scene(scene())


def test_a_slave_acknowledges_nothing_while_its_log_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The master answers late, and the slave would have repeated its report meanwhile."""
    monkeypatch.setattr(ha_slave, "REPORT_SECONDS", -1.0)
    monkeypatch.setattr(ha_slave, "_TEND_SECONDS", 0.0)
    monkeypatch.setattr(ha_slave, "FIRST_RETRY_SECONDS", 60.0)
    log = log_bytes()

    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def report() -> int:
                return int.from_bytes(await reader.readexactly(REPORT_SIZE))

            begins.append(await report())
            early = asyncio.ensure_future(report())
            for _ in range(1_000):
                await asyncio.sleep(0)
            is_early.append(early.done())
            writer.write(encode_transfer(begins[0], log[begins[0] :]))
            kept.append(await early)

        begins: list[int] = []
        is_early: list[bool] = []
        kept: list[int] = []
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        store = KeptLog()
        store.copy(CopiedLog(0, store.segment_size).take(Transfer(0, log)))
        async with following(server.sockets[0].getsockname()[1], store=store):
            await eventually(lambda: len(kept) == 1)
        server.close()
        assert begins[0] < len(log)
        assert is_early == [False]
        assert kept == [len(log)], "it is compared, and reported"

    run_scene(scene())


class _Unacknowledged(KeptLog):
    """Nobody was told of anything that it has."""

    acknowledged = 0


def test_a_store_of_which_no_record_is_the_masters_is_not_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seed 1455 of the simulation: older files of a former master were removed, and what was left
    was all surplus. What lies before differs, too: its queues have other numbers.
    """
    store = _Unacknowledged(end=200)
    store.start = 1024 * 1024

    async def answer(offset: int, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_transfer(offset, b"\x01" * 200))
        await writer.drain()
        await asyncio.Event().wait()

    async def scene() -> None:
        async with pretending(answer) as (port, _reports), following(port, store=store):
            await eventually(lambda: "have no record in common: give this slave" in caplog.text)

    run_scene(scene())
    assert store.cuts == []
    assert store.is_same is False
