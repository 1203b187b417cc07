"""Broadcasting against real brokers: everybody gets everything, also after a restart."""

from pathlib import Path

import msgspec
import pytest
from tests.client.cluster import QUICK, Seen, numbered, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import Message
from reliable_mq.outcomes import Retry

pytestmark = pytest.mark.processes


def test_every_member_gets_every_message_and_goes_on_where_it_was(
    cluster: Cluster, topic: str, group: str, tmp_path: Path
) -> None:
    def member(name: str) -> AsyncClient:
        settings = msgspec.structs.replace(QUICK, instance_name=name, offset_folder=str(tmp_path))
        return AsyncClient(cluster.name_server_address, settings=settings)

    wanted = Subscription(group=group, topics={topic: "*"}, broadcasting=True)

    async def scene() -> None:
        async with member("a") as client, member("b") as another:
            await client.create_topic(topic, 2)
            await client.send_many(numbered(topic, 30, keys=5))
            seen = [Seen(Retry(0.01)), Seen()]
            consumer = await client.consume(wanted, seen[0])
            await another.consume(wanted, seen[1])
            await eventually(lambda: len(seen[0].messages) == 31 and len(seen[1].messages) == 30)
            assert {int(body) for body in seen[0].bodies} == set(range(30))
            assert {int(body) for body in seen[1].bodies} == set(range(30))
            with pytest.raises(ConfigurationError, match="instance_name of its own"):
                async with member("a") as third:
                    await third.consume(wanted, Seen())
            await consumer.close()
            await client.send(Message(topic=topic, body=b"30"))
            again = Seen()
            await client.consume(wanted, again)
            await eventually(lambda: again.bodies == [b"30"] and len(seen[1].messages) == 31)
            progress = await client.consumer_progress(group, topic)
            assert {committed for committed, _ in progress.values()} <= {0, -1}

    play(scene())
    host = next(tmp_path.iterdir()).name.partition("@")[0]
    text = (tmp_path / f"{host}@a" / group / "offsets.json").read_text()
    assert f'"topic":"{topic}"' in text
