"""The push consumer on asyncio: it shares queues with the other members and pulls them.

Which queues are read, from where, and what is committed is decided by the flows and by
`ConsumerGroup`; here is when they are asked. What was pulled is the hands' (`asyncio_hands`).
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from reliable_mq.client.asyncio_daemon import attempt, repeat
from reliable_mq.client.connecting.membership import ConsumerData, consumer_data
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_all_back, give_back, keep_ready, rebalance
from reliable_mq.client.consuming.asyncio_hands import AsyncHands, RunsFlows
from reliable_mq.client.consuming.consumer_group import ConsumerGroup, QueueLag
from reliable_mq.client.consuming.obstacles import Obstacles
from reliable_mq.client.consuming.offsets import commit, status_of
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.subscription_version import be_newest
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import MessageQueue

log = logging.getLogger(__name__)


class FlowRunner(RunsFlows, Protocol):
    """What the consumer needs of its client."""

    async def heartbeat(self) -> None:
        """Tell the brokers which groups this client belongs to."""

    async def introduce(self) -> None:
        """Tell the brokers the same, and every subscription in full, whatever they know."""

    async def leave_group(self, group: ConsumerGroup) -> None:
        """Take a consumer that has ended out of its group."""


class AsyncPushConsumer:
    """Hands the messages of a consumer group to a handler. Made by `AsyncClient.consume`.

    Args:
        client: runs the flows.
        group: what is consumed, and its state.
        handler: gets the messages; a coroutine function runs on the loop, another one in as many
            threads as the subscription has hands.
    """

    def __init__(self, client: FlowRunner, group: ConsumerGroup, handler: AnyHandler) -> None:
        self.group = group
        self._client = client
        self.hands = AsyncHands(client, group, handler)
        self._daemons: list[asyncio.Task[None]] = []
        self._pullers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._givers: set[asyncio.Task[None]] = set()
        self._rebalance = asyncio.Event()
        self._is_settled = False
        self._obstacles = Obstacles(group.name)
        self._closing: asyncio.Task[None] | None = None

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now, its retry topic's included."""
        started = (assigned.queue for assigned in self.group.assigned if assigned.is_started)
        return self.group.namespace.own_queues(started)

    @property
    def group_name(self) -> str:
        """The consumer group."""
        return self.group.name

    def consumer_data(self) -> ConsumerData:
        """Return what brokers are told of this member."""
        return consumer_data(self.group)

    def status(self, topic: str) -> bytes:
        """Return what an administrator is told of the queues of `topic`."""
        return status_of(self.group.all_queues, topic)

    async def start(self) -> None:
        """Begin to read, as soon as a broker assigns queues."""
        settings = self.group.settings
        name = f"group {self.group.name}"
        self._daemons = [
            asyncio.create_task(self._coordinate()),
            asyncio.create_task(
                repeat(settings.lock_renew_seconds, self._keep_ready, f"{name}: renewing locks")
            ),
            asyncio.create_task(
                repeat(settings.offset_commit_seconds, self._commit, f"{name}: a commit")
            ),
        ]
        if self.group.subscription.handling_seconds < math.inf:
            looking = repeat(self.hands.check_seconds, self.hands.check, f"{name}: a look at calls")
            self._daemons.append(asyncio.create_task(looking))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start nothing more and pull nothing more, until `resume`.

        What runs finishes; what was pulled is kept. Membership, queues and locks stay, so nobody
        else reads them meanwhile.

        Args:
            queues: these only; they stay paused also when they move to another member and come
                back, but are not for that other one. None: all there are and all that come.
        """
        self.group.pause(queues)

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on where `pause` stopped.

        Args:
            queues: these only; a consumer that was paused as a whole stays so. None: all, in
                whatever way they were paused.
        """
        self.group.resume(queues)
        for assigned in self.group.assigned:
            if assigned.wake_reader is not None:
                assigned.wake_reader()
        self.hands.wake()

    def lag(self) -> dict[MessageQueue, QueueLag]:
        """Return how far the group is behind in each queue that this member reads.

        Nobody is asked: it is what brokers told with the last pull of each queue. A queue that was
        not pulled yet is left out.
        """
        return self.group.lag(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Start nothing more, let what runs finish, commit, unlock and leave the group.

        Handlers that run longer than the setting `close_timeout` are cancelled; their messages
        are delivered again, to another member or later. Who calls it again waits for the same end.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        coordinator, *others = self._daemons
        coordinator.cancel()
        for puller in self._pullers.values():
            puller.cancel()
        for assigned in self.group.assigned:
            self.group.leave(assigned.queue)
        await self.hands.finish()
        for task in (*self._givers, *others):
            task.cancel()
        await self.hands.close()
        ended = [coordinator, *others, *self._pullers.values(), *self._givers]
        await asyncio.gather(*ended, return_exceptions=True)
        try:
            await self._client.run(give_all_back(self.group))
        finally:
            await self._client.leave_group(self.group)

    def rebalance_soon(self) -> None:
        """Compute the share of queues anew, now."""
        self._rebalance.set()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read queues again from other offsets, as an administrator wants it.

        What runs finishes first; then the queue is given back with the new offset and taken anew.
        """
        for queue, offset in offsets.items():
            assigned = self.group.find(queue)
            if assigned is not None and assigned.is_started and not assigned.leaving:
                assigned.freeze(offset)
                self.group.leave(queue)
                self._leave(assigned)

    def broker_lost(self, broker_names: Iterable[str]) -> None:
        """Start nothing more under locks of brokers whose connection was lost."""
        self.group.broker_lost(broker_names)
        self.rebalance_soon()

    async def _coordinate(self) -> None:
        settings = self.group.settings
        await attempt(self._introduce, f"group {self.group.name}: the first heartbeat")
        while True:
            self._rebalance.clear()
            self._is_settled = False
            await attempt(self._rebalance_once, f"group {self.group.name}: a rebalance")
            pause = (
                settings.rebalance_seconds if self._is_settled else settings.rebalance_retry_seconds
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._rebalance.wait()

    async def _rebalance_once(self) -> None:
        changes = await self._client.run(rebalance(self.group))
        self._obstacles.note(changes.obstacles)
        self._obstacles.note_missing(changes.missing, asyncio.get_running_loop().time())
        for assigned in changes.left:
            self._leave(assigned)
        self._is_settled = await self._keep_ready() and changes.settled

    async def _introduce(self) -> None:
        """Register with the brokers, so that the first rebalance counts this member.

        With a subscription that none of them takes for older than what it knows of the group.
        """
        for topic in self.group.subscription.topics:
            try:
                await self._client.run(self.group.routes.of(topic))
            except ReliableMQError as error:
                log.info("group %s: topic %s is not there yet: %s", self.group.name, topic, error)
        if await self._client.run(be_newest(self.group)):
            await self._client.introduce()
        else:
            await self._client.heartbeat()

    async def _keep_ready(self) -> bool:
        well = await self._client.run(keep_ready(self.group))
        for assigned in self.group.assigned:
            if assigned.is_started and assigned.queue not in self._pullers:
                self._pullers[assigned.queue] = asyncio.create_task(self._pull(assigned))
        self.hands.pump()
        return well

    async def _commit(self) -> None:
        await self._client.run(commit(self.group, self.group.all_queues))

    async def _pull(self, assigned: AssignedQueue) -> None:
        room = asyncio.Event()
        wanted = self.group.settings.pull_size
        while not assigned.leaving:
            if (
                assigned.paused
                or not assigned.has_room
                or not assigned.budget.has_room(assigned.cost, wanted, room.set)
            ):
                room.clear()
                assigned.wake_reader = room.set
                await room.wait()
                assigned.wake_reader = None
                continue
            if not await attempt(lambda: self._pull_once(assigned), f"a pull of {assigned.queue}"):
                await asyncio.sleep(self.group.settings.pull_retry_seconds_max)
        if not self.group.is_leaving(assigned.queue):  # the broker wants it read from elsewhere
            self.group.leave(assigned.queue)
            self._leave(assigned)

    async def _pull_once(self, assigned: AssignedQueue) -> None:
        pause = await self._client.run(pull_once(self.group, assigned))
        self.hands.pump()
        if self.group.is_unheard:
            self.group.is_unheard = False
            await self._client.introduce()
        if pause:
            await asyncio.sleep(pause)

    def _leave(self, assigned: AssignedQueue) -> None:
        puller = self._pullers.pop(assigned.queue, None)
        if puller is not None and puller is not asyncio.current_task():
            puller.cancel()
        giver = asyncio.create_task(self._give_back(assigned))
        self._givers.add(giver)
        giver.add_done_callback(self._givers.discard)

    async def _give_back(self, assigned: AssignedQueue) -> None:
        """Give a queue back when nothing of it runs any more.

        In order that is waited for as long as it takes, because nobody else may begin with an
        ordering key before; else for `close_timeout`, then the queue's next reader gets what runs
        once more.
        """
        timeout = self.group.settings.close_timeout
        deadline = asyncio.get_running_loop().time() + timeout
        handled = self.hands.handled
        while assigned.running:
            handled.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await handled.wait()
            except TimeoutError:
                deadline += timeout
                goes_on = self.group.subscription.ordered
                log.warning(
                    "group %s: %s moves to another member, but %d of its messages are still being"
                    " handled after %g s: %s",
                    *(self.group.name, assigned.queue, assigned.running, timeout),
                    "it waits for them" if goes_on else "they are delivered there again",
                )
                if not goes_on:
                    break
        await self._client.run(give_back(self.group, assigned))
        self.rebalance_soon()
