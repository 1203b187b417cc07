"""The simple consumer for threads: the verbs of `AsyncSimpleConsumer`, run on the client's loop."""

from typing import Self

from reliable_mq import old_names
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
from reliable_mq.client.thread_face import ThreadFace, waits
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.runtime.loop_thread import LoopThread


class SimpleConsumer(ThreadFace[AsyncSimpleConsumer]):
    """Returns messages, and accepts an acknowledgement for each. Made by `Client.simple_consumer`.

    A message that is not acknowledged in its handling time is delivered again, as after a failed
    handler. Any number of threads may receive and acknowledge. Use it in `with`, or `close` it.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncSimpleConsumer) -> None:
        super().__init__(lambda: thread, consumer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now, including its retry topic's."""
        return self._twin.queues

    receive = waits(AsyncSimpleConsumer.receive)
    ack = waits(AsyncSimpleConsumer.ack)
    extend = waits(AsyncSimpleConsumer.extend)
    close = waits(AsyncSimpleConsumer.close)

    def retry(self, message: ReceivedMessage, after: float | None = None) -> None:
        """Report that handling has failed: the message is delivered again, as one more attempt.

        Args:
            message: a message that `receive` has returned.
            after: seconds until then; None: the usual delay. Without an ordering key, the broker
                delays the message, by its next longer delay level.

        Raises:
            LeaseLost: when the lease of the message has ended.
            UsageError: when the time is negative, or the consumer is closed.
            ConnectionLost: when the consumer is closed meanwhile: it is delivered again.
        """
        self._started().run(self._twin.retry(message, after))

    def reject(self, message: ReceivedMessage, reason: str) -> None:
        """Move a message to the group's dead-letter topic, and wait until it is stored there.

        The move is tried until it succeeds, also when the thread is interrupted.

        Raises:
            LeaseLost: when the lease of the message has ended.
            UsageError: when the consumer is closed.
            ConnectionLost: when the consumer is closed meanwhile: it is delivered again.
        """
        self._started().run(self._twin.reject(message, reason))

    def give_up(self, message: ReceivedMessage, reason: str) -> None:
        """The old name of `reject`."""
        old_names.warn_caller(old_names.now_called("SimpleConsumer.give_up", "reject"))
        self.reject(message, reason)
