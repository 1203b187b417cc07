"""The simple consumer for threads: the verbs of `AsyncSimpleConsumer`, run on the client's loop."""

from typing import Self

from reliable_mq.client.consuming.asyncio_simple_consumer import (
    HANDLING_SECONDS,
    RECEIVE_COUNT,
    RECEIVE_SECONDS,
    AsyncSimpleConsumer,
)
from reliable_mq.client.documented import documented_by
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.runtime.loop_thread import LoopThread


@documented_by(AsyncSimpleConsumer)
class SimpleConsumer:
    """Returns messages, and accepts an acknowledgement for each. Made by `Client.simple_consumer`.

    A message that is not acknowledged in its handling time is delivered again, as after a failed
    handler. Any number of threads may receive and acknowledge. Use it in `with`, or `close` it.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncSimpleConsumer) -> None:
        self._thread = thread
        self._consumer = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now, including its retry topic's."""
        return self._consumer.queues

    def receive(
        self,
        max_messages: int = RECEIVE_COUNT,
        *,
        timeout: float = RECEIVE_SECONDS,
        handling: float = HANDLING_SECONDS,
    ) -> list[ReceivedMessage]:
        """Wait for messages to handle and acknowledge, and return them.

        See `AsyncSimpleConsumer.receive`.
        """
        receiving = self._consumer.receive(max_messages, timeout=timeout, handling=handling)
        return self._thread.run(receiving)

    def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledge messages: they are handled and will not be delivered again.

        See `AsyncSimpleConsumer.ack`.
        """
        self._thread.run(self._consumer.ack(*messages))

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
        self._thread.run(self._consumer.retry(message, after))

    def give_up(self, message: ReceivedMessage, reason: str) -> None:
        """Move a message to the group's dead-letter topic, and go on when it is stored there.

        That is tried until it succeeds, also when the thread is interrupted.

        Raises:
            LeaseLost: when it was not in your hands any more.
            UsageError: when the consumer is closed.
            ConnectionLost: when the consumer is closed meanwhile: it is delivered again.
        """
        self._thread.run(self._consumer.give_up(message, reason))

    def extend(self, message: ReceivedMessage, seconds: float) -> None:
        """Set the handling time of a message to `seconds` from now.

        See `AsyncSimpleConsumer.extend`.
        """
        self._thread.run(self._consumer.extend(message, seconds))

    def close(self) -> None:
        """Return no more messages, commit, unlock and leave the group.

        See `AsyncSimpleConsumer.close`.
        """
        self._thread.run(self._consumer.close())
