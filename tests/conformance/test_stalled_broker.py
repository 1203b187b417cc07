"""A broker that stalls: what waits for it is bounded, and stored when it goes on in time."""

import asyncio

import msgspec
import pytest
from tests.client.cluster import QUICK, play
from tests.conformance.clusters import Cluster

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.errors import TooManyInFlight, Unavailable
from reliable_mq.message import Message

CLUSTERS = ("bundled", "apache")
PLACES, SENDS = 100, 2000
LONG = 30.0
SETTINGS = msgspec.structs.replace(QUICK, in_flight_count_max=PLACES)

pytestmark = pytest.mark.processes


def test_no_more_messages_are_on_their_way_to_it_than_there_are_places(
    cluster: Cluster, topic: str
) -> None:
    (master,) = cluster.masters.values()

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=SETTINGS) as client:
            await client.create_topic(topic, 1)
            most = 0

            async def send(timeout: float) -> str:
                nonlocal most
                try:
                    await client.send(Message(topic=topic, body=b"x" * 1024), timeout=timeout)
                except Unavailable as error:
                    return type(error).__name__
                finally:
                    most = max(most, client._engine.in_flight.count)
                return "stored"

            assert await send(LONG) == "stored"
            master.process.pause()
            try:
                first = [asyncio.create_task(send(LONG)) for _ in range(PLACES)]
                late = await asyncio.gather(*(send(0.1) for _ in range(SENDS)))
                assert set(late) == {TooManyInFlight.__name__}
                assert most == client._engine.in_flight.count == PLACES
            finally:
                master.process.resume()
            assert await asyncio.gather(*first) == ["stored"] * PLACES
            assert await send(LONG) == "stored"
            assert (client._engine.in_flight.count, client._engine.in_flight.size) == (0, 0)

    play(scene())
