"""Measures the lag of a client's groups at intervals, on the client's loop.

It receives a client, and returns sums by group and topic. It sends no requests: it uses brokers'
answers to the last pulls. It must not know how the numbers are used.
"""

import asyncio
import logging
from collections.abc import Callable

from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.observing.middleware import ObservedClient
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.outages import FaultRate

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0

Note = Callable[[str, str, int], None]
"""Takes a consumer group, a topic, and the number of messages that this member has to finish."""


class LagWatch:
    """Measures the lag of a client's members until it is stopped.

    Args:
        client: the client.
        note: called for each group and topic; with 0 when this member stops reading it. An
            exception is logged, and the call is repeated with the next measurement.
        seconds: the interval of measurements.
    """

    def __init__(self, client: ObservedClient, note: Note, seconds: float = LOOK_SECONDS) -> None:
        self._client = client
        self._note = note
        self._seconds = seconds
        self._names = Namespace(client.settings.namespace)
        self._known: set[tuple[str, str]] = set()
        self._seldom = FaultRate()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop measuring: the client closes and reads nothing any more."""
        self._task.cancel()
        try:
            await asyncio.gather(self._task, return_exceptions=True)
        finally:
            for group, topic in self._known:
                self._report(group, topic, 0)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            self.measure_once()

    def measure_once(self) -> None:
        """Measure once, and note each lag."""
        behind: dict[tuple[str, str], int] = {}
        now = asyncio.get_running_loop().time()
        for member in self._client.members:
            group = getattr(member, "group", None)
            if isinstance(group, ConsumerGroup):
                for queue, lag in group.lag(now).items():
                    key = self._names.own_name(group.name), self._names.own_name(queue.topic)
                    behind[key] = behind.get(key, 0) + lag.behind
        for key in self._known - behind.keys():
            behind[key] = 0
        self._known |= behind.keys()
        for (name, topic), count in behind.items():
            self._report(name, topic, count)

    def _report(self, group: str, topic: str, count: int) -> None:
        try:
            self._note(group, topic, count)
        except Exception as error:  # noqa: BLE001 - it is logged
            often = self._seldom.count_fault(type(error), asyncio.get_running_loop().time())
            if often is not None:
                client_events.LAG_NOT_NOTED.log(log, traceback_of=True, group=group, topic=topic)
