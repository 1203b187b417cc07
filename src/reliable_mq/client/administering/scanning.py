"""Reading a topic from a time on to another one, page by page, queue after queue.

Receives the topic and two times; hands on pages. It ends where each queue ended when it was begun,
so that a topic that others write to is read to an end, too.
"""

from collections.abc import Iterator

from reliable_mq.client.administering.browsing import Page, queue_range, read_page
from reliable_mq.client.administering.cluster_reply import AdminTarget
from reliable_mq.client.flow import Flow
from reliable_mq.errors import NoRoute, ReliableMQError
from reliable_mq.message import MessageQueue, ReceivedMessage


class TopicScan:
    """One reading of a topic. Call `next_page` until it returns None.

    Invariant: no message comes twice, and those of one queue come in its order.

    Args:
        cluster: where the topic is.
        topic: its name.
        since_ms: only what was stored at this time or later, milliseconds since the epoch.
        until_ms: only what was stored before; None: all.
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
        #: why brokers told nothing, or not all, by their names
        self.failures: dict[str, ReliableMQError] = {}

    def next_page(self) -> Flow[list[ReceivedMessage] | None]:
        """Return some of the messages that are left, perhaps none; None: there are no more.

        A broker that fails is noted in `failures` and left out from there on.

        Raises:
            NoRoute: when the topic is not known, or none of its queues may be read.
            RemoteError, Unavailable: when no name server tells of it.
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
        """Return what of the next page was stored in time; None: nothing of the queue is left."""
        if self._offset >= self._end:
            return None
        routes, settings = self._cluster.routes, self._cluster.settings
        page = yield from read_page(routes, settings, queue, self._offset)
        messages = [each for each in page.messages if each.queue_offset < self._end]
        if self._until_ms is not None:
            late = next((each for each in messages if each.store_time_ms >= self._until_ms), None)
            if late is not None:  # a queue is in the order of its store times
                messages = messages[: messages.index(late)]
                return Page(messages, self._end)
        return Page(messages, page.next_offset)
