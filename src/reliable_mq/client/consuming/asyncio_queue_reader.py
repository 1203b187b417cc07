"""Which queues a member reads, and one task for each that pulls.

What happens with the messages is the owner's: `asyncio_push_consumer` hands them to a handler,
`asyncio_pulled_queues` and `asyncio_simple_consumer` to whoever asks for them. Which queues there
are, and what is asked of brokers, is decided by the flows and by `ConsumerGroup`; here is when.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from reliable_mq.client.asyncio_daemon import ShieldedTask, attempt, repeat
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_back, keep_ready, rebalance
from reliable_mq.client.consuming.asyncio_handler_pool import RunsFlows
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.obstacles import Obstacles
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.subscription_version import be_newest
from reliable_mq.client.flow import Flow
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import MessageQueue

log = logging.getLogger(__name__)

T = TypeVar("T")


class FlowRunner(RunsFlows, Protocol):
    """What a member needs of its client."""

    async def heartbeat(self) -> None:
        """Tell the brokers which groups this client belongs to."""

    async def introduce(self) -> None:
        """Tell the brokers the same, and every subscription in full, whatever they know."""

    async def leave_group(self, group: ConsumerGroup) -> None:
        """Take a consumer that has ended out of its group."""


class QueueOwner(Protocol):
    """Whose queues they are, and what it does with them."""

    async def on_assigned(self, queues: Sequence[AssignedQueue]) -> None:
        """Take in that queues are this member's now; they are read when it returns."""

    async def on_revoked(self, queues: Sequence[AssignedQueue]) -> None:
        """Let go of queues that are another member's now. Nothing of them is pulled any more."""

    def on_reset(self, assigned: AssignedQueue) -> None:
        """Read a queue from where the broker demands it: at `assigned.commit_offset`."""

    def may_pull(self, assigned: AssignedQueue) -> bool:
        """Whether more of a queue should be fetched now."""

    def fetched(self) -> None:
        """Look whether there is something to hand out."""


