"""The push consumer on asyncio: one task per queue that pulls, one per handler call that runs.

Which messages may run, what becomes of them and what is committed is decided by the flows and by
`ConsumerGroup`; here is when they are asked.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar, cast

from reliable_mq.client.asyncio_daemon import attempt, repeat
from reliable_mq.client.connecting.membership import ConsumerData, consumer_data
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_all_back, give_back, keep_ready, rebalance
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.hands import PATIENCE_SECONDS, Hands
from reliable_mq.client.consuming.obstacles import Obstacles
from reliable_mq.client.consuming.offsets import commit, status_of
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.settling import settle
from reliable_mq.client.consuming.subscription import (
    Consumed,
    Handler,
    Later,
    Outcome,
    checked_outcomes,
)
from reliable_mq.client.consuming.thread_handling import AnyHandler, Threads, is_asynchronous
from reliable_mq.client.flow import Flow
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import MessageQueue, ReceivedMessage

log = logging.getLogger(__name__)

T = TypeVar("T")


class FlowRunner(Protocol):
    """What the consumer needs of its client."""

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end."""

    async def heartbeat(self) -> None:
        """Tell the brokers which groups this client belongs to."""

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
        self._threads: Threads | None = None
        if is_asynchronous(handler):
            self._handler = cast("Handler", handler)
        else:
            self._threads = Threads(group.subscription.concurrency, f"rmq-{group.name}")
            self._handler = self._threads.wrapped(handler)
        self._hands = Hands(group.subscription)
        self._daemons: list[asyncio.Task[None]] = []
        self._pullers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._handlers: set[asyncio.Task[None]] = set()
        self._givers: set[asyncio.Task[None]] = set()
        self._room: dict[MessageQueue, asyncio.Event] = {}
        self._rebalance = asyncio.Event()
        self._handled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_settled = False
        self._obstacles = Obstacles(group.name)
        self._closed = False
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

    async def close(self) -> None:
        """Start nothing more, let what runs finish, commit, unlock and leave the group.

        Handlers that run longer than the setting `close_timeout` are cancelled; their messages
        are delivered again, to another member or later. Who calls it again waits for the same end.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._closed = True
        coordinator, *others = self._daemons
        coordinator.cancel()
        for puller in self._pullers.values():
            puller.cancel()
        for assigned in self.group.assigned:
            self.group.leave(assigned.queue)
        await self._wait_for_handlers()
        for task in (*self._handlers, *self._givers, *others):
            task.cancel()
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        ended = [coordinator, *others, *self._pullers.values(), *self._handlers, *self._givers]
        await asyncio.gather(*ended, return_exceptions=True)
        try:
            await self._client.run(give_all_back(self.group))
        finally:
            if self._threads is not None:
                self._threads.close()
            await self._client.leave_group(self.group)

    async def _wait_for_handlers(self) -> None:
        if not self._handlers:
            return
        timeout = self.group.settings.close_timeout
        _, late = await asyncio.wait(self._handlers, timeout=timeout)
        if late:
            log.warning(
                "group %s: %d handler calls did not end within %g s; their messages are delivered"
                " again%s",
                *(self.group.name, len(late), timeout),
                "" if self._threads is None else ", though their threads cannot be stopped",
            )

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
        """Register with the brokers, so that the first rebalance counts this member."""
        for topic in self.group.subscription.topics:
            try:
                await self._client.run(self.group.routes.of(topic))
            except ReliableMQError as error:
                log.info("group %s: topic %s is not there yet: %s", self.group.name, topic, error)
        await self._client.heartbeat()

    async def _keep_ready(self) -> bool:
        well = await self._client.run(keep_ready(self.group))
        for assigned in self.group.assigned:
            if assigned.is_started and assigned.queue not in self._pullers:
                self._room[assigned.queue] = asyncio.Event()
                self._pullers[assigned.queue] = asyncio.create_task(self._pull(assigned))
        self._pump()
        return well

    async def _commit(self) -> None:
        await self._client.run(commit(self.group, self.group.all_queues))

    async def _pull(self, assigned: AssignedQueue) -> None:
        room = self._room[assigned.queue]
        while not assigned.leaving:
            if not assigned.has_room:
                room.clear()
                await room.wait()
                continue
            if not await attempt(lambda: self._pull_once(assigned), f"a pull of {assigned.queue}"):
                await asyncio.sleep(self.group.settings.pull_retry_seconds_max)
        if not self.group.is_leaving(assigned.queue):  # the broker wants it read from elsewhere
            self.group.leave(assigned.queue)
            self._leave(assigned)

    async def _pull_once(self, assigned: AssignedQueue) -> None:
        pause = await self._client.run(pull_once(self.group, assigned))
        self._pump()
        if pause:
            await asyncio.sleep(pause)

    def _leave(self, assigned: AssignedQueue) -> None:
        self._room.pop(assigned.queue, None)
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
        while assigned.running:
            self._handled.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._handled.wait()
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

    def _pump(self, running: int | None = None, *, is_late: bool = False) -> None:
        """Start handler calls while there are messages and hands for them.

        Args:
            running: how many calls ran a moment ago; None: as many as now.
            is_late: messages waited for a hand long enough.
        """
        now = asyncio.get_running_loop().time()
        wanted = self._hands.wanted(running or len(self._handlers), is_late=is_late)
        while (free := wanted - len(self._handlers)) > 0:
            messages = self.group.take(now, self._hands.share(self.group.ready, free))
            if not messages:
                return
            task = asyncio.create_task(self._handle(messages))
            self._handlers.add(task)
            task.add_done_callback(self._handler_ended)
        if wanted < self.group.subscription.concurrency and self.group.ready:
            self._be_patient()

    def _be_patient(self) -> None:
        """Use the other hands, too, when none of these is free in a moment."""
        if self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        if not self._closed:
            self._pump(is_late=True)

    def _handler_ended(self, task: asyncio.Task[None]) -> None:
        running = len(self._handlers)
        self._handlers.discard(task)
        self._handled.set()
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("group %s: a delivery ended badly", self.group.name, exc_info=bug)
        if not self._closed:
            self._pump(running)

    async def _handle(self, messages: Sequence[ReceivedMessage]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        homes = {message.queue: self.group.find(message.queue) for message in messages}
        outcomes = await self._outcomes(messages)
        self._hands.note(loop.time() - begun, len(messages))
        rest: list[tuple[ReceivedMessage, Outcome]] = []
        for message, outcome in zip(messages, outcomes, strict=True):
            assigned = self._still(homes, message)
            if assigned is not None and isinstance(outcome, Consumed):
                assigned.finish(message.queue_offset)
            else:
                rest.append((message, outcome))
        for queue in homes:
            self._make_room(queue)
        for message, outcome in rest:  # last, because a broker may keep us waiting
            assigned = self._still(homes, message)
            if assigned is not None:
                await self._settle(assigned, message, outcome)
                self._make_room(message.queue)
                self._wake()

    def _still(
        self, homes: Mapping[MessageQueue, AssignedQueue | None], message: ReceivedMessage
    ) -> AssignedQueue | None:
        """Return the queue a message was taken from; None when it was given back meanwhile.

        It may have come again since: then it holds the message once more, and the old call's word
        counts for nothing.
        """
        assigned = homes[message.queue]
        return assigned if self.group.find(message.queue) is assigned else None

    def _make_room(self, queue: MessageQueue) -> None:
        """Let a pull go on that waits for the flow limits."""
        room = self._room.get(queue)
        if room is not None and not room.is_set():
            room.set()

    async def _outcomes(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        try:
            return checked_outcomes(await self._handler(messages), len(messages))
        except asyncio.CancelledError:
            if self._closed:
                raise
            reason = "the handler was cancelled from within"
            log.warning("group %s: %s", self.group.name, reason)
        except (Exception, SystemExit) as error:  # `sys.exit` of a handler is no end of the loop
            reason = f"{type(error).__name__}: {error}"
            log.exception("group %s: the handler failed", self.group.name)
        return [Later(reason=reason)] * len(messages)

    async def _settle(
        self, assigned: AssignedQueue, message: ReceivedMessage, outcome: Outcome
    ) -> None:
        try:
            await self._client.run(settle(self.group, assigned, message, outcome))
        except Exception:  # a bug must not leave the message running for ever
            log.exception("group %s: %s was not settled", self.group.name, message.message_id)
            if assigned.is_running(message.queue_offset):
                until = asyncio.get_running_loop().time() + self.group.settings.settle_retry_seconds
                assigned.hold(message.queue_offset, until, counts=False)

    def _wake(self) -> None:
        """Make held messages ready that are due, and come back when the next one is."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.group.wake(loop.time())
        if due is not None and not self._closed:
            self._timer = loop.call_at(due, self._wake)
        if not self._closed:
            self._pump()
