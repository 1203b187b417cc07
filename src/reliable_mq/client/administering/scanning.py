"""Scans a topic between two times, page by page and queue by queue.

It receives the topic and two times, and returns pages. In each queue it ends at the queue's end at
its start. So it ends even if producers keep writing to the topic.
"""

from collections.abc import Iterator

from reliable_mq.client.administering.browsing import Page, queue_range, read_page
from reliable_mq.client.administering.cluster_reply import AdminTarget
from reliable_mq.client.flow import Flow
from reliable_mq.errors import NoRoute, ReliableMQError
from reliable_mq.message import MessageQueue, ReceivedMessage


class TopicScan:
    """One scan of a topic. Call `next_page` until it returns None.

    Invariant: no message is returned twice, and messages of one queue are in offset order.

    Args:
        cluster: the cluster to ask.
        topic: its name.
        since_ms: only messages stored at this time or later, milliseconds since the epoch.
        until_ms: only messages stored before this time; None: all.
    """

    def __init__(
        self, cluster: AdminTarget, topic: str, since_ms: int = 0, until_ms: int | None = None
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._since_ms = since_ms
        self._until_ms = until_ms
        self._queues: Iterator[MessageQueue] | None = None
        self._queue: MessageQueue | None = None
        self._offset, self._end = 0, 0
        #: errors of brokers that answered not at all or only in part, by broker name
        self.failures: dict[str, ReliableMQError] = {}

    def next_page(self) -> Flow[list[ReceivedMessage] | None]:
        """Return some of the remaining messages, perhaps an empty list; None at the end.

        A failed broker is recorded in `failures` and left out from then on.

        Raises:
            NoRoute: when the topic is not known, or none of its queues may be read.
            RemoteError, Unavailable: when no name server returns its route.
        """
        if self._queues is None:
            self._queues = iter((yield from self._readable()))
        if self._queue is None:
            self._queue = next(
                (each for each in self._queues if each.broker_name not in self.failures), None
            )
            if self._queue is None:
                return None
        queue = self._queue
        try:
            if self._offset >= self._end:
                self._offset, self._end = yield from self._range(queue)
            page = yield from self._page(queue)
        except ReliableMQError as error:
            self.failures[queue.broker_name] = error
            page = None
        if page is None or page.next_offset <= self._offset or page.next_offset >= self._end:
            self._queue = None
            self._offset = self._end = 0
        else:
            self._offset = page.next_offset
        return page.messages if page is not None else []

    def _readable(self) -> Flow[tuple[MessageQueue, ...]]:
        route = yield from self._cluster.routes.of(self._topic)
        if not route.readable:
            raise NoRoute(
                f"topic {self._topic} has no queue that may be read: give it permission 6"
            )
        return route.readable

    def _range(self, queue: MessageQueue) -> Flow[tuple[int, int]]:
        routes, settings = self._cluster.routes, self._cluster.settings
        first, end = yield from queue_range(routes, settings, queue, self._since_ms)
        return max(first, 0), end

    def _page(self, queue: MessageQueue) -> Flow[Page | None]:
        """Return the messages of the next page within the times; None at the end of the queue."""
        if self._offset >= self._end:
            return None
        routes, settings = self._cluster.routes, self._cluster.settings
        page = yield from read_page(routes, settings, queue, self._offset)
        messages = [each for each in page.messages if each.queue_offset < self._end]
        if self._until_ms is not None:
            late = next((each for each in messages if each.store_time_ms >= self._until_ms), None)
            if late is not None:  # within a queue, store times ascend
                messages = messages[: messages.index(late)]
                return Page(messages, self._end)
        return Page(messages, page.next_offset)
