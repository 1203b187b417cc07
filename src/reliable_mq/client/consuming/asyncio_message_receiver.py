"""The simple consumer by the message: brokers keep the leases of what it receives.

Each `receive` pops. Nothing is fetched ahead, so no message waits here while another member could
handle it.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from reliable_mq.client.asyncio_daemon import attempt
from reliable_mq.client.checked import checked
from reliable_mq.client.connecting.membership import ConsumerData
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.asyncio_message_fetcher import MessageFetcher
from reliable_mq.client.consuming.asyncio_queue_reader import introduce
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer, SharingClient
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.leases import Lease, lease_settled
from reliable_mq.client.consuming.obstacles import Obstacles
from reliable_mq.client.consuming.pop_leases import acknowledge, change_invisible
from reliable_mq.client.consuming.pop_shares import Share, shares_of
from reliable_mq.client.consuming.popped_queue import PopLease, PoppedQueue
from reliable_mq.client.consuming.popping import PopReply, pop
from reliable_mq.errors import LeaseLost, ProtocolError, RemoteError, Unavailable, UsageError
from reliable_mq.limits import INVISIBLE_SECONDS_MAX, PULL_COUNT_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import Outcome

log = logging.getLogger(__name__)

TURN_SECONDS = 1.0
"""So long one of several brokers is waited for."""
_RETRY_SECONDS = 0.1


class AsyncMessageReceiver(AsyncSimpleConsumer):
    """Returns messages that no other member gets meanwhile, and takes an acknowledgement for each.

    Made by `AsyncClient.simple_consumer` with `by="message"`.

    Args:
        client: runs the flows.
        group: the group's state.
    """

    def __init__(self, client: SharingClient, group: ConsumerGroup) -> None:
        super().__init__(client, group)
        self._fetcher = MessageFetcher(client, group, self)
        self._shares: list[Share] = []
        self._looked_at = -1e9
        self._turn = 0
        self._ends = asyncio.Event()
        self._introducing: asyncio.Task[bool] | None = None
        self._pops: set[asyncio.Task[PopReply]] = set()

    @property
    def queues(self) -> set[MessageQueue]:
        """What this consumer pops from; the queue id -1 stands for all queues of a broker."""
        shares = {MessageQueue(*share) for share in self._shares}
        return self.group.namespace.own_queues(shares)

    def start(self) -> None:
        """Tell the brokers of this member."""
        name = self.group.name
        obstacles = Obstacles(name, are_declared=self.group.subscription.has_declared_topics)
        what = f"group {name}: the first heartbeat"
        self._introducing = asyncio.create_task(
            attempt(lambda: introduce(self._client, self.group, obstacles), what)
        )

    def most_active(self) -> int:
        """Return how many messages may wait here: none."""
        return 0

    async def _received(
        self, max_messages: int, timeout: float, handling: float
    ) -> list[tuple[AssignedQueue, ReceivedMessage, float]]:
        _check_seconds("handling", handling)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if self._introducing is not None and not self._introducing.done():
            await asyncio.wait([self._introducing], timeout=timeout)
        empty = 0  # shares in a row that have nothing
        while self._closing is None:
            left = deadline - loop.time()
            await self._look()
            if not self._shares:
                if left <= 0:
                    break
                await self._pause(min(left, self.group.settings.rebalance_retry_seconds))
                continue
            self._turn = (self._turn + 1) % len(self._shares)
            share = self._shares[self._turn]
            poll = 0.0
            if empty >= len(self._shares) - 1:  # all others have nothing at the moment
                longest = TURN_SECONDS if len(self._shares) > 1 else 3600.0
                poll = max(0.0, min(left, longest, self.group.settings.pull_suspend_seconds))
            taken = await self._pop(share, min(max_messages, PULL_COUNT_MAX), handling, poll)
            if taken:
                return taken
            empty += 1
            if left <= 0 and empty >= len(self._shares):
                break
        return []

    async def _pop(
        self, share: Share, count: int, handling: float, poll: float
    ) -> list[tuple[AssignedQueue, ReceivedMessage, float]]:
        flow = pop(self.group, share, count, invisible_seconds=handling, poll_seconds=poll)
        popping = asyncio.create_task(self._client.run(flow))
        self._pops.add(popping)
        ending = asyncio.create_task(self._ends.wait())
        try:
            await asyncio.wait([popping, ending], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            popping.add_done_callback(self._abandoned)
            raise
        finally:
            ending.cancel()
            self._pops.discard(popping)
        if not popping.done():
            popping.add_done_callback(self._abandoned)
            return []
        where, now = MessageQueue(*share), asyncio.get_running_loop().time()
        try:
            popped = popping.result()
        except Unavailable:
            self.group.routes.mark_stale(share.topic)
            self._looked_at = -1e9
            await self._pause(_RETRY_SECONDS)
            return []
        except (RemoteError, ProtocolError) as error:
            self.group.pull_faults.failed(where, error, now)
            await self._pause(_RETRY_SECONDS)
            return []
        self.group.pull_faults.works(where, now)
        return self._begun(popped.leases)

    def _begun(
        self, leases: Sequence[PopLease]
    ) -> list[tuple[AssignedQueue, ReceivedMessage, float]]:
        """Return popped messages as running ones of their queues."""
        begun: list[tuple[AssignedQueue, ReceivedMessage, float]] = []
        ends = {(lease.message.queue, lease.message.queue_offset): lease for lease in leases}
        for queue in self._fetcher.add(leases):
            for message in queue.take_ready(len(leases), self._client.lease_clock()):
                lease = ends[message.queue, message.queue_offset]
                begun.append((queue, message, lease.expires))
        return begun

    def _abandoned(self, popping: asyncio.Task[PopReply]) -> None:
        """Give back what a pop brings that nobody waits for any more."""
        if popping.cancelled() or popping.exception() is not None:
            return
        leases = popping.result().leases
        if leases:
            giving = asyncio.create_task(self._fetcher.give_back(leases))
            self._settling.add(giving)
            giving.add_done_callback(self._settling.discard)

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        wait = self.group.settings.rebalance_seconds
        if not self._shares:
            wait = self.group.settings.rebalance_retry_seconds
        if now - self._looked_at < wait:
            return
        self._looked_at = now
        looked = await self._client.run(shares_of(self.group, self._shares))
        self._shares = sorted((set(self._shares) - looked.gone) | looked.shares)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ends.wait()
        except TimeoutError:
            return

    # Ends of messages -----------------------------------------------------------------------

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledge messages: they are handled and will not be delivered again.

        Args:
            messages: messages that `receive` has returned.

        Raises:
            LeaseLost: when the lease of one has ended. All others are acknowledged.
            Unavailable: when a broker gives no answer. Call it again while the lease lasts.
            UsageError: when the consumer is closed, or an argument is no message.
        """
        self._check_open()
        self._end_expired()
        lost: LeaseLost | None = None
        by_broker: dict[str, list[Lease]] = {}
        for message in messages:
            try:
                lease = self._leases.find(message)
            except LeaseLost as error:
                lost = lost or error
                continue
            by_broker.setdefault(lease.message.queue.broker_name, []).append(lease)
        for broker_name, leases in by_broker.items():
            popped = [await self._unchanging(lease) for lease in leases]
            await self._client.run(acknowledge(self.group, broker_name, popped))
            for lease in leases:
                self._forget(lease)
        if lost is not None:
            raise lost

    @checked(but=("message",))
    async def extend(self, message: ReceivedMessage, seconds: float) -> None:
        """Set the handling time of a message to `seconds` from now.

        Raises:
            LeaseLost: when the lease of the message has ended.
            Unavailable: when the broker gives no answer. The old lease counts.
            UsageError: when the time is not positive, or above 12 hours, or the consumer is closed.
        """
        self._check_open()
        _check_seconds("seconds", seconds)
        self._end_expired()
        lease = self._leases.find(message)
        popped = await self._unchanging(lease)
        (error,) = await self._client.run(change_invisible(self.group, [popped], seconds))
        if error is not None:
            raise error
        self._leases.extend(message, popped.expires)
        self._watch()

    async def _settle(self, lease: Lease, outcome: Outcome) -> None:
        await super()._settle(lease, outcome)
        queue, offset = lease.assigned, lease.message.queue_offset
        if isinstance(queue, PoppedQueue) and offset in queue.leases:
            queue.drop(offset)  # the broker did not take the retry: it comes back a little later

    def _expire(self) -> None:
        self._end_expired()
        self._watch()

    def _end_expired(self) -> None:
        """Forget messages whose lease has ended: their brokers deliver them again."""
        for lease in self._leases.expired(self._client.lease_clock()):
            self._drop(lease)

    async def _unchanging(self, lease: Lease) -> PopLease:
        """Return what the broker knows of a lease, when no change of it is on its way."""
        popped = self._popped(lease)
        while popped.is_changing:
            await asyncio.sleep(0.01)
        return popped

    def _popped(self, lease: Lease) -> PopLease:
        queue = lease.assigned
        found = None
        if isinstance(queue, PoppedQueue):
            found = queue.leases.get(lease.message.queue_offset)
        if found is None:
            raise lease_settled(lease.message)
        return found

    def _forget(self, lease: Lease) -> None:
        try:
            self._leases.end(lease.shown)
        except LeaseLost:  # its end came while the broker answered
            return
        self._drop(lease)

    def _drop(self, lease: Lease) -> None:
        queue, offset = lease.assigned, lease.message.queue_offset
        if isinstance(queue, PoppedQueue) and offset in queue.leases:
            queue.drop(offset)

    # The member of a group ------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Do nothing: other members do not matter."""

    def consumer_data(self) -> ConsumerData:
        """Return this member's part of a heartbeat."""
        return super().consumer_data() | {"consumeType": "CONSUME_POP"}

    async def _close(self) -> None:
        self._ends.set()
        if self._timer is not None:
            self._timer.cancel()
        introducing = [self._introducing] if self._introducing is not None else []
        tasks: list[asyncio.Task[Any]] = [*self._settling, *introducing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left: list[PopLease] = []
        for queue in self.group.popped_queues:
            left += [queue.drop(offset) for offset in list(queue.leases)]
            self._leases.forget(queue)
        try:
            await self._fetcher.give_back(left)
            await self._fetcher.stop()
        finally:
            self._client.reader_closed(self)
            await self._client.leave_group(self.group)


def _check_seconds(name: str, seconds: float) -> None:
    if not 0 < seconds <= INVISIBLE_SECONDS_MAX:
        raise UsageError(
            f"{name} is {seconds}: it must be positive, and {INVISIBLE_SECONDS_MAX:g} s at most"
        )
