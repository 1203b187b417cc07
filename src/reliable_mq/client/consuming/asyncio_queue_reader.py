"""The queue reader of a member: takes and gives back queues, and runs one pull task per queue.

It gives fetched messages to its owner. `asyncio_push_consumer` passes them to a handler;
`asyncio_pulled_queues` and `asyncio_simple_consumer` return them to callers. Flows and
`ConsumerGroup` decide about queues and requests to brokers; this module decides when.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from reliable_mq.client.asyncio_daemon import ShieldedTask, attempt, repeat
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_back, keep_ready, rebalance
from reliable_mq.client.consuming.asyncio_handler_pool import RunsFlows
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.obstacles import Obstacles
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.subscription_version import raise_version
from reliable_mq.client.flow import Flow
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import MessageQueue
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import queue_facts
from reliable_mq.telemetry.outages import level_of

log = logging.getLogger(__name__)

T = TypeVar("T")


class FlowRunner(RunsFlows, Protocol):
    """What a member needs from its client."""

    async def heartbeat(self) -> None:
        """Send heartbeats with this client's groups to the brokers."""

    async def send_full_heartbeats(self) -> None:
        """Send full heartbeats to the brokers, whatever they know already."""

    async def leave_group(self, group: ConsumerGroup) -> None:
        """Remove an ended consumer from its group."""


class QueueOwner(Protocol):
    """The owner of the queues: receives assigned and revoked queues, and fetched messages."""

    async def on_assigned(self, queues: Sequence[AssignedQueue]) -> None:
        """Accept newly assigned queues. They are read after this returns."""

    async def on_revoked(self, queues: Sequence[AssignedQueue]) -> None:
        """Give up revoked queues. They are not pulled any more."""

    def on_reset(self, assigned: AssignedQueue) -> None:
        """Continue to read a queue at the broker's offset, `assigned.commit_offset`."""

    def may_pull(self, assigned: AssignedQueue) -> bool:
        """Whether to fetch more messages of a queue now."""

    def fetched(self) -> None:
        """Check for fetched messages."""


class Acceptance:
    """Functions to call once, when the brokers have accepted a member."""

    def __init__(self) -> None:
        self._was_accepted = False
        self._told: list[Callable[[], None]] = []

    def when(self, call: Callable[[], None]) -> None:
        """Call once when the brokers have accepted this member: now, or on the client's loop.

        Topics that do not exist yet are no reason to wait.
        """
        self._told.append(call)
        if self._was_accepted:
            self.accept()

    def accept(self) -> None:
        """Note that the brokers have accepted the member."""
        self._was_accepted = True
        with contextlib.suppress(IndexError):  # two threads may be here: each call is popped once
            while self._told:
                self._told.pop()()


async def introduce(client: FlowRunner, group: ConsumerGroup, obstacles: Obstacles) -> None:
    """Send heartbeats to the brokers, so that they know a member before it reads.

    The subscription gets a version that no broker rejects as older than its own.
    """
    for topic in group.subscription.topics:
        try:
            await client.run(group.routes.of(topic))
        except ReliableMQError as error:
            client_events.TOPIC_NOT_THERE.log(
                log, level=level_of(error), group=group.name, topic=topic, error=error
            )
            obstacles.note_absent(topic)
    if await client.run(raise_version(group)):
        await client.send_full_heartbeats()
    else:
        await client.heartbeat()


