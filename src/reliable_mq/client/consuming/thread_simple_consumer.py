"""The simple consumer for threads: the verbs of `AsyncSimpleConsumer`, over the client's loop."""

import warnings
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
    """Hands out messages and takes an acknowledgement for each. Made by `Client.simple_consumer`.

    What is not acknowledged in its handling time is delivered again, as after a handler that
    failed. Any number of threads may receive and acknowledge. Use it in `with`, or `close` it.
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
        """The queues that this consumer reads now, its retry topic's included."""
        return self._consumer.queues

    def receive(
        self,
        max_messages: int = RECEIVE_COUNT,
        *,
        timeout: float = RECEIVE_SECONDS,
        handling: float = HANDLING_SECONDS,
    ) -> list[ReceivedMessage]:
        """Return messages to be handled and acknowledged, as soon as there are some.

        See `AsyncSimpleConsumer.receive`.
        """
        receiving = self._consumer.receive(max_messages, timeout=timeout, handling=handling)
        return self._thread.run(receiving)

    def ack(self, *messages: ReceivedMessage) -> None:
        """Say that messages are handled: they are not delivered again.

        See `AsyncSimpleConsumer.ack`.
        """
        self._thread.run(self._consumer.ack(*messages))

    def retry(self, message: ReceivedMessage, after: float | None = None) -> None:
        """Say that handling has failed: the message is delivered again, as one attempt more.

        Args:
            message: as `receive` returned it.
            after: seconds until then, None: the usual ones. Without an ordering key the broker
                waits, for the next longer of its delay levels.

        Raises:
            LeaseLost: when it was not in your hands any more.
            UsageError: when the time is negative, or the consumer is closed.
            ConnectionLost: when the consumer is closed meanwhile: it is delivered again.
        """
        self._thread.run(self._consumer.retry(message, after))

    def reject(self, message: ReceivedMessage, reason: str) -> None:
        """Move a message to the group's dead-letter topic, and go on when it is stored there.

        That is tried until it succeeds, also when the thread is interrupted.

        Raises:
            LeaseLost: when it was not in your hands any more.
            UsageError: when the consumer is closed.
            ConnectionLost: when the consumer is closed meanwhile: it is delivered again.
        """
        self._thread.run(self._consumer.reject(message, reason))

    def give_up(self, message: ReceivedMessage, reason: str) -> None:
        """The old name of `reject`."""
        warnings.warn("give_up is an old name: say reject", DeprecationWarning, stacklevel=2)
        self.reject(message, reason)

    def extend(self, message: ReceivedMessage, seconds: float) -> None:
        """Give the handling of a message `seconds` from now on.

        See `AsyncSimpleConsumer.extend`.
        """
        self._thread.run(self._consumer.extend(message, seconds))

    def close(self) -> None:
        """Hand out nothing more, commit, unlock and leave the group.

        See `AsyncSimpleConsumer.close`.
        """
        self._thread.run(self._consumer.close())
