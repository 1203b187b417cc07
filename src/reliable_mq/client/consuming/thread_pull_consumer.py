"""The pull consumer for threads: the verbs of `AsyncPullConsumer`, run on the client's loop."""

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
    """Returns messages when the application polls. Made by `Client.pull_consumer`.

    First call `subscribe`, to share topics with the other members of the group, or `assign`, to
    read chosen queues. Then call `poll` repeatedly, from one thread at a time. Each poll confirms
    that the messages of earlier polls are handled. Use it in `with`, or `close` it.

    Every verb raises `UsageError` after `close`, and most also before `subscribe` or `assign`.
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
        """Begin to share topics with the other members of the group.

        Args:
            topics: topic -> tag expression, "*" or "paid || refunded", or `Sql`.
            on_assigned: called in a separate thread with newly assigned queues, before their
                messages are returned. It may `seek`.
            on_revoked: called in the same way with queues that another member reads now, or that
                `close` gives up. It may `commit` them for the last time.

        Raises:
            UsageError: when it reads already, or this client already consumes for the group.
            ConfigurationError: when a name is illegal, or a broker rejects an expression.
        """
        self._run(self._consumer.subscribe(topics, on_assigned=on_assigned, on_revoked=on_revoked))

    def assign(self, queues: Iterable[MessageQueue], *, wanted: str | Sql = EVERY_TAG) -> None:
        """Read exactly these queues, independent of members; the group only stores the offsets.

        A second call replaces the queues: common ones continue, others are given up or begun.

        Args:
            queues: the queues.
            wanted: a tag expression or `Sql`, for all of them.

        Raises:
            UsageError: when topics are subscribed.
            NoRoute: when a topic or a queue is not known.
            RemoteError, Unavailable: when no name server answers the question.
            ConfigurationError: when the first call has no queue, or a broker rejects the
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
        """Wait for messages and return them, in offset order within each queue.

        An interrupt by a signal loses no message: the next poll returns them.

        Args:
            timeout: seconds to wait for the first message; then the list is empty.
            max_messages: maximum number of messages.

        Raises:
            UsageError: when another poll is in progress.
        """
        returned: list[ReceivedMessage] = []

        async def poll() -> list[ReceivedMessage]:
            returned.extend(await self._consumer.poll(timeout, max_messages))
            return returned

        try:
            return self._run(poll())
        except ReliableMQError:
            raise
        except BaseException:  # also if `poll` on the loop has ended just before
            with suppress(UsageError):  # the client is closed: there is no further poll
                self._thread.submit(self._take_back(returned))
            raise

    async def _take_back(self, messages: list[ReceivedMessage]) -> None:
        """Seek back to messages that the caller did not get: the next poll would confirm them."""
        first: dict[MessageQueue, int] = {}
        for message in messages:
            first.setdefault(message.queue, message.queue_offset)
        for queue, offset in first.items():
            with suppress(UsageError):  # the queue was revoked: its next reader gets them
                await self._consumer.seek(queue, offset)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets, and wait until the brokers have stored them.

        See `AsyncPullConsumer.commit`.
        """
        self._run(self._consumer.commit(offsets))

    def commit_async(self, offsets: Mapping[MessageQueue, int] | None = None) -> Future[None]:
        """Begin to commit, and return a future that gets the end or the errors of `commit`."""
        return self._thread.submit(self._consumer.commit(offsets))

    def pause(self, *queues: MessageQueue) -> None:
        """Return and fetch no messages of these queues until `resume`; without queues: of all.

        See `AsyncPullConsumer.pause`.
        """
        self._run(self._consumer.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Continue with paused queues; without queues: with all."""
        self._run(self._consumer.resume(*queues))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set the position of a queue to `offset`. Messages fetched before are dropped.

        See `AsyncPullConsumer.seek`.
        """
        self._run(self._consumer.seek(queue, offset))

    def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Seek the first message that each queue still has; without queues: of all.

        See `AsyncPullConsumer.seek_to_begin`.
        """
        self._run(self._consumer.seek_to_begin(*queues))

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Seek the end of each queue; without queues: of all. Errors: see `seek_to_begin`."""
        self._run(self._consumer.seek_to_end(*queues))

    def seek_to_time(self, when: datetime, *queues: MessageQueue) -> None:
        """Seek the first message of each queue that was stored at this time or later, else its end.

        See `AsyncPullConsumer.seek_to_time`.
        """
        self._run(self._consumer.seek_to_time(when, *queues))

    def position(self, queue: MessageQueue) -> int:
        """Return the position of a queue: the offset of the next message that a poll returns.

        See `AsyncPullConsumer.position`.
        """
        return self._run(self._consumer.position(queue))

    def committed(self, *queues: MessageQueue) -> dict[MessageQueue, int | None]:
        """Return the group's committed offset per queue, None if there is none; no queues: for all.

        See `AsyncPullConsumer.committed`.
        """
        return self._run(self._consumer.committed(*queues))

    def begin_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the first offset that each queue still has. Errors: see `committed`."""
        return self._run(self._consumer.begin_offsets(*queues))

    def end_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the offset after the last message of each queue. Errors: see `committed`."""
        return self._run(self._consumer.end_offsets(*queues))

    def lag(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the number of messages per queue that no poll has returned; no queues: for all.

        See `AsyncPullConsumer.lag`.
        """
        return self._run(self._consumer.lag(*queues))

    def close(self) -> None:
        """Give the queues up and leave the group; see `AsyncPullConsumer.close`."""
        self._run(self._consumer.close())

    def _run(self, verb: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(verb)
