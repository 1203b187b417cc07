"""A client in a forked process: it says what to do, and leaves its parent alone."""

import asyncio
import gc
import os
import sys
import threading

import pytest
import uvloop
from tests.client.servers import Servers
from tests.client.test_asyncio_client import QUICK, message
from tests.forked_child import in_child
from tests.waiting import run_process

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ForkedClient

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


def test_a_forked_client_names_both_processes_and_its_parent_goes_on() -> None:
    made: list[Client] = []

    def child() -> None:
        with pytest.raises(ForkedClient, match=f"started in process {os.getppid()} and is used in"):
            made[0].send(message())
        made[0].close()
        made.clear()
        gc.collect()

    with Servers() as servers:
        made.append(Client(servers.address, settings=QUICK))  # nobody else has it: it is collected
        made[0].start()
        made[0].send(message())
        in_child(child)
        for _ in range(3):
            made[0].send(message())  # over the connection that the child had a copy of
        assert len(servers.broker.asked) == 1
        made[0].close()


def test_a_child_makes_a_client_of_its_own() -> None:
    def child() -> None:
        with Client(servers.address, settings=QUICK) as own:
            own.send(message())

    with Servers() as servers, Client(servers.address, settings=QUICK) as client:
        client.send(message())
        in_child(child)
        client.send(message())
        assert len(servers.broker.asked) == 2


def test_a_client_that_was_not_started_before_the_fork_is_refused_without_leaving_a_thread() -> (
    None
):
    client = Client("127.0.0.1:1", settings=QUICK)

    def child() -> None:
        with pytest.raises(ForkedClient, match="make a client there"):
            client.start()
        assert threading.active_count() == 1

    in_child(child)


def test_a_forked_asyncio_client_is_refused_too() -> None:
    client = AsyncClient("127.0.0.1:1", settings=QUICK)

    async def use() -> None:
        with pytest.raises(ForkedClient, match="make a client there"):
            await client.send(message())
        with pytest.raises(ForkedClient, match="make a client there"):
            await client.start()
        await client.close()

    in_child(lambda: asyncio.run(use()))


def test_the_child_of_a_loop_that_runs_leaves_the_connections_of_that_loop_alone() -> None:
    made: list[AsyncClient] = []

    def child() -> None:
        made.clear()
        gc.collect()

    async def scene(servers: Servers) -> None:
        made.append(AsyncClient(servers.address, settings=QUICK))
        await made[0].start()
        await made[0].send(message())
        in_child(child)
        for _ in range(3):
            await made[0].send(message())
        assert len(servers.broker.asked) == 1
        await made[0].close()

    with Servers() as servers:
        uvloop.run(scene(servers))


ENDS_AS_A_PROGRAM_DOES = """
import os, sys
from reliable_mq import Client, Message

client = Client(sys.argv[1])
client.start()
client.send(Message(topic="t", body=b"1"))
child = os.fork()
if child == 0:
    sys.exit(0)  # not os._exit: the interpreter takes everything apart
status = os.waitpid(child, 0)[1]
for _ in range(3):
    client.send(Message(topic="t", body=b"2"))
client.close()
sys.exit(status)
"""


def test_a_child_that_ends_as_programs_do_takes_nothing_from_its_parent() -> None:
    with Servers() as servers:
        by_name = servers.address.replace("127.0.0.1", "localhost")
        command = [sys.executable, "-W", "ignore", "-c", ENDS_AS_A_PROGRAM_DOES, by_name]

        run_process(command, check=True, timeout=60)

        assert len(servers.broker.asked) == 1
        assert servers.broker.bodies == [b"1", b"2", b"2", b"2"]
