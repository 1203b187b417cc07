"""The pull consumer for threads: the verbs of `AsyncPullConsumer`, run on the client's loop."""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Self

from reliable_mq.client.consuming.asyncio_pull_consumer import (
    POLL_COUNT,
    POLL_SECONDS,
    AsyncPullConsumer,
    OnQueues,
)
from reliable_mq.client.consuming.subscription import Sql
from reliable_mq.client.thread_face import ThreadFace, waits
from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.runtime.loop_thread import LoopThread


class PullConsumer(ThreadFace[AsyncPullConsumer]):
    """Returns messages when the application polls. Made by `Client.pull_consumer`.

    First call `subscribe`, to share topics with the other members of the group, or `assign`, to
    read chosen queues. Then call `poll` repeatedly, from one thread at a time. Each poll confirms
    that the messages of earlier polls are handled. Use it in `with`, or `close` it.

    Every verb raises `UsageError` after `close`, and most also before `subscribe` or `assign`.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncPullConsumer) -> None:
        super().__init__(lambda: thread, consumer)
        self._thread = thread

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
        verb = self._twin.subscribe(topics, on_assigned=on_assigned, on_revoked=on_revoked)
        self._thread.run(verb)

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._twin.queues

    @property
    def paused(self) -> set[MessageQueue]:
        """The queues that are paused."""
        return self._twin.paused

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
            returned.extend(await self._twin.poll(timeout, max_messages))
            return returned

        try:
            return self._thread.run(poll())
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
                await self._twin.seek(queue, offset)

    def commit_async(self, offsets: Mapping[MessageQueue, int] | None = None) -> Future[None]:
        """Begin to commit, and return a future that gets the end or the errors of `commit`."""
        return self._thread.submit(self._twin.commit(offsets))

    assign = waits(AsyncPullConsumer.assign)
    commit = waits(AsyncPullConsumer.commit)
    pause = waits(AsyncPullConsumer.pause)
    resume = waits(AsyncPullConsumer.resume)
    seek = waits(AsyncPullConsumer.seek)
    seek_to_begin = waits(AsyncPullConsumer.seek_to_begin)
    seek_to_end = waits(AsyncPullConsumer.seek_to_end)
    seek_to_time = waits(AsyncPullConsumer.seek_to_time)
    position = waits(AsyncPullConsumer.position)
    committed = waits(AsyncPullConsumer.committed)
    begin_offsets = waits(AsyncPullConsumer.begin_offsets)
    end_offsets = waits(AsyncPullConsumer.end_offsets)
    lag = waits(AsyncPullConsumer.lag)
    close = waits(AsyncPullConsumer.close)
