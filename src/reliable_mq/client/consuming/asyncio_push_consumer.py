"""The push consumer on asyncio: queues are `asyncio_queue_reader`'s, messages are the hands'.

What is committed is decided by the flows; here is when. `asyncio_handler_pool` calls the handler.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence

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
    """Hands the messages of a consumer group to a handler. Made by `AsyncClient.consume`.

    Args:
        client: runs the flows.
        group: what is consumed, and its state.
        handler: gets the messages; a coroutine function runs on the loop, another one in as many
            threads as the subscription has hands.
    """

    def __init__(self, client: FlowRunner, group: ConsumerGroup, handler: AnyHandler) -> None:
        super().__init__(group)
        self._client = client
        self.hands = AsyncHandlerPool(client, group, handler)
        self._daemons: list[asyncio.Task[None]] = []
        self.reader = QueueFetcher(client, group, self)
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read, as soon as a broker assigns queues."""
        settings = self.group.settings
        name = f"group {self.group.name}"
        self._daemons = [
            asyncio.create_task(
                repeat(settings.offset_commit_seconds, self._commit, f"{name}: a commit")
            ),
        ]
        if self.group.subscription.handling_seconds < math.inf:
            looking = repeat(self.hands.check_seconds, self.hands.check, f"{name}: a look at calls")
            self._daemons.append(asyncio.create_task(looking))
        self.reader.start()

    @checked()
    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start nothing more and pull nothing more, until `resume`.

        What runs finishes; what was pulled is kept. Membership, queues and locks stay, so nobody
        else reads them meanwhile.

        Args:
            queues: these only; they stay paused also when they move to another member and come
                back, but are not for that other one. None: all there are and all that come.

        Raises:
            UsageError: when this consumer is closed.
        """
        self._check_open()
        self.group.pause(self._whole(queues))

    @checked()
    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on where `pause` stopped.

        Args:
            queues: these only; a consumer that was paused as a whole stays so. None: all, in
                whatever way they were paused.

        Raises:
            UsageError: when this consumer is closed.
        """
        self._check_open()
        self.group.resume(self._whole(queues))
        for assigned in self.group.assigned:
            self.reader.pull_again(assigned.queue)
        self.hands.wake()

    def lag(self) -> dict[MessageQueue, QueueLag]:
        """Return how far the group is behind in each queue that this member reads.

        Nobody is asked: it is what brokers told with the last pull of each queue. A queue that was
        not pulled yet is left out.

        Raises:
            UsageError: when this consumer is closed.
        """
        self._check_open()
        lag = self.group.lag(asyncio.get_running_loop().time())
        return self.group.namespace.by_own_queue(lag)

    async def close(self) -> None:
        """Start nothing more, let what runs finish, commit, unlock and leave the group.

        Handlers that run longer than the setting `close_timeout_seconds` are cancelled. Their
        messages are delivered again, to another member or later. Who calls it again waits for the
        same end.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.reader.stop_fetching()
        for assigned in self.group.assigned:
            self.group.leave(assigned.queue)
        await self.hands.finish()
        for daemon in self._daemons:
            daemon.cancel()
        await self.hands.close()
        await self.reader.stop()
        await asyncio.gather(*self._daemons, return_exceptions=True)
        try:
            await self._client.run(give_all_back(self.group))
        finally:
            await self._client.leave_group(self.group)

    def rebalance_soon(self) -> None:
        """Compute the share of queues anew, now."""
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
        """Nobody has to be told."""

    async def on_revoked(self, queues: Sequence[AssignedQueue]) -> None:
        """Give queues back when nothing of them runs any more."""
        handled = self.hands.handled
        await asyncio.gather(*(self.reader.give_back_idle(each, handled) for each in queues))

    def on_reset(self, assigned: AssignedQueue) -> None:
        """Give a queue back, to read it from where the broker demands it."""
        self.group.leave(assigned.queue)
        self.reader.let_go([assigned])

    def may_pull(self, assigned: AssignedQueue) -> bool:
        """Whether more of a queue should be fetched now."""
        return assigned.has_room and not assigned.paused

    def fetched(self) -> None:
        """Start handler calls for what is there."""
        self.hands.pump()
