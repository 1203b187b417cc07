"""The slave's side of replication under a controller: what is noted, and when."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.waiting import run_scene

from reliable_mq.failover.epochs import Epoch, EpochHistory
from reliable_mq.failover.switch_frames import (
    EpochTransfer,
    Welcome,
    encode_transfer,
    encode_welcome,
)
from reliable_mq.replication.copied_log import CopiedRun
from reliable_mq.replication.ha_frames import Transfer
from reliable_mq.runtime.switch_slave import SwitchSlave

FIRST, SECOND = Epoch(1, 0), Epoch(2, 100)


class Store:
    """Notes in which order it is told something."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.history = EpochHistory([FIRST])
        self.end = self.kept = 100
        self.has_room = True

    def save_history(self) -> None:
        self.done.append(self.history.all)

    def copy(self, runs: Sequence[CopiedRun]) -> None:
        self.done += [run.offset for run in runs]

    async def room(self) -> None:
        """There is always room."""


class Log:
    """Takes every transfer for whole records."""

    end = 100

    def take(self, transfer: Transfer) -> list[CopiedRun]:
        return [CopiedRun(transfer.offset, transfer.data, ())]


async def no_range() -> tuple[int, int]:
    return 0, 0


def test_an_epoch_is_saved_before_its_first_message() -> None:
    """Else a slave that dies between them takes the message for one of the epoch before."""

    async def scenario() -> None:
        store: Any = Store()
        log: Any = Log()
        slave = SwitchSlave(store, 7, lambda: "", no_range)
        link = slave._new_link()
        slave._is_copying = True
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await loop.create_connection(lambda: link, "127.0.0.1", port)
        link.data_received(encode_welcome(Welcome(200, (FIRST, SECOND))))
        copying = asyncio.ensure_future(slave._take_forever(link, log, 0))
        await asyncio.sleep(0)
        link.data_received(encode_transfer(EpochTransfer(Transfer(100, b"message"), SECOND, 0)))
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
        link.transport.abort()
        server.close()
        assert store.done == [(FIRST, SECOND), 100]

    run_scene(scenario())
