"""The pull consumer for threads: the verbs of `AsyncPullConsumer`, over the client's loop."""

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
    """Gives messages to whoever asks for them. Made by `Client.pull_consumer`.

    First `subscribe`, to share topics with the other members of the group, or `assign`, to read
    queues of one's own choice. Then `poll`, again and again, by one thread at a time: a poll says
    that what the polls before returned is handled. Use it in `with`, or `close` it.

    Every verb raises `UsageError` when the consumer is closed, and all but the first two when it
    reads nothing yet.
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
            returned.extend(await self._twin.poll(timeout, max_messages))
            return returned

        try:
            return self._thread.run(poll())
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
                await self._twin.seek(queue, offset)

    def commit_async(self, offsets: Mapping[MessageQueue, int] | None = None) -> Future[None]:
        """Begin to commit, and return a future of its end, which bears the errors of `commit`."""
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
