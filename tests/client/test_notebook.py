"""Where a loop runs already: in a notebook's cells, and in a coroutine that calls the sync face."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.client.servers import Servers
from tests.client.test_asyncio_client import QUICK, message

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.thread_client import Client

if TYPE_CHECKING:
    from nbformat import NotebookNode

CELLS = (
    "from reliable_mq import AsyncClient, Client, Message",
    """
client = Client(ADDRESS)
client.start()
print(client.send(Message(topic="t", body=b"from a cell")).queue.topic)
""",
    """
async with AsyncClient(ADDRESS) as own:
    print((await own.send(Message(topic="t", body=b"awaited in a cell"))).queue.topic)
""",
    'client.send_async(Message(topic="t", body=b"from a later cell")).result()\nclient.close()',
)


def written(*cells: str) -> "NotebookNode":
    """Return a notebook with these cells."""
    # Not above: to import it takes two seconds, and each process of pytest-xdist collects all.
    from nbformat.v4 import new_code_cell, new_notebook

    codes = [new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
    notebook: NotebookNode = new_notebook(cells=codes)  # type: ignore[no-untyped-call]
    return notebook


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_both_faces_work_in_the_cells_of_a_notebook() -> None:
    from nbclient import NotebookClient

    with Servers() as servers:
        notebook = written(f"ADDRESS = {servers.address!r}", *CELLS)
        NotebookClient(notebook, timeout=60).execute()
        printed = [output["text"] for cell in notebook.cells for output in cell.outputs]
        assert printed == ["t\n", "t\n"]
        assert servers.broker.bodies == [
            b"from a cell",
            b"awaited in a cell",
            b"from a later cell",
        ]


def test_the_synchronous_face_works_inside_a_loop_that_runs() -> None:
    async def scene(address: str) -> None:
        with Client(address, settings=QUICK) as client:
            client.send(message())  # holds this loop up, and only this one
            await asyncio.gather(*(asyncio.to_thread(client.send, message()) for _ in range(3)))
            await asyncio.wrap_future(client.send_async(message()))
        async with AsyncClient(address, settings=QUICK) as client_here:
            await client_here.send(message())

    with Servers() as servers:
        asyncio.run(scene(servers.address))
        assert len(servers.broker.bodies) == 6
