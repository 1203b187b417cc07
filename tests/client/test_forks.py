"""A client in a forked process: it says what to do, and leaves its parent alone."""

import asyncio
import gc
import os
from contextlib import AsyncExitStack

import pytest
from tests.client.test_asyncio_client import QUICK, Peer, message
from tests.forked_child import in_child

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ForkedClient
from reliable_mq.runtime.loop_thread import LoopThread


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_client_names_both_processes_and_its_parent_goes_on() -> None:
    servers = LoopThread("servers")
    listening = AsyncExitStack()
    made: list[Client] = []

    broker = Peer()

    async def start() -> str:
        broker_address = await listening.enter_async_context(broker.listening())
        return await listening.enter_async_context(Peer(broker_address).listening())

    def child() -> None:
        with pytest.raises(ForkedClient, match=f"started in process {os.getppid()} and is used in"):
            made[0].send(message())
        made[0].close()
        made.clear()
        gc.collect()

    address = servers.run(start())
    made.append(Client(address, settings=QUICK))  # nobody else has it: the child collects it
    made[0].start()
    made[0].send(message())
    in_child(child)
    for _ in range(3):
        made[0].send(message())  # over the connection that the child had a copy of
    assert len(broker.asked) == 1
    made[0].close()
    servers.run(listening.aclose())
    servers.close()


def test_a_forked_asyncio_client_is_refused_too() -> None:
    client = AsyncClient("127.0.0.1:1", settings=QUICK)

    async def use() -> None:
        with pytest.raises(ForkedClient, match="make a client there"):
            await client.send(message())
        with pytest.raises(ForkedClient, match="make a client there"):
            await client.start()

    in_child(lambda: asyncio.run(use()))