class QueueFetcher:
    """Keeps the queues of one member fetched.

    A group whose client is no member has been given its queues, and shares them with nobody.

    Args:
        client: runs the flows.
        group: what is read.
        owner: takes what comes.
    """

    def __init__(self, client: FlowRunner, group: ConsumerGroup, owner: QueueOwner) -> None:
        self.group = group
        self._client = client
        self._owner = owner
        self._coordinator: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._pullers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._givers: set[asyncio.Task[None]] = set()
        self._keeping = ShieldedTask()
        self._commits = ShieldedTask()
        self._one_commit = asyncio.Lock()
        self._look = asyncio.Event()
        self._has_stopped = False
        self._is_settled = False
        self._introductions = 0  # that a pull has asked for and that have ended
        self._chosen: set[MessageQueue] = set()
        self._obstacles = Obstacles(group.name)

    def start(self) -> None:
        """Begin to read, as soon as there are queues."""
        self._coordinator = asyncio.create_task(self._coordinate())
        if self.group.subscription.ordered:
            what = f"group {self.group.name}: renewing locks"
            renewing = repeat(self.group.settings.lock_renew_seconds, self._keep_ready, what)
            self._renewing = asyncio.create_task(renewing)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Everything that runs."""
        daemons = (self._coordinator, self._renewing)
        running = [daemon for daemon in daemons if daemon is not None]
        return [*running, *self._pullers.values(), *self._givers]

    def stop_fetching(self) -> None:
        """Take no queue and pull nothing any more; locks are still renewed."""
        self._has_stopped = True
        for task in (self._coordinator, *self._pullers.values()):
            if task is not None:
                task.cancel()

    async def stop(self, patience: float = 0.0) -> None:
        """Do nothing more; queues that are leaving have so many seconds to leave."""
        self.stop_fetching()
        if self._givers and patience:
            await asyncio.wait(self._givers, timeout=patience)
        tasks = self.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pullers.clear()
        await self._locks_answered()
        await self._commits.ended()

    def look_soon(self) -> None:
        """See anew, now, which queues are this member's and where they are read."""
        self._look.set()

    def pull_again(self, queue: MessageQueue) -> None:
        """Ask `QueueOwner.may_pull` anew, which said no; room that comes is seen without that."""
        assigned = self.group.find(queue)
        if assigned is not None and assigned.wake_reader is not None:
            assigned.wake_reader()

    def begin_anew(self, assigned: AssignedQueue) -> None:
        """Fetch into `assigned` from now on; a pull under way for its queue is given up."""
        self._stop_pulling(assigned.queue)
        self._start_pulling(assigned)

    async def commit(self, flow: Flow[T]) -> T:
        """Run a flow that commits, behind what is being committed; raises what it raises.

        A broker takes requests by many threads: of two commits under way the older one may come
        last, and set the group back. So who is cancelled here leaves the flow to its end, and a
        queue is given back when that has come.
        """
        return await self._commits.see(self._commit_in_turn(flow))

    def choose(self, queues: Iterable[MessageQueue]) -> None:
        """Read just these queues, in a group that shares them with nobody."""
        self._chosen = set(queues)
        left = [
            self.group.leave(assigned.queue)
            for assigned in self.group.assigned
            if assigned.queue not in self._chosen
        ]
        if left:
            self.let_go(left)
        self._take_chosen()
        self.look_soon()

    def let_go(self, queues: Sequence[AssignedQueue]) -> None:
        """Give up queues that leave the group, once their owner is done with them."""
        for assigned in queues:
            self._stop_pulling(assigned.queue)
        giver = asyncio.create_task(self._give_up(queues))
        self._givers.add(giver)
        giver.add_done_callback(self._givers.discard)

    async def _coordinate(self) -> None:
        settings, name = self.group.settings, self.group.name
        if self.group.is_member:
            await attempt(self._introduce, f"group {name}: the first heartbeat")
        while True:
            self._look.clear()
            self._is_settled = False
            await attempt(self._look_once, f"group {name}: a rebalance")
            pause = (
                settings.rebalance_seconds if self._is_settled else settings.rebalance_retry_seconds
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look.wait()

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

    async def _look_once(self) -> None:
        settled = True
        self._take_chosen()
        if self.group.is_member:
            changes = await self._client.run(rebalance(self.group))
            self._obstacles.note(changes.obstacles)
            self._obstacles.note_missing(changes.missing, asyncio.get_running_loop().time())
            settled = changes.settled
            if changes.left:
                self.let_go(changes.left)
                await asyncio.sleep(0)  # the application hears what goes before what comes
            if changes.added:
                what = f"group {self.group.name}: taking queues"
                await attempt(lambda: self._owner.on_assigned(changes.added), what)
        self._is_settled = await self._keep_ready() and settled

    def _take_chosen(self) -> None:
        for queue in sorted(self._chosen):
            self.group.routes.find(queue.topic)  # it is in use, though nobody shares it out
            if self.group.find(queue) is None:  # else it is read, or not given up yet
                self.group.assign(queue)

    async def _keep_ready(self) -> bool:
        # Who is cancelled here leaves a request for locks under way: see `_locks_answered`.
        well = await self._keeping.see(self._client.run(keep_ready(self.group)))
        for assigned in self.group.assigned:
            if assigned.is_started and not self._is_pulled(assigned.queue):
                self._start_pulling(assigned)
        self._owner.fetched()  # a lock may have come back
        return well

    def _start_pulling(self, assigned: AssignedQueue) -> None:
        if self._has_stopped:  # the application may seek while it is told that queues go
            return
        puller = asyncio.create_task(self._pull(assigned))
        puller.add_done_callback(self._puller_ended)
        self._pullers[assigned.queue] = puller

    def _is_pulled(self, queue: MessageQueue) -> bool:
        puller = self._pullers.get(queue)
        return puller is not None and not puller.done()

    def _puller_ended(self, puller: asyncio.Task[None]) -> None:
        if not puller.cancelled() and (bug := puller.exception()) is not None:
            log.error("group %s: a queue's reading ended badly", self.group.name, exc_info=bug)

    def _stop_pulling(self, queue: MessageQueue) -> None:
        puller = self._pullers.pop(queue, None)
        if puller is not None and puller is not asyncio.current_task():
            puller.cancel()

    async def _pull(self, assigned: AssignedQueue) -> None:
        room = asyncio.Event()
        try:
            await self._pull_with(assigned, room)
        finally:
            assigned.budget.withdraw(room.set)
        if self.group.find(assigned.queue) is assigned and not self.group.is_leaving(
            assigned.queue
        ):
            self._owner.on_reset(assigned)  # the broker wants it read from elsewhere

    async def _pull_with(self, assigned: AssignedQueue, room: asyncio.Event) -> None:
        wanted = self.group.settings.pull_bytes
        while not assigned.leaving:
            if not (
                self._owner.may_pull(assigned)
                and assigned.budget.has_room(assigned.cost, wanted, room.set)
            ):
                room.clear()
                assigned.wake_reader = room.set
                await room.wait()
                assigned.wake_reader = None
                continue
            if not await attempt(lambda: self._pull_once(assigned), f"a pull of {assigned.queue}"):
                await asyncio.sleep(self.group.settings.pull_retry_seconds_max)

    async def _pull_once(self, assigned: AssignedQueue) -> None:
        introductions = self._introductions
        pause = await self._client.run(pull_once(self.group, assigned))
        self._owner.fetched()
        if self.group.is_unheard:
            self.group.is_unheard = False
            if introductions == self._introductions:  # else brokers have heard since it was asked
                await self._client.introduce()
                self._introductions += 1
        if pause:
            await asyncio.sleep(pause)

    async def _give_up(self, queues: Sequence[AssignedQueue]) -> None:
        await attempt(lambda: self._owner.on_revoked(queues), f"group {self.group.name}: giving up")
        for assigned in queues:
            if self.group.find(assigned.queue) is assigned:  # its owner has failed to do so
                self.group.forget(assigned)
        self.look_soon()

    async def give_back_idle(self, assigned: AssignedQueue, ended: asyncio.Event) -> None:
        """Give a queue back when nothing of it is in anybody's hands any more.

        In order that is waited for as long as it takes, because nobody else may begin with an
        ordering key before; else for `close_timeout_seconds`, then the queue's next reader gets
        what runs once more.

        Args:
            assigned: a queue that leaves.
            ended: is set when something has ended.
        """
        timeout = self.group.settings.close_timeout_seconds
        deadline = asyncio.get_running_loop().time() + timeout
        while assigned.running:
            ended.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await ended.wait()
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
        await self._locks_answered()
        await self._commits.ended()
        await self._client.run(give_back(self.group, assigned))
        self.look_soon()

    async def _commit_in_turn(self, flow: Flow[T]) -> T:
        async with self._one_commit:
            return await self._client.run(flow)

    async def _locks_answered(self) -> None:
        """Wait until no request for locks is under way: none may come behind an unlock."""
        if self.group.subscription.ordered:
            await self._keeping.ended()
