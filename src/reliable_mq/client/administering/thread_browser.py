"""Reads stored messages for a person, on a loop in a background thread. It consumes nothing."""

from collections.abc import Iterator
from typing import Self

import msgspec

from reliable_mq.client.administering import browsing
from reliable_mq.client.administering.cluster_reply import AdminTarget, first_failure
from reliable_mq.client.administering.own_names import own_of, whole_message
from reliable_mq.client.administering.scanning import TopicScan
from reliable_mq.client.asyncio_client import DEFAULT_SETTINGS, AsyncClient
from reliable_mq.client.sending.asyncio_sending import engine_of
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.wire.properties import RETRY_TOPIC


class Browser:
    """Reads topics and finds messages. Use it as `with Browser("host:port") as browser`.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: timeouts, and the account for a cluster with access control.

    Raises:
        ConfigurationError: when `name_servers` cannot be parsed.
    """

    def __init__(self, name_servers: str, settings: ClientSettings = DEFAULT_SETTINGS) -> None:
        self._client = AsyncClient(name_servers, settings=settings)
        self._engine = engine = engine_of(self._client)
        self._settings, self._routes, self._names = (
            engine.settings,
            engine.routes,
            engine.namespace,
        )

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
        """Return the consumer groups of the namespace that have a dead-letter topic, sorted.

        Raises:
            RemoteError, Unavailable: when no name server answers.
        """
        names = self._thread.run(self._engine.run(browsing.topic_names(self._engine.name_servers)))
        groups = (
            name.removeprefix(DEAD_LETTER_PREFIX)
            for name in names
            if name.startswith(DEAD_LETTER_PREFIX)
        )
        return sorted(own_of(self._names, groups))

    def find(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Return a topic's messages with a message id; see `browsing.find_by_id`."""
        whole = self._names.full_name(topic)
        flow = browsing.find_by_id(self._routes, self._settings, whole, message_id)
        return list(map(self._own, self._thread.run(self._engine.run(flow))))

    def messages(self, topic: str, since_ms: int = 0) -> Iterator[ReceivedMessage]:
        """Yield the messages of a topic, queue by queue, up to each queue's end at its start.

        Args:
            topic: the topic.
            since_ms: only messages stored at this time or later, milliseconds since the epoch.

        Raises:
            NoRoute: when the topic is not known, or none of its queues may be read.
            RemoteError, Unavailable: at the end, if a broker failed to return all messages.
        """
        cluster = AdminTarget(self._engine.name_servers, self._routes, self._settings)
        scan = TopicScan(cluster, self._names.full_name(topic), since_ms)
        while (page := self._thread.run(self._engine.run(scan.next_page()))) is not None:
            yield from map(self._own, page)
        if scan.failures:
            raise first_failure(scan.failures)

    def redeliver(self, group: str, message: ReceivedMessage) -> None:
        """Deliver a stored message again to one consumer group; see `browsing.redeliver`."""
        names = self._names
        whole = whole_message(names, message)
        flow = browsing.redeliver(self._routes, self._settings, names.full_name(group), whole)
        self._thread.run(self._engine.run(flow))

    def _own(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return a message with the application's names, also for its original topic."""
        own = self._names.own_message(message)
        origin = message.properties.get(RETRY_TOPIC)
        if origin is None:
            return own
        properties = {**message.properties, RETRY_TOPIC: self._names.own_name(origin)}
        return msgspec.structs.replace(own, properties=properties)