class QueueFetcher:
    """Fetches messages of one member's queues.

    If the client is not a member of the group, it reads given queues and shares them with no one.

    Args:
        client: runs the flows.
        group: the group's state.
        owner: receives queues and messages.
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
        self._acceptance = Acceptance()
        #: calls a function once when the brokers have accepted this member
        self.when_accepted = self._acceptance.when
        self._introductions = 0  # finished introductions that a pull had requested
        self._chosen: set[MessageQueue] = set()
        self._obstacles = Obstacles(group.name, are_declared=group.subscription.has_declared_topics)

    def start(self) -> None:
        """Begin to read as soon as there are queues."""
        self._coordinator = asyncio.create_task(self._coordinate())
        if self.group.subscription.ordered:
            what = f"group {self.group.name}: renewing locks"
            renewing = repeat(self.group.settings.lock_renew_seconds, self._keep_ready, what)
            self._renewing = asyncio.create_task(renewing)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """All running tasks."""
        daemons = (self._coordinator, self._renewing)
        running = [daemon for daemon in daemons if daemon is not None]
        return [*running, *self._pullers.values(), *self._givers]

    def stop_fetching(self) -> None:
        """Take no more queues and stop pulling; locks are still renewed."""
        self._has_stopped = True
        for task in (self._coordinator, *self._pullers.values()):
            if task is not None:
                task.cancel()

    async def stop(self, patience: float = 0.0) -> None:
        """Stop everything. Wait up to `patience` seconds for revoked queues to be given back."""
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
        """Rebalance now, and look up where new queues are read."""
        self._look.set()

    def pull_again(self, queue: MessageQueue) -> None:
        """Call `QueueOwner.may_pull` again after it returned False. Not needed for new room."""
        assigned = self.group.find(queue)
        if assigned is not None and assigned.wake_reader is not None:
            assigned.wake_reader()

    def restart(self, assigned: AssignedQueue) -> None:
        """Fetch into `assigned` from now on; drop a pull in progress for its queue."""
        self._stop_pulling(assigned.queue)
        self._start_pulling(assigned)

    async def commit(self, flow: Flow[T]) -> T:
        """Run a flow that commits, after the commit in progress. Raises the flow's errors.

        A broker handles requests in many threads. Of two commits in flight, the older one might be
        handled last and set the group back. So a cancelled caller does not cancel the flow, and a
        queue is given back only after it.
        """
        return await self._commits.result(self._commit_in_turn(flow))

    def choose(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, in a group that shares them with no one."""
        self._chosen = set(queues)
        left = [
            self.group.leave(assigned.queue)
            for assigned in self.group.assigned
            if assigned.queue not in self._chosen
        ]
        if left:
            self.give_up_queues(left)
        self._take_chosen()
        self.look_soon()

    def give_up_queues(self, queues: Sequence[AssignedQueue]) -> None:
        """Give up revoked queues after their owner has finished with them."""
        for assigned in queues:
            self._stop_pulling(assigned.queue)
        giver = asyncio.create_task(self._give_up(queues))
        self._givers.add(giver)
        giver.add_done_callback(self._givers.discard)

    async def _coordinate(self) -> None:
        settings, name = self.group.settings, self.group.name
        if self.group.is_member:
            await attempt(
                lambda: introduce(self._client, self.group, self._obstacles),
                f"group {name}: the first heartbeat",
            )
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

    async def _look_once(self) -> None:
        settled = True
        self._take_chosen()
        if self.group.is_member:
            changes = await self._client.run(rebalance(self.group))
            self._obstacles.log_repeated(changes.obstacles)
            self._obstacles.note_missing(changes.missing, asyncio.get_running_loop().time())
            self._obstacles.note_idle(changes.idle, ordered=self.group.subscription.ordered)
            if changes.accepted:
                self._acceptance.accept()
            settled = changes.settled
            if changes.left:
                self.give_up_queues(changes.left)
                await asyncio.sleep(0)  # callbacks for revoked queues come first
            if changes.added:
                what = f"group {self.group.name}: taking queues"
                await attempt(lambda: self._owner.on_assigned(changes.added), what)
        self._is_settled = await self._keep_ready() and settled

    def _take_chosen(self) -> None:
        for queue in sorted(self._chosen):
            self.group.routes.find(queue.topic)  # marks the route as used, as no rebalance does it
            if self.group.find(queue) is None:  # otherwise it is read already, or not given up yet
                self.group.assign(queue)

    async def _keep_ready(self) -> bool:
        # If the caller is cancelled, the request for locks continues: see `_locks_answered`.
        well = await self._keeping.result(self._client.run(keep_ready(self.group)))
        for assigned in self.group.assigned:
            if assigned.is_started and not self._is_pulled(assigned.queue):
                self._start_pulling(assigned)
        self._owner.fetched()  # a lock may have been granted again
        return well

    def _start_pulling(self, assigned: AssignedQueue) -> None:
        if self._has_stopped:  # the application may seek in its callback for revoked queues
            return
        puller = asyncio.create_task(self._pull(assigned))
        puller.add_done_callback(self._puller_ended)
        self._pullers[assigned.queue] = puller

    def _is_pulled(self, queue: MessageQueue) -> bool:
        puller = self._pullers.get(queue)
        return puller is not None and not puller.done()

    def _puller_ended(self, puller: asyncio.Task[None]) -> None:
        if not puller.cancelled() and (bug := puller.exception()) is not None:
            client_events.QUEUE_READING_BROKEN.log(log, traceback_of=bug, group=self.group.name)

    def _stop_pulling(self, queue: MessageQueue) -> None:
        puller = self._pullers.pop(queue, None)
        if puller is not None and puller is not asyncio.current_task():
            puller.cancel()

    async def _pull(self, assigned: AssignedQueue) -> None:
        room = asyncio.Event()
        queue = assigned.queue
        where = f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}"
        what = f"group {self.group.name}: a pull of {where}"
        try:
            while not await attempt(lambda: self._pull_with(assigned, room), what):
                await asyncio.sleep(self.group.settings.pull_retry_seconds_max)
        finally:
            assigned.budget.cancel_wait(room.set)
        if self.group.find(assigned.queue) is assigned and not self.group.is_leaving(
            assigned.queue
        ):
            self._owner.on_reset(assigned)  # the broker has set another offset

    async def _pull_with(self, assigned: AssignedQueue, room: asyncio.Event) -> None:
        wanted, budget = self.group.settings.pull_bytes, assigned.budget
        ample = budget.ample(wanted)
        has_waited = True  # then it may stand in a line of the budget
        while not assigned.leaving:
            is_ample = not has_waited and budget.held + budget.asked <= ample
            if self._owner.may_pull(assigned) and (
                is_ample or budget.has_room(assigned.cost, wanted, room.set)
            ):
                has_waited = False
                introductions = self._introductions
                pause = await self._client.run(pull_once(self.group, assigned))
                answered = not assigned.failures and assigned.end_offset >= 0
                if self._obstacles.absent and answered:
                    self._obstacles.note_read(assigned.queue.topic)
                self._owner.fetched()
                if self.group.is_unheard:
                    await self._introduce_again(introductions)
                if pause:
                    await asyncio.sleep(pause)
                continue
            room.clear()
            assigned.wake_reader = room.set
            await room.wait()
            assigned.wake_reader = None
            has_waited = True

    async def _introduce_again(self, before: int) -> None:
        """Introduce this member, unless an introduction has ended since the pull began.

        `before`: how many had ended when the pull began.
        """
        self.group.is_unheard = False
        if before == self._introductions:
            await self._client.send_full_heartbeats()
            self._introductions += 1

    async def _give_up(self, queues: Sequence[AssignedQueue]) -> None:
        await attempt(lambda: self._owner.on_revoked(queues), f"group {self.group.name}: giving up")
        for assigned in queues:
            if self.group.find(assigned.queue) is assigned:  # the owner has failed to give it back
                self.group.forget(assigned)
        self.look_soon()

    async def give_back_idle(self, assigned: AssignedQueue, ended: asyncio.Event) -> None:
        """Give a queue back when none of its messages is in use.

        With ordering, this waits without limit: no other member may start an ordering key before.
        Without ordering, it waits for `close_timeout_seconds`. Then the queue's next reader gets
        the running messages a second time.

        Args:
            assigned: a revoked queue.
            ended: set after each message that ends.
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
                client_events.QUEUE_MOVES_LATE.log(
                    log,
                    group=self.group.name,
                    **queue_facts(assigned.queue),
                    messages=assigned.running,
                    seconds=timeout,
                    consequence="it waits for them"
                    if goes_on
                    else "they are delivered there again",
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
        """Wait until no request for locks is in flight: none may be handled after an unlock."""
        if self.group.subscription.ordered:
            await self._keeping.ended()
