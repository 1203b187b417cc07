"""Brokers and name servers that are found at IPv6 addresses."""

import socket
from pathlib import Path

import pytest
from tests.client.cluster import QUICK, Seen, play
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import Message
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer

pytestmark = pytest.mark.processes


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_broker_with_an_ipv6_address_is_found_at_it(
    tmp_path: Path, topic: str, group: str
) -> None:
    async def scene() -> None:
        options = BrokerOptions(store=tmp_path, host="::1", port=0, name_server_port=0)
        server = BrokerServer(options)
        await server.start()
        assert server.name_server_address.startswith("[::1]:")
        async with AsyncClient(server.name_server_address, settings=QUICK) as client:
            sent = await client.send(Message(topic=topic, body=b"six"))
            seen = Seen()
            consumer = await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await eventually(lambda: seen.bodies == [b"six"])
            assert seen.messages[0].offset_message_id == sent.offset_message_id
            await consumer.close()
        await server.close()

    play(scene())
