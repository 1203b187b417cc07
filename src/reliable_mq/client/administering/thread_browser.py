"""Looks at stored messages for a person, over a loop in a background thread; consumes nothing."""

from collections.abc import Iterator
from typing import Self

from reliable_mq.client.administering import browsing
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import DEAD_LETTER_PREFIX
from reliable_mq.errors import NoRoute
from reliable_mq.message import ReceivedMessage
from reliable_mq.runtime.loop_thread import LoopThread


class Browser:
    """Reads topics and finds messages, as `with Browser("host:port") as browser`.

    Args:
        name_servers: "host:port", several joined by ";".

    Raises:
        ConfigurationError: when `name_servers` does not read.
    """

    def __init__(self, name_servers: str) -> None:
        self._client = AsyncClient(name_servers)
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
            RemoteError, Unavailable: when a broker does not tell.
        """
        route = self._thread.run(self._client.run(self._routes.of(topic)))
        if not route.readable:
            raise NoRoute(f"topic {topic} has no queue that may be read: give it permission 6")
        for queue in route.readable:
            ends = browsing.queue_range(self._routes, self._settings, queue, since_ms)
            offset, end = self._thread.run(self._client.run(ends))
            while offset < end:
                flow = browsing.read_page(self._routes, self._settings, queue, offset)
                page = self._thread.run(self._client.run(flow))
                yield from (each for each in page.messages if each.queue_offset < end)
                if page.next_offset <= offset:
                    break
                offset = page.next_offset

    def hand_back(self, group: str, message: ReceivedMessage) -> None:
        """Let a stored message come to one consumer group again; see `browsing.hand_back`."""
        flow = browsing.hand_back(self._routes, self._settings, group, message)
        self._thread.run(self._client.run(flow))
