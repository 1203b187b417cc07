"""The pull consumer's verbs on asyncio: the application asks for messages, and says what counts."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, Protocol, Self

import msgspec

from reliable_mq.client.checked import checked, checked_verbs
from reliable_mq.client.connecting.membership import Member
from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.consuming.allocation import Allocation, average
from reliable_mq.client.consuming.asyncio_pulled_queues import PolledClient, PulledQueues, Told
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
"""Told of queues that come or go; a coroutine function on the client's loop, else in a thread."""


class PullOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a pull consumer reads.

    Attributes:
        group: the consumer group, whose committed offsets say where reading begins.
        from_where: where it begins in a queue in which the group has committed nothing.
        from_time_ms: with "timestamp", milliseconds since the epoch.
        auto_commit: whether what is handled is committed every `offset_commit_seconds` of the
            settings and on closing; None: with `subscribe`, and not with `assign`.
        allocation: how the members share the queues; all must use the same.
    """

    group: str
    from_where: Literal["first", "last", "timestamp"] = "first"
    from_time_ms: int = 0
    auto_commit: bool | None = None
    allocation: Allocation = average


class PullingClient(PolledClient, Protocol):
    """What a pull consumer needs of its client."""

    @property
    def namespace(self) -> Namespace:
        """How topics are called outside; all names in here are whole."""

    def polled_group(self, subscription: Subscription, *, is_member: bool) -> ConsumerGroup:
        """Return the state of a group whose messages the application asks for."""

    def join(self, member: Member) -> None:
        """Make a consumer a member of its group; brokers hear of it with the next heartbeat."""

    def reader_closed(self, reader: "AsyncPullConsumer") -> None:
        """Close it no more with the client."""


@checked_verbs
class AsyncPullConsumer:
    """Gives messages to whoever asks for them. Made by `AsyncClient.pull_consumer`.

    First `subscribe`, to share topics with the other members of the group, or `assign`, to read
    queues of one's own choice. Then `poll`, again and again, by one task at a time: a poll says
    that what the polls before returned is handled. Use it as `async with`, or `close` it.

    Every verb raises `UsageError` when the consumer is closed, and all but the first two when it
    reads nothing yet.

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
        """Share topics with the other members of the group, from now on.

        Args:
            topics: topic -> tag expression, "*" or "paid || refunded", or `Sql`.
            on_assigned: told of queues that are read from now on, before anything of them is
                returned; it may `seek`.
            on_revoked: told of queues that another member reads now, or that `close` gives up; it
                may `commit` them for the last time.

        Raises:
            UsageError: when something is read already, or this client consumes for the group.
            ConfigurationError: when a name is illegal, or a broker cannot filter by an expression.
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
        """Read just these queues, whoever else does; the group only says whose offsets count.

        Again: queues that stay go on where they are, others are given up or begun.

        Args:
            queues: which.
            wanted: a tag expression or `Sql`, for all of them.

        Raises:
            UsageError: when topics are subscribed to, or it is closed meanwhile.
            NoRoute: when a topic or a queue is not known.
            RemoteError, Unavailable: when no name server tells.
            ConfigurationError: when no queue is given at first, or a broker cannot filter by the
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
        for topic in topics:  # not before: one that is refused changes nothing
            known.group.also_read(topic, wanted)
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
        """Return messages, those of a queue in its order, as soon as there are some.

        Args:
            timeout: seconds to wait for the first one; then the list is empty.
            max_messages: not more than so many.

        Raises:
            UsageError: when another poll is under way.
        """
        return await self._open().poll(timeout, max_messages)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit how far the group has come, and wait until the brokers have it.

        Args:
            offsets: of each queue the next one to be read, None: behind all that polls have
                returned.

        Raises:
            UsageError: when a queue is not this consumer's: nobody else's offsets are set back.
            NoRoute, RemoteError, Unavailable: when a broker does not take it; others have theirs.
        """
        if offsets is not None:
            offsets = {self._names.whole_queue(queue): at for queue, at in offsets.items()}
        await self._open().commit(offsets)

    async def pause(self, *queues: MessageQueue) -> None:
        """Return nothing of these queues until `resume`, and fetch no more; none given: of all.

        They stay this member's; a poll goes on with the others.

        Raises:
            UsageError: when one is not assigned.
        """
        self._open().positions.pause(self._whole(queues or self.queues))

    async def resume(self, *queues: MessageQueue) -> None:
        """Go on with queues that were paused; none given: with all."""
        self._open().resume(self._whole(queues or self.paused))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next poll return `offset` of a queue; nothing that was fetched before is.

        An offset that the queue does not have becomes the nearest one that it has.

        Raises:
            UsageError: when the queue is not assigned, or the offset negative.
        """
        self._open().seek(self._names.whole_queue(queue), offset)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Seek the first message that each queue still has; none given: of all.

        Raises:
            UsageError: when a queue is not assigned.
            RemoteError, Unavailable: when a broker does not tell; no queue has moved then.
        """
        await self._seek(queues, "begin")

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Seek behind the last message of each queue; none given: of all. Raises as the other."""
        await self._seek(queues, "end")

    async def seek_to_time(self, when: datetime, *queues: MessageQueue) -> None:
        """Seek the first message of each queue that was stored then or later, or else its end.

        Args:
            when: a time with its zone.
            queues: which; none: all.

        Raises:
            UsageError: when the time has no zone, or a queue is not assigned.
            RemoteError, Unavailable: when a broker does not tell; no queue has moved then.
        """
        await self._seek(queues, _milliseconds(when))

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue that a poll returns.

        Raises:
            UsageError: when the queue is not assigned.
            RemoteError, Unavailable: when the broker does not tell what the group has committed.
        """
        return await self._open().position(self._names.whole_queue(queue))

    async def committed(self, *queues: MessageQueue) -> dict[MessageQueue, int | None]:
        """Return what the group has committed in each queue, None: nothing; none given: in all.

        Raises:
            NoRoute: when a queue is not known.
            RemoteError, Unavailable: when a broker does not tell.
        """
        flow = committed_offsets(self._open().group, self._whole(queues or self.queues))
        return self._names.by_own_queue(await self._client.run(flow))

    async def begin_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the first offset that each queue still has. Raises as `committed`."""
        return await self._offsets_at(queues, "begin")

    async def end_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the offset behind the last message of each queue. Raises as `committed`."""
        return await self._offsets_at(queues, "end")

    async def lag(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return how many messages of each queue no poll has returned yet; none given: of all.

        Raises:
            UsageError: when a queue is not assigned.
            RemoteError, Unavailable: when a broker does not tell.
        """
        lag: dict[MessageQueue, int] = {}
        for queue, end in (await self.end_offsets(*queues)).items():
            if queues or queue in self.queues:  # else it has left meanwhile
                lag[queue] = max(0, end - await self.position(queue))
        return lag

    async def close(self) -> None:
        """Give the queues up and leave the group.

        With `auto_commit` what is handled is committed: not what the last poll returned, because
        nobody has said that it is handled. `commit` before says so.
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
                self._threads.close(drops=False)  # it hears of the end, however late
            self._client.reader_closed(self)

    async def _seek(self, queues: Iterable[MessageQueue], place: Place) -> None:
        pulled = self._open()
        wanted = self._whole(queues) or self._our_queues
        for queue in wanted:
            pulled.positions.position(queue)  # it is ours
        offsets = await self._client.run(offsets_at(pulled.group, wanted, place))
        for queue in wanted & self._our_queues:  # one that was taken away has another reader
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

    def _called(self, told: OnQueues | None) -> Told | None:
        if told is None:
            return None
        called = told
        if not is_asynchronous(told):
            self._threads = self._threads or Threads(1, f"rmq-{self._options.group}-queues")
            wrapped = self._threads.wrapped(told)
            # Not cancelled, also when nobody waits: what hangs in the thread, others wait behind.
            called = lambda queues: asyncio.shield(wrapped(queues))  # noqa: E731

        async def tell(queues: list[MessageQueue]) -> None:
            await called(sorted(self._names.own_queues(queues)))

        return tell

    def _open(self) -> PulledQueues:
        if self._closed:  # while it closes, the application may commit what it gives up
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
            raise UsageError("this consumer reads something already: make another one")


def _milliseconds(when: datetime) -> int:
    """Return milliseconds since the epoch.

    Raises:
        UsageError: when `when` is no time, or does not say its zone.
    """
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise UsageError(f"{when!r} has no time zone: which moment is it?")
    return int(when.timestamp() * 1000)
