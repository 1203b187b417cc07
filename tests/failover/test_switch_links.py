"""Connections between masters and slaves under a controller, when one side sends what is wrong."""

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.replication.followers import KeptLog
from tests.replication.test_bad_input import log_bytes
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.stand_in import StandIn
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.failover.epochs import Epoch, EpochHistory
from reliable_mq.failover.switch_frames import (
    EpochTransfer,
    Hello,
    Welcome,
    encode_hello,
    encode_report,
    encode_transfer,
    encode_welcome,
)
from reliable_mq.replication.ha_frames import Transfer
from reliable_mq.runtime import pre_online
from reliable_mq.runtime.ha_slave import HaSlave
from reliable_mq.runtime.pre_online import PreOnline
from reliable_mq.runtime.slave_door import SlaveDoor
from reliable_mq.runtime.standing_in import StandingIn
from reliable_mq.runtime.switch_master import SwitchMaster
from reliable_mq.runtime.switch_slave import SwitchSlave


class KeptSwitchLog(KeptLog):
    surely_acknowledged = -1

    def __init__(self) -> None:
        super().__init__()
        self.history = EpochHistory()
        self.save_history: Callable[[], None] = lambda: None


async def no_log() -> tuple[int, int]:
    return 0, 0


async def ended(task: "asyncio.Future[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_bytes_of_an_epoch_that_does_not_fit_are_not_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = KeptSwitchLog()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(encode_hello(Hello(2))))
        writer.write(encode_welcome(Welcome(0, (Epoch(1, 0),))))
        await reader.readexactly(len(encode_report(0)))
        sent = EpochTransfer(Transfer(0, log_bytes()), Epoch(1, 7), 0)  # it began at 0
        writer.write(encode_transfer(sent))
        await reader.read()
        writer.close()

    async def scene() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        task = asyncio.ensure_future(SwitchSlave(store, 2, lambda: at, no_log).follow_forever())
        await eventually(lambda: "epoch 1 from log offset 7 on does not follow" in caplog.text)
        await ended(task)
        server.close()

    run_scene(scene())
    assert store.records == []
    assert store.history.all == (Epoch(1, 0),)


def test_a_slave_that_says_who_it_is_again_and_again_costs_little_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    master = SwitchMaster(SlaveDoor())
    epochs = tuple(Epoch(number, number) for number in range(1_000))
    master.history = EpochHistory(epochs)

    async def scene() -> None:
        await master.bind("127.0.0.1", 0)
        await master.serve(cast("CommitLog", SimpleNamespace(written=1_000, start=0, end=1_000)))
        _reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
        writer.write(encode_hello(Hello(2)) * 20_000)  # 240 MB of answers
        await eventually(lambda: "again and again, and reads no answer" in caplog.text)
        await eventually(lambda: not master._connections)
        writer.close()
        await master.close()

    run_scene(scene())


@pytest.mark.parametrize("address", ["nowhere at all", "host:port", f"{'ü' * 63}:1"])
def test_an_address_that_is_none_ends_no_slave(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Name servers and masters tell addresses; a wrong one is told, and asked for again."""

    async def scene() -> None:
        slave = HaSlave(KeptLog(), lambda: address, no_log)
        task = asyncio.ensure_future(slave.follow_forever())
        await eventually(lambda: "this is no address" in caplog.text)
        assert not task.done()
        await ended(task)

    run_scene(scene())


def test_a_slave_under_a_controller_follows_nobody_else_who_says_that_he_comes_back() -> None:
    """Everybody may send request 906; the controller says who the master is."""
    registrar = SimpleNamespace(is_controlled=True, master="127.0.0.1:1", master_ha="")
    state = SimpleNamespace(config=BrokerConfig(), stand_in=StandIn())
    core, none = cast("Any", SimpleNamespace(state=state)), cast("Any", None)
    StandingIn(core, none, cast("Any", registrar), none, lambda: False, lambda: None)

    state.stand_in.on_master("127.0.0.1:9", "127.0.0.1:8")
    assert (registrar.master, registrar.master_ha) == ("127.0.0.1:1", "")
    registrar.is_controlled = False
    state.stand_in.on_master("127.0.0.1:9", "127.0.0.1:8")
    assert (registrar.master, registrar.master_ha) == ("127.0.0.1:8", "127.0.0.1:9")


def test_a_master_that_was_a_slave_asks_not_itself_for_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server may still know it with the number that it had as a slave."""
    own, other = "127.0.0.1:1", "127.0.0.1:3"

    async def members(*_: Any) -> list[dict[int, str] | None]:
        return [{0: own, 2: own, 3: other}, None]

    monkeypatch.setattr(pre_online, "all_members", members)
    config = SimpleNamespace(address=own, name_servers="127.0.0.1:9876")
    core: Any = SimpleNamespace(state=SimpleNamespace(config=config))
    found = asyncio.run(PreOnline(core, cast("Any", None), cast("Any", None))._slaves())
    assert found == [other]
