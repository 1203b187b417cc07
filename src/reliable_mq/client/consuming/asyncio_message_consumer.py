"""The push consumer by the message: pops messages (`asyncio_message_fetcher`) and calls a handler.

Worker tasks and outcomes are those of the push consumer by the queue. Nothing is assigned, locked
or committed: brokers share out single messages.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping

from reliable_mq.client.asyncio_daemon import repeat
from reliable_mq.client.connecting.membership import ConsumerData
from reliable_mq.client.consuming.asyncio_message_fetcher import MessageFetcher
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.asyncio_queue_reader import FlowRunner
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.errors import UsageError
from reliable_mq.message import MessageQueue

AHEAD_SECONDS = 0.25
"""A member has no more messages waiting than its handlers begin in this time."""
AHEAD_COUNT_MAX = 96
"""Most messages that wait for a handler; Apache's `popThresholdForQueue`."""


class AsyncMessageConsumer(AsyncPushConsumer):
    """Passes messages to a handler that no other member of the group gets meanwhile.

    Made by `AsyncClient.consume` with `by="message"`.

    Args:
        client: runs the flows.
        group: the group's state.
        handler: gets the messages.
    """

    def __init__(self, client: FlowRunner, group: ConsumerGroup, handler: AnyHandler) -> None:
        super().__init__(client, group, handler)
        self.fetcher = MessageFetcher(client, group, self)
        self.when_accepted = self.fetcher.when_accepted

    @property
    def queues(self) -> set[MessageQueue]:
        """What this consumer pops from; the queue id -1 stands for all queues of a broker."""
        return self.group.namespace.own_queues(self.fetcher.shares)

    async def start(self) -> None:
        """Begin to pop as soon as the brokers of the topics are known."""
        if self.group.subscription.handling_seconds < math.inf:
            what = f"group {self.group.name}: checking calls"
            looking = repeat(self.pool.check_seconds, self.pool.check, what)
            self._daemons = [asyncio.create_task(looking)]
        self.fetcher.start()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start no handler and pop no messages until `resume`.

        Messages that wait here for a handler go back when half of their invisible time is over.

        Args:
            queues: None; a consumer by the message has no queues of its own.

        Raises:
            UsageError: when queues are given, or this consumer is closed.
        """
        _refuse_queues(queues)
        super().pause()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue after `pause`.

        Args:
            queues: None.

        Raises:
            UsageError: when queues are given, or this consumer is closed.
        """
        _refuse_queues(queues)
        super().resume()
        self.fetcher.wake()

    def rebalance_soon(self) -> None:
        """Look up now where to pop. Other members do not matter."""

    def broker_lost(self, broker_names: Iterable[str]) -> None:  # noqa: ARG002
        """Look up now where to pop; brokers keep leases when a connection ends."""
        self.fetcher.look_soon()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: the broker itself pops from the new offsets on."""

    def consumer_data(self) -> ConsumerData:
        """Return this member's part of a heartbeat."""
        return super().consumer_data() | {"consumeType": "CONSUME_POP"}

    def most_active(self) -> int:
        """Return how many messages may run or wait for a handler here.

        What waits here, another member could handle now. So it is no more than the handlers begin
        soon.
        """
        subscription = self.group.subscription
        calls = subscription.concurrency
        ahead = int(calls * AHEAD_SECONDS / max(self.pool.choice.mean_seconds, 1e-6))
        return calls * subscription.batch + min(ahead, AHEAD_COUNT_MAX)

    async def _close(self) -> None:
        self.fetcher.stop_fetching()
        await self.pool.finish()
        for daemon in self._daemons:
            daemon.cancel()
        await asyncio.gather(*self._daemons, return_exceptions=True)
        await self.pool.close()
        try:
            await self.fetcher.stop()
        finally:
            await self._client.leave_group(self.group)


def _refuse_queues(queues: Iterable[MessageQueue] | None) -> None:
    if queues is not None:
        raise UsageError(
            "a consumer by the message has no queues of its own: pause and resume it as a whole"
        )
