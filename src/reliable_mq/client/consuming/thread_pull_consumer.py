"""The pull consumer for threads: the verbs of `AsyncPullConsumer`, over the client's loop."""

from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import Any, Self, TypeVar

from reliable_mq.client.consuming.asyncio_pull_consumer import (
    POLL_COUNT,
    POLL_SECONDS,
    AsyncPullConsumer,
    OnQueues,
)
from reliable_mq.client.consuming.subscription import Sql
from reliable_mq.client.documented import documented_by
from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import EVERY_TAG
from reliable_mq.runtime.loop_thread import LoopThread

T = TypeVar("T")


@documented_by(AsyncPullConsumer)
class PullConsumer:
    """Gives messages to whoever asks for them. Made by `Client.pull_consumer`.

    First `subscribe`, to share topics with the other members of the group, or `assign`, to read
    queues of one's own choice. Then `poll`, again and again, by one thread at a time: a poll says
    that what the polls before returned is handled. Use it in `with`, or `close` it.

    Every verb raises `UsageError` when the consumer is closed, and all but the first two when it
    reads nothing yet.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncPullConsumer) -> None:
        self._thread = thread
        self._consumer = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def subscribe(
        self,
        topics: Mapping[str, str | Sql],
        *,
        on_assigned: OnQueues | None = None,
        on_revoked: OnQueues | None = None,
    ) -> None:
        """Share topics with the other members of the group, from now on.

        Args:
            topics: topic -> tag expression, "*" or "paid || refunded", or `Sql`.
            on_assigned: told, in a thread of its own, of queues that are read from now on, before
                anything of them is returned; it may `seek`.
            on_revoked: told likewise of queues that another member reads now, or that `close` gives
                up; it may `commit` them for the last time.

        Raises:
            UsageError: when something is read already, or this client consumes for the group.
            ConfigurationError: when a name is illegal, or a broker cannot filter by an expression.
        """
        self._run(self._consumer.subscribe(topics, on_assigned=on_assigned, on_revoked=on_revoked))

    def assign(self, queues: Iterable[MessageQueue], *, wanted: str | Sql = EVERY_TAG) -> None:
        """Read just these queues, whoever else does; the group only says whose offsets count.

        Again: queues that stay go on where they are, others are given up or begun.

        Args:
            queues: which.
            wanted: a tag expression or `Sql`, for all of them.

        Raises:
            UsageError: when topics are subscribed to.
            NoRoute: when a topic or a queue is not known.
            RemoteError, Unavailable: when no name server tells.
            ConfigurationError: when no queue is given at first, or a broker cannot filter by the
                expression.
        """
        self._run(self._consumer.assign(queues, wanted=wanted))

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._consumer.queues

    @property
    def paused(self) -> set[MessageQueue]:
        """The queues that are paused."""
        return self._consumer.paused

    def poll(
        self, timeout: float = POLL_SECONDS, max_messages: int = POLL_COUNT
    ) -> list[ReceivedMessage]:
        """Return messages, those of a queue in its order, as soon as there are some.

        Args:
            timeout: seconds to wait for the first one; then the list is empty.
            max_messages: not more than so many.

        A signal that interrupts it loses nothing: the next poll returns what this one would have.

        Raises:
            UsageError: when another poll is under way.
        """
        returned: list[ReceivedMessage] = []

        async def poll() -> list[ReceivedMessage]:
            returned.extend(await self._consumer.poll(timeout, max_messages))
            return returned

        try:
            return self._run(poll())
        except ReliableMQError:
            raise
        except BaseException:  # behind the end of `poll`, which may have come all the same
            with suppress(UsageError):  # the client is closed: nobody polls any more
                self._thread.submit(self._take_back(returned))
            raise

    async def _take_back(self, messages: list[ReceivedMessage]) -> None:
        """Go back to messages that nobody has got: with the next poll they would be handled."""
        first: dict[MessageQueue, int] = {}
        for message in messages:
            first.setdefault(message.queue, message.queue_offset)
        for queue, offset in first.items():
            with suppress(UsageError):  # it was taken away: the next one reads it from there
                await self._consumer.seek(queue, offset)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit how far the group has come, and wait until the brokers have it.

        See `AsyncPullConsumer.commit`.
        """
        self._run(self._consumer.commit(offsets))

    def commit_async(self, offsets: Mapping[MessageQueue, int] | None = None) -> Future[None]:
        """Begin to commit, and return a future of its end, which bears the errors of `commit`."""
        return self._thread.submit(self._consumer.commit(offsets))

    def pause(self, *queues: MessageQueue) -> None:
        """Return nothing of these queues until `resume`, and fetch no more; none given: of all.

        See `AsyncPullConsumer.pause`.
        """
        self._run(self._consumer.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with queues that were paused; none given: with all."""
        self._run(self._consumer.resume(*queues))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next poll return `offset` of a queue; nothing that was fetched before is.

        See `AsyncPullConsumer.seek`.
        """
        self._run(self._consumer.seek(queue, offset))

    def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Seek the first message that each queue still has; none given: of all.

        See `AsyncPullConsumer.seek_to_begin`.
        """
        self._run(self._consumer.seek_to_begin(*queues))

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Seek behind the last message of each queue; none given: of all. Raises as the other."""
        self._run(self._consumer.seek_to_end(*queues))

    def seek_to_time(self, when: datetime, *queues: MessageQueue) -> None:
        """Seek the first message of each queue that was stored then or later, or else its end.

        See `AsyncPullConsumer.seek_to_time`.
        """
        self._run(self._consumer.seek_to_time(when, *queues))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue that a poll returns.

        See `AsyncPullConsumer.position`.
        """
        return self._run(self._consumer.position(queue))

    def committed(self, *queues: MessageQueue) -> dict[MessageQueue, int | None]:
        """Return what the group has committed in each queue, None: nothing; none given: in all.

        See `AsyncPullConsumer.committed`.
        """
        return self._run(self._consumer.committed(*queues))

    def begin_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the first offset that each queue still has. Raises as `committed`."""
        return self._run(self._consumer.begin_offsets(*queues))

    def end_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the offset behind the last message of each queue. Raises as `committed`."""
        return self._run(self._consumer.end_offsets(*queues))

    def lag(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return how many messages of each queue no poll has returned yet; none given: of all.

        See `AsyncPullConsumer.lag`.
        """
        return self._run(self._consumer.lag(*queues))

    def close(self) -> None:
        """Give the queues up and leave the group; see `AsyncPullConsumer.close`."""
        self._run(self._consumer.close())

    def _run(self, verb: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(verb)
