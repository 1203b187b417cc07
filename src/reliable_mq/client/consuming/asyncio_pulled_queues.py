"""The queues of one pull consumer: a member of its group, fed by a reader, emptied by polls.

Receives what the application wants (`asyncio_pull_consumer` has the verbs); hands on messages and
commits. What a poll returns and what counts as handled is decided by `Positions`.
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

log = logging.getLogger(__name__)

Told = Callable[[list[MessageQueue]], Awaitable[Any]]
"""Called with queues that come or go."""


class PolledClient(FlowRunner, Protocol):
    """What reading for a caller needs of its client."""

    @property
    def hooks(self) -> Hooks:
        """What sees the messages that the caller gets."""


class PulledQueues(GroupMember):
    """What one pull consumer reads.

    Args:
        client: runs the flows.
        group: what is read; it is polled.
        auto_commit: whether what is handled is committed from time to time, and at the end.
        on_assigned: called with queues before they are read; cancelled after
            `close_timeout_seconds`.
        on_revoked: called with queues before they are given up; the same. Of both one call ends
            before the next one begins.
    """

    def __init__(
        self,
        client: PolledClient,
        group: ConsumerGroup,
        *,
        auto_commit: bool,
        on_assigned: Told | None = None,
        on_revoked: Told | None = None,
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
        self._announced: set[MessageQueue] = set()  # the application has heard that they are ours
        self._telling = ShieldedTask()
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
        """Fetch nothing more, give all queues up, leave the group."""
        self._closed = True
        self._fetched.set()  # whoever polls
        # the application may be hearing of queues that leave
        await self.reader.stop(patience=self.group.settings.close_timeout_seconds)
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.gather(self._committing, return_exceptions=True)
        await self._telling.ended()  # who told the application may be cancelled
        try:
            await self.on_revoked(self.group.all_queues)
        finally:
            for assigned in self.group.assigned:
                self.group.leave(assigned.queue)
            for assigned in self.group.all_queues:  # else the client's room stays taken
                self.group.forget(assigned)
            if self.group.is_member:
                await self._client.leave_group(self.group)

    # Messages -------------------------------------------------------------------------------

    async def poll(self, timeout: float, max_messages: int) -> list[ReceivedMessage]:
        """Return messages as soon as there are some; see `AsyncPullConsumer.poll`."""
        if self._closed:
            raise closed("consumer")
        if self._is_polled:
            raise UsageError("another poll is under way: poll from one task or thread")
        self._is_polled = True
        begun = asyncio.get_running_loop().time()
        try:
            self.positions.poll_begins()
            messages = await self._first(timeout, max_messages)
        finally:
            self._is_polled = False
        names, waited = self.group.namespace, asyncio.get_running_loop().time() - begun
        shown = names.own_messages(messages)
        self._client.hooks.handed_over(names.own(self.group.name), shown, waited)
        return shown

    async def _first(self, timeout: float, max_messages: int) -> list[ReceivedMessage]:
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        while not (messages := self.positions.take(max_messages, self._client.lease_clock())):
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
        """Let the next poll return `offset` of a queue; a pull under way is given up."""
        self.reader.begin_anew(self.positions.seek(queue, offset))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with queues that were paused."""
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
        """Tell the application of queues that are read from now on."""
        coming = {assigned.queue for assigned in queues}
        self._announced |= coming
        await self._tell(self._on_assigned, coming)

    async def on_revoked(self, queues: Sequence[AssignedQueue]) -> None:
        """Commit what is handled of queues that leave, after the application has heard of them."""
        gone = {assigned.queue for assigned in queues}
        announced = gone & self._announced
        self._announced -= gone
        await self._tell(self._on_revoked, announced)
        if self._auto_commit:
            last = self.positions.uncommitted()
            last = {queue: offset for queue, offset in last.items() if queue in gone}
            await attempt(lambda: self._commit(last), f"group {self.group.name}: the last commit")
        for queue in gone:
            self.positions.forget(queue)

    def on_reset(self, assigned: AssignedQueue) -> None:
        """Read on where the broker has messages; what was fetched before that is none any more."""
        self.reader.begin_anew(self.positions.move(assigned.queue, assigned.commit_offset))

    def may_pull(self, assigned: AssignedQueue) -> bool:
        """Whether more of a queue should be fetched now."""
        return self.positions.may_pull(assigned)

    def fetched(self) -> None:
        """Wake the poll that waits."""
        self._fetched.set()

    async def _tell(self, told: Told | None, queues: set[MessageQueue]) -> None:
        """Tell the application, behind what it is being told, and return when it has heard.

        Who is cancelled here leaves the call to its end: `close` cancels who tells of new queues,
        and the application has to hear of them in full before it hears that they go.
        """
        if told is not None and queues:
            await self._telling.see(self._tell_in_turn(told, sorted(queues)))

    async def _tell_in_turn(self, told: Told, queues: list[MessageQueue]) -> None:
        """Go on when the application has heard, at the latest after `close_timeout_seconds`.

        Who hangs keeps no queue from its next reader, and the member's others from being read.
        """
        timeout = self.group.settings.close_timeout_seconds
        async with self._one_call:
            call = asyncio.create_task(self._call(told, queues))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            _, late = await asyncio.wait({call}, timeout=timeout)
        if late:
            call.cancel()
            log.warning(
                "group %s: the application takes longer than %g s to hear of queues; nobody waits"
                " for it any more",
                *(self.group.name, timeout),
            )

    async def _call(self, told: Told, queues: list[MessageQueue]) -> None:
        try:
            await told(queues)
        except (Exception, SystemExit):  # what the application does is no end of the loop
            log.exception("group %s: what is told of queues failed", self.group.name)

    # The member of a group ------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Compute the share of queues anew, now."""
        self.reader.look_soon()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read queues again from other offsets, as an administrator wants it."""
        for queue, offset in offsets.items():
            if queue in self.positions.queues:
                self.seek(queue, offset)
                self.positions.handle({queue: offset})
