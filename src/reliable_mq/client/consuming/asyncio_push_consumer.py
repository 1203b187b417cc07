"""The push consumer on asyncio: reads queues (`asyncio_queue_reader`) and calls a handler.

Flows decide what is committed; this module decides when. `asyncio_handler_pool` has the worker
tasks that call the handler.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence

from reliable_mq.client.asyncio_daemon import repeat
from reliable_mq.client.checked import checked
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_all_back
from reliable_mq.client.consuming.asyncio_handler_pool import AsyncHandlerPool
from reliable_mq.client.consuming.asyncio_queue_reader import FlowRunner, QueueFetcher
from reliable_mq.client.consuming.consumer_group import ConsumerGroup, QueueLag
from reliable_mq.client.consuming.group_member import GroupMember
from reliable_mq.client.consuming.offsets import commit
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.errors import closed
from reliable_mq.message import MessageQueue


class AsyncPushConsumer(GroupMember):
    """Passes the messages of a consumer group to a handler. Made by `AsyncClient.consume`.

    Args:
        client: runs the flows.
        group: the group's state.
        handler: gets the messages. A coroutine function runs on the loop, another one in threads,
            as many as the subscription's concurrency.
    """

    def __init__(self, client: FlowRunner, group: ConsumerGroup, handler: AnyHandler) -> None:
        super().__init__(group)
        self._client = client
        self.pool = AsyncHandlerPool(client, group, handler)
        self._daemons: list[asyncio.Task[None]] = []
        #: starts handler calls for fetched messages
        self.fetched: Callable[[], None] = self.pool.pump
        self.reader = QueueFetcher(client, group, self)
        #: calls a function once when the brokers have accepted this member
        self.when_accepted = self.reader.when_accepted
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read as soon as a broker assigns queues."""
        settings = self.group.settings
        name = f"group {self.group.name}"
        self._daemons = [
            asyncio.create_task(
                repeat(settings.offset_commit_seconds, self._commit, f"{name}: a commit")
            ),
        ]
        if self.group.subscription.handling_seconds < math.inf:
            looking = repeat(self.pool.check_seconds, self.pool.check, f"{name}: checking calls")
            self._daemons.append(asyncio.create_task(looking))
        self.reader.start()

    @checked()
    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start no handler and pull no messages until `resume`.

        Running handlers finish, and pulled messages are kept. Membership, queues and locks stay, so
        no other member reads the queues meanwhile.

        Args:
            queues: only these. A queue stays paused if it moves to another member and comes back,
                but the other member reads it. None: all present and future queues.

        Raises:
            UsageError: when this consumer is closed.
        """
        self._check_open()
        self.group.pause(self._whole(queues))

    @checked()
    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue after `pause`.

        Args:
            queues: only these; this does not end a pause of the whole consumer. None: all, however
                they were paused.

        Raises:
            UsageError: when this consumer is closed.
        """
        self._check_open()
        self.group.resume(self._whole(queues))
        for assigned in self.group.assigned:
            self.reader.pull_again(assigned.queue)
        self.pool.wake()

    def lag(self) -> dict[MessageQueue, QueueLag]:
        """Return how far the group is behind in each queue that this member reads.

        No broker is asked: the values are from the last pull of each queue. Queues without a pull
            are
        omitted.

        Raises:
            UsageError: when this consumer is closed.
        """
        self._check_open()
        lag = self.group.lag(asyncio.get_running_loop().time())
        return self.group.namespace.by_own_queue(lag)

    async def close(self) -> None:
        """Start no more handlers, wait for the running ones, commit, unlock and leave the group.

        Handlers that run longer than the setting `close_timeout_seconds` are cancelled. Their
        messages are delivered again, to another member or later. A second call waits for the
        same end.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.reader.stop_fetching()
        for assigned in self.group.assigned:
            self.group.leave(assigned.queue)
        await self.pool.finish()
        for daemon in self._daemons:
            daemon.cancel()
        await self.pool.close()
        await self.reader.stop()
        await asyncio.gather(*self._daemons, return_exceptions=True)
        try:
            await self._client.run(give_all_back(self.group))
        finally:
            await self._client.leave_group(self.group)

    def rebalance_soon(self) -> None:
        """Rebalance now."""
        self.reader.look_soon()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise closed("consumer")

    def _whole(self, queues: Iterable[MessageQueue] | None) -> list[MessageQueue] | None:
        return None if queues is None else list(map(self.group.namespace.whole_queue, queues))

    async def _commit(self) -> None:
        await self.reader.commit(commit(self.group, self.group.all_queues))

    # The reader's owner ---------------------------------------------------------------------

    async def on_assigned(self, queues: Sequence[AssignedQueue]) -> None:
        """Do nothing: the handler is not informed."""

    async def on_revoked(self, queues: Sequence[AssignedQueue]) -> None:
        """Give queues back when none of their messages runs."""
        handled = self.pool.handled
        await asyncio.gather(*(self.reader.give_back_idle(each, handled) for each in queues))

    def on_reset(self, assigned: AssignedQueue) -> None:
        """Give a queue back, to read it from the broker's offset later."""
        self.group.leave(assigned.queue)
        self.reader.give_up_queues([assigned])

    #: whether to fetch more messages of a queue now
    may_pull = staticmethod(AssignedQueue.may_be_pulled)
