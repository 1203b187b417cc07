"""A member of a group whose handler kills the process.

python -m tests.conformance.doomed_consumer NAME_SERVERS TOPIC GROUP
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from tests.client.cluster import QUICK

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Outcome


async def dies(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


async def consume(name_servers: str, topic: str, group: str) -> None:
    async with AsyncClient(name_servers, settings=QUICK) as client:
        wanted = Subscription(group=group, topics={topic: "*"}, ordered=False)
        await client.consume(wanted, dies)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
