"""The queues of one pull consumer: a reader fetches their messages, and polls take them.

It receives the calls of `asyncio_pull_consumer`'s verbs, and returns messages and commits offsets.
`Positions` decides which messages a poll returns, and which count as handled.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from reliable_mq.client.asyncio_daemon import ShieldedTask, attempt, repeat
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.asyncio_queue_reader import FlowRunner, QueueFetcher
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.group_member import GroupMember
from reliable_mq.client.consuming.offsets import first_offset
from reliable_mq.client.consuming.polling import Positions
from reliable_mq.client.consuming.queue_offsets import commit_offsets
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.errors import NoRoute, UsageError, closed
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.telemetry import client_events

log = logging.getLogger(__name__)

Callback = Callable[[list[MessageQueue]], Awaitable[Any]]
"""Called with queues that were assigned or revoked."""


class PolledClient(FlowRunner, Protocol):
    """What reading for a caller needs from its client."""

    @property
    def hooks(self) -> Hooks:
        """The hooks, which see the messages that the caller gets."""


class PulledQueues(GroupMember):
    """The queues that one pull consumer reads.

    Args:
        client: runs the flows.
        group: the group's state; it is polled.
        auto_commit: whether to commit handled messages at intervals and at the end.
        on_assigned: called with queues before they are read; cancelled after
            `close_timeout_seconds`.
        on_revoked: called with queues before they are given up; cancelled after
            `close_timeout_seconds`. Calls of both never overlap.
    """

    def __init__(
        self,
        client: PolledClient,
        group: ConsumerGroup,
        *,
        auto_commit: bool,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> None:
        super().__init__(group)
        self.positions = Positions(group)
        self.reader = QueueFetcher(client, group, self)
        self._client = client
        self._auto_commit = auto_commit
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._fetched = asyncio.Event()
        self._is_polled = False
        self._closed = False
        self._committing: asyncio.Task[None] | None = None
        self._announced: set[MessageQueue] = set()  # queues for which `on_assigned` was called
        self._notifying = ShieldedTask()
        self._calls: set[asyncio.Task[None]] = set()
        self._one_call = asyncio.Lock()

    def start(self) -> None:
        """Begin to read."""
        self.reader.start()
        if self._auto_commit:
            seconds = self.group.settings.offset_commit_seconds
            what = f"group {self.group.name}: a commit"
            self._committing = asyncio.create_task(repeat(seconds, self._commit_handled, what))

    async def close(self) -> None:
        """Stop fetching, give all queues up, and leave the group."""
        self._closed = True
        self._fetched.set()  # wakes a waiting poll
        # the application's callback for revoked queues may be running
        await self.reader.stop(patience=self.group.settings.close_timeout_seconds)
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.gather(self._committing, return_exceptions=True)
        await (
            self._notifying.ended()
        )  # the callback may still run although its caller was cancelled
        try:
            await self.on_revoked(self.group.all_queues)
        finally:
            for assigned in self.group.assigned:
                self.group.leave(assigned.queue)
            for assigned in self.group.all_queues:  # otherwise the client's flow budget stays used
                self.group.forget(assigned)
            if self.group.is_member:
                await self._client.leave_group(self.group)

    # Messages -------------------------------------------------------------------------------

    async def poll(self, timeout: float, max_messages: int) -> list[ReceivedMessage]:
        """Return messages as soon as there are some; see `AsyncPullConsumer.poll`."""
        if self._closed:
            raise closed("consumer")
        if self._is_polled:
            raise UsageError("another poll is in progress: poll from one task or thread")
        self._is_polled = True
        begun = asyncio.get_running_loop().time()
        try:
            self.positions.poll_begins()
            messages = await self._first(timeout, max_messages)
        finally:
            self._is_polled = False
        names, waited = self.group.namespace, asyncio.get_running_loop().time() - begun
        shown = names.own_messages(messages)
        self._client.hooks.call_receive_hooks(names.own_name(self.group.name), shown, waited)
        return shown

    async def _first(self, timeout: float, max_messages: int) -> list[ReceivedMessage]:
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        while not (
            messages := self.positions.take_fetched(max_messages, self._client.lease_clock())
        ):
            if self._closed or now() >= deadline:
                break
            self._fetched.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._fetched.wait()
            except TimeoutError:
                break
        return messages

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set the position of a queue to `offset`; the result of a pull in progress is dropped."""
        self.reader.restart(self.positions.seek(queue, offset))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Continue with paused queues."""
        again = list(queues)
        self.positions.resume(again)
        for queue in again:
            self.reader.pull_again(queue)
        self._fetched.set()

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue; see `AsyncPullConsumer.position`."""
        known = self.positions.position(queue)
        if known is not None:
            return known
        address = self.group.master_of(queue.broker_name)
        if address is None:
            raise NoRoute(f"no master of {queue} is known")
        return await self._client.run(first_offset(self.group, queue, address))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None) -> None:
        """Commit `offsets`, or what polls have returned; see `AsyncPullConsumer.commit`."""
        if offsets is None:
            offsets = self.positions.positions()
        self.positions.handle(offsets)
        await self._commit(self.positions.uncommitted(offsets))

    async def _commit_handled(self) -> None:
        await self._commit(self.positions.uncommitted())

    async def _commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        await self.reader.commit(commit_offsets(self.group, offsets))

    # The reader's owner ---------------------------------------------------------------------

    async def on_assigned(self, queues: Sequence[AssignedQueue]) -> None:
        """Call the application's `on_assigned`."""
        coming = {assigned.queue for assigned in queues}
        self._announced |= coming
        await self._notify(self._on_assigned, coming)

    async def on_revoked(self, queues: Sequence[AssignedQueue]) -> None:
        """Call the application's `on_revoked`, and then commit handled messages of these queues."""
        gone = {assigned.queue for assigned in queues}
        announced = gone & self._announced
        self._announced -= gone
        await self._notify(self._on_revoked, announced)
        if self._auto_commit:
            last = self.positions.uncommitted()
            last = {queue: offset for queue, offset in last.items() if queue in gone}
            await attempt(lambda: self._commit(last), f"group {self.group.name}: the last commit")
        for queue in gone:
            self.positions.forget(queue)

    def on_reset(self, assigned: AssignedQueue) -> None:
        """Continue at the offset from the broker. Drop messages that were fetched before."""
        self.reader.restart(self.positions.move(assigned.queue, assigned.commit_offset))

    def may_pull(self, assigned: AssignedQueue) -> bool:
        """Whether to fetch more messages of a queue now."""
        return self.positions.may_pull(assigned)

    def fetched(self) -> None:
        """Wake a waiting poll."""
        self._fetched.set()

    async def _notify(self, callback: Callback | None, queues: set[MessageQueue]) -> None:
        """Call the application after earlier calls have ended, and wait for the end.

        A cancelled caller does not cancel the call. `close` cancels the caller for assigned queues,
        but the application must finish that call before it hears that the queues are revoked.
        """
        if callback is not None and queues:
            await self._notifying.result(self._notify_in_turn(callback, sorted(queues)))

    async def _notify_in_turn(self, callback: Callback, queues: list[MessageQueue]) -> None:
        """Call the application, and wait at most for `close_timeout_seconds`.

        So a call that hangs blocks neither the queues' next reader nor the member's other queues.
        """
        timeout = self.group.settings.close_timeout_seconds
        async with self._one_call:
            call = asyncio.create_task(self._call(callback, queues))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            _, late = await asyncio.wait({call}, timeout=timeout)
        if late:
            call.cancel()
            client_events.QUEUE_CALLBACK_SLOW.log(log, group=self.group.name, seconds=timeout)

    async def _call(self, callback: Callback, queues: list[MessageQueue]) -> None:
        try:
            await callback(queues)
        except (Exception, SystemExit):  # noqa: BLE001 - an error of the application must not end the loop
            client_events.QUEUE_CALLBACK_FAILED.log(log, traceback_of=True, group=self.group.name)

    # The member of a group ------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Rebalance now."""
        self.reader.look_soon()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue to read these queues at other offsets, on an administrator's request."""
        for queue, offset in offsets.items():
            if queue in self.positions.queues:
                self.seek(queue, offset)
                self.positions.handle({queue: offset})
