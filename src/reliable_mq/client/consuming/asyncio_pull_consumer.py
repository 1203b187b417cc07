"""The pull consumer's verbs on asyncio: the application polls messages and commits offsets."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, Protocol, Self

import msgspec

from reliable_mq.client.checked import checked, checked_verbs
from reliable_mq.client.connecting.membership import Member
from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.consuming.allocation import Allocation, average
from reliable_mq.client.consuming.asyncio_pulled_queues import Callback, PolledClient, PulledQueues
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.filters import check_filters
from reliable_mq.client.consuming.queue_offsets import Place, committed_offsets, offsets_at
from reliable_mq.client.consuming.subscription import Sql, Subscription
from reliable_mq.client.consuming.thread_handling import Threads, is_asynchronous
from reliable_mq.errors import NoRoute, UsageError, closed
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import EVERY_TAG

POLL_SECONDS = 5.0
POLL_COUNT = 32

OnQueues = Callable[[list[MessageQueue]], Any]
"""Called with assigned or revoked queues; async on the client's loop, otherwise in a thread."""


class PullOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a pull consumer.

    Attributes:
        group: the consumer group. Reading begins at its committed offsets.
        from_where: the start in a queue without a committed offset.
        from_time_ms: with "timestamp", milliseconds since the epoch.
        auto_commit: whether to commit handled messages every `offset_commit_seconds` of the
            settings and on closing. None: True with `subscribe`, False with `assign`.
        allocation: how the members share the queues; all must use the same.
    """

    group: str
    from_where: Literal["first", "last", "timestamp"] = "first"
    from_time_ms: int = 0
    auto_commit: bool | None = None
    allocation: Allocation = average


class PullingClient(PolledClient, Protocol):
    """What a pull consumer needs from its client."""

    @property
    def namespace(self) -> Namespace:
        """Translates topic names. All names in here are whole."""

    def polled_group(self, subscription: Subscription, *, is_member: bool) -> ConsumerGroup:
        """Return the state of a group whose consumer the application polls."""

    def join(self, member: Member) -> None:
        """Add a consumer to its group. Brokers learn of it with the next heartbeat."""

    def reader_closed(self, reader: "AsyncPullConsumer") -> None:
        """Forget a consumer that is closed already."""


@checked_verbs
class AsyncPullConsumer:
    """Returns messages when the application polls. Made by `AsyncClient.pull_consumer`.

    First call `subscribe`, to share topics with the other members of the group, or `assign`, to
    read chosen queues. Then call `poll` repeatedly, from one task at a time. Each poll confirms
    that the messages of earlier polls are handled. Use `async with`, or `close` it.

    Every verb raises `UsageError` after `close`, and most also before `subscribe` or `assign`.

    Args:
        client: runs the flows.
        options: how to read.
    """

    def __init__(self, client: PullingClient, options: PullOptions) -> None:
        self._client = client
        self._names = client.namespace
        self._options = options
        self._pulled: PulledQueues | None = None
        self._threads: Threads | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @checked(but=("topics",))
    async def subscribe(
        self,
        topics: Mapping[str, str | Sql],
        *,
        on_assigned: OnQueues | None = None,
        on_revoked: OnQueues | None = None,
    ) -> None:
        """Begin to share topics with the other members of the group.

        Args:
            topics: topic -> tag expression, "*" or "paid || refunded", or `Sql`.
            on_assigned: called with newly assigned queues, before their messages are returned. It
                may `seek`.
            on_revoked: called with queues that another member reads now, or that `close` gives up.
                It may `commit` them for the last time.

        Raises:
            UsageError: when it reads already, or this client already consumes for the group.
            ConfigurationError: when a name is illegal, or a broker rejects an expression.
        """
        self._check_still(None)
        group = self._group(topics, is_member=True)
        await self._client.run(check_filters(group))
        self._check_still(None)
        pulled = PulledQueues(
            self._client,
            group,
            auto_commit=self._options.auto_commit is not False,
            on_assigned=self._called(on_assigned),
            on_revoked=self._called(on_revoked),
        )
        self._client.join(pulled)
        self._pulled = pulled
        pulled.start()

    async def assign(
        self, queues: Iterable[MessageQueue], *, wanted: str | Sql = EVERY_TAG
    ) -> None:
        """Read exactly these queues, independent of members; the group only stores the offsets.

        A second call replaces the queues: common ones continue, others are given up or begun.

        Args:
            queues: the queues.
            wanted: a tag expression or `Sql`, for all of them.

        Raises:
            UsageError: when topics are subscribed, or the consumer is closed meanwhile.
            NoRoute: when a topic or a queue is not known.
            RemoteError, Unavailable: when no name server answers the question.
            ConfigurationError: when the first call has no queue, or a broker rejects the
                expression.
        """
        self._check_open()
        chosen = self._whole(queues)
        topics = dict.fromkeys(sorted({queue.topic for queue in chosen}), wanted)
        known = self._pulled
        if known is not None and known.group.is_member:
            raise UsageError("this consumer subscribes to topics: assign queues with another one")
        group = known.group if known and not chosen else self._group(topics, is_member=False)
        for topic in topics:
            route = await self._client.run(group.routes.of(topic))
            for queue in chosen:
                if queue.topic == topic and queue not in route.readable:
                    raise NoRoute(f"no name server knows {queue}, or it may not be read")
        await self._client.run(check_filters(group))
        self._check_still(known)
        if known is None:
            commits = self._options.auto_commit is True
            known = self._pulled = PulledQueues(self._client, group, auto_commit=commits)
            known.start()
        for topic in topics:  # only now: a refused call must change nothing
            known.group.add_topic_of(topic, wanted)
        known.reader.choose(chosen)

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._names.own_queues(self._our_queues)

    @property
    def paused(self) -> set[MessageQueue]:
        """The queues that are paused."""
        ours = self._pulled.positions.paused if self._pulled is not None else set()
        return self._names.own_queues(ours)

    async def poll(
        self, timeout: float = POLL_SECONDS, max_messages: int = POLL_COUNT
    ) -> list[ReceivedMessage]:
        """Wait for messages and return them, in offset order within each queue.

        Args:
            timeout: seconds to wait for the first message; then the list is empty.
            max_messages: maximum number of messages.

        Raises:
            UsageError: when another poll is in progress.
        """
        return await self._open().poll(timeout, max_messages)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets, and wait until the brokers have stored them.

        Args:
            offsets: the next offset to read for each queue; None: after all messages that polls
                have returned.

        Raises:
            UsageError: when a queue is not assigned to this consumer: another member commits it.
            NoRoute, RemoteError, Unavailable: when a broker does not store it; others have theirs.
        """
        if offsets is not None:
            offsets = {self._names.whole_queue(queue): at for queue, at in offsets.items()}
        await self._open().commit(offsets)

    async def pause(self, *queues: MessageQueue) -> None:
        """Return and fetch no messages of these queues until `resume`; without queues: of all.

        The queues stay assigned, and polls continue with the others.

        Raises:
            UsageError: when a queue is not assigned.
        """
        self._open().positions.pause(self._whole(queues or self.queues))

    async def resume(self, *queues: MessageQueue) -> None:
        """Continue with paused queues; without queues: with all."""
        self._open().resume(self._whole(queues or self.paused))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set the position of a queue to `offset`. Messages fetched before are dropped.

        An offset that the queue does not have becomes the nearest existing one.

        Raises:
            UsageError: when the queue is not assigned, or the offset is negative.
        """
        self._open().seek(self._names.whole_queue(queue), offset)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Seek the first message that each queue still has; without queues: of all.

        Raises:
            UsageError: when a queue is not assigned.
            RemoteError, Unavailable: when a broker fails to answer; then no position has changed.
        """
        await self._seek(queues, "begin")

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Seek the end of each queue; without queues: of all. Errors: see `seek_to_begin`."""
        await self._seek(queues, "end")

    async def seek_to_time(self, when: datetime, *queues: MessageQueue) -> None:
        """Seek the first message of each queue that was stored at this time or later, else its end.

        Args:
            when: a time with a time zone.
            queues: the queues; without queues: all.

        Raises:
            UsageError: when the time has no zone, or a queue is not assigned.
            RemoteError, Unavailable: when a broker fails to answer; then no position has changed.
        """
        await self._seek(queues, _milliseconds(when))

    async def position(self, queue: MessageQueue) -> int:
        """Return the position of a queue: the offset of the next message that a poll returns.

        Raises:
            UsageError: when the queue is not assigned.
            RemoteError, Unavailable: when the broker does not return the committed offset.
        """
        return await self._open().position(self._names.whole_queue(queue))

    async def committed(self, *queues: MessageQueue) -> dict[MessageQueue, int | None]:
        """Return the group's committed offset per queue, None if there is none; no queues: for all.

        Raises:
            NoRoute: when a queue is not known.
            RemoteError, Unavailable: when a broker fails to answer.
        """
        flow = committed_offsets(self._open().group, self._whole(queues or self.queues))
        return self._names.by_own_queue(await self._client.run(flow))

    async def begin_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the first offset that each queue still has. Errors: see `committed`."""
        return await self._offsets_at(queues, "begin")

    async def end_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the offset after the last message of each queue. Errors: see `committed`."""
        return await self._offsets_at(queues, "end")

    async def lag(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the number of messages per queue that no poll has returned; no queues: for all.

        Raises:
            UsageError: when a queue is not assigned.
            RemoteError, Unavailable: when a broker fails to answer.
        """
        lag: dict[MessageQueue, int] = {}
        for queue, end in (await self.end_offsets(*queues)).items():
            if queues or queue in self.queues:  # otherwise it was revoked meanwhile
                lag[queue] = max(0, end - await self.position(queue))
        return lag

    async def close(self) -> None:
        """Give the queues up and leave the group.

        With `auto_commit`, handled messages are committed. Messages of the last poll do not count
        as handled; call `commit` before if they are.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._pulled is not None:
                await self._pulled.close()
        finally:
            self._closed = True
            if self._threads is not None:
                self._threads.close(drops=False)  # callbacks run to their end
            self._client.reader_closed(self)

    async def _seek(self, queues: Iterable[MessageQueue], place: Place) -> None:
        pulled = self._open()
        wanted = self._whole(queues) or self._our_queues
        for queue in wanted:
            pulled.positions.position(queue)  # raises if the queue is not assigned
        offsets = await self._client.run(offsets_at(pulled.group, wanted, place))
        for queue in wanted & self._our_queues:  # a revoked queue has another reader
            pulled.seek(queue, offsets[queue])

    async def _offsets_at(
        self, queues: Iterable[MessageQueue], place: Place
    ) -> dict[MessageQueue, int]:
        wanted = self._whole(queues) or self._our_queues
        flow = offsets_at(self._open().group, wanted, place)
        return self._names.by_own_queue(await self._client.run(flow))

    @property
    def _our_queues(self) -> set[MessageQueue]:
        return self._pulled.positions.queues if self._pulled is not None else set()

    def _whole(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        return {self._names.whole_queue(queue) for queue in queues}

    def _group(self, topics: Mapping[str, str | Sql], *, is_member: bool) -> ConsumerGroup:
        options = self._options
        wanted = Subscription(
            group=options.group,
            topics=topics,
            ordered=False,
            from_where=options.from_where,
            from_time_ms=options.from_time_ms,
            allocation=options.allocation,
            takes_faulty=True,
        )
        return self._client.polled_group(wanted, is_member=is_member)

    def _called(self, callback: OnQueues | None) -> Callback | None:
        if callback is None:
            return None
        called = callback
        if not is_asynchronous(callback):
            self._threads = self._threads or Threads(1, f"rmq-{self._options.group}-queues")
            wrapped = self._threads.wrapped(callback)
            # Not cancelled, even if the caller is: later calls must wait for one that hangs in the
            # thread.
            called = lambda queues: asyncio.shield(wrapped(queues))  # noqa: E731

        async def tell(queues: list[MessageQueue]) -> None:
            await called(sorted(self._names.own_queues(queues)))

        return tell

    def _open(self) -> PulledQueues:
        if self._closed:  # during `close`, the application may still commit revoked queues
            raise closed("consumer")
        if self._pulled is None:
            raise UsageError("this consumer reads nothing yet: subscribe or assign first")
        return self._pulled

    def _check_open(self) -> None:
        if self._closing is not None:
            raise closed("consumer")

    def _check_still(self, known: PulledQueues | None) -> None:
        self._check_open()
        if self._pulled is not known:
            raise UsageError("this consumer already has topics or queues: create another one")


def _milliseconds(when: datetime) -> int:
    """Return milliseconds since the epoch.

    Raises:
        UsageError: when `when` is not a time, or has no time zone.
    """
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise UsageError(f"{when!r} has no time zone: add one")
    return int(when.timestamp() * 1000)
