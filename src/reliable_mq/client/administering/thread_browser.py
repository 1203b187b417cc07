"""Looks at stored messages for a person, over a loop in a background thread; consumes nothing."""

from collections.abc import Iterator
from typing import Self

from reliable_mq.client.administering import browsing
from reliable_mq.client.administering.asking import Cluster, first_failure
from reliable_mq.client.administering.scanning import Scan
from reliable_mq.client.asyncio_client import DEFAULT_SETTINGS, AsyncClient
from reliable_mq.client.consuming.subscription import DEAD_LETTER_PREFIX
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import ReceivedMessage
from reliable_mq.runtime.loop_thread import LoopThread


class Browser:
    """Reads topics and finds messages, as `with Browser("host:port") as browser`.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: time-outs, and who we are to a cluster that is closed.

    Raises:
        ConfigurationError: when `name_servers` does not read.
    """

    def __init__(self, name_servers: str, settings: ClientSettings = DEFAULT_SETTINGS) -> None:
        self._client = AsyncClient(name_servers, settings=settings)
        self._settings = self._client.settings
        self._routes = self._client.routes

    def __enter__(self) -> Self:
        self._thread = LoopThread("reliable-mq-browser")
        self._thread.run(self._client.start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._thread.run(self._client.close())
        finally:
            self._thread.close()

    def dead_letter_groups(self) -> list[str]:
        """Return the consumer groups that have a dead-letter topic, sorted.

        Raises:
            RemoteError, Unavailable: when no name server tells.
        """
        names = self._thread.run(self._client.run(browsing.topic_names(self._client.name_servers)))
        return [
            name.removeprefix(DEAD_LETTER_PREFIX)
            for name in names
            if name.startswith(DEAD_LETTER_PREFIX)
        ]

    def find(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Return what a topic holds under a message id; see `browsing.find_by_id`."""
        flow = browsing.find_by_id(self._routes, self._settings, topic, message_id)
        return self._thread.run(self._client.run(flow))

    def messages(self, topic: str, since_ms: int = 0) -> Iterator[ReceivedMessage]:
        """Yield what a topic holds, queue after queue, up to what it held when a queue was begun.

        Args:
            topic: the topic.
            since_ms: only what was stored at this time or later, milliseconds since the epoch.

        Raises:
            NoRoute: when the topic is not known, or none of its queues may be read.
            RemoteError, Unavailable: at the end, when a broker did not tell, or not all.
        """
        cluster = Cluster(self._client.name_servers, self._routes, self._settings)
        scan = Scan(cluster, topic, since_ms)
        while (page := self._thread.run(self._client.run(scan.next_page()))) is not None:
            yield from page
        if scan.failures:
            raise first_failure(scan.failures)

    def hand_back(self, group: str, message: ReceivedMessage) -> None:
        """Let a stored message come to one consumer group again; see `browsing.hand_back`."""
        flow = browsing.hand_back(self._routes, self._settings, group, message)
        self._thread.run(self._client.run(flow))
