"""The simple consumer on asyncio: messages are received and acknowledged one by one.

Queues are shared and pulled as by a push consumer (`QueueFetcher`), and failures are settled in the
same way (`settle`). In between, this client keeps leases (`Leases`) that the broker does not know.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, Self

from reliable_mq import old_names
from reliable_mq.client.asyncio_daemon import repeat
from reliable_mq.client.checked import checked
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_all_back
from reliable_mq.client.consuming.asyncio_queue_reader import FlowRunner, QueueFetcher
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.group_member import GroupMember
from reliable_mq.client.consuming.leases import Lease, Leases
from reliable_mq.client.consuming.offsets import commit
from reliable_mq.client.consuming.settling import settle
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.errors import LeaseLost, UsageError, closed, closed_meanwhile
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Outcome, Reject, retry_of_ours
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of

log = logging.getLogger(__name__)

RECEIVE_SECONDS = 5.0
RECEIVE_COUNT = 32
HANDLING_SECONDS = 60.0


class SharingClient(FlowRunner, Protocol):
    """What a simple consumer needs from its client."""

    @property
    def hooks(self) -> Hooks:
        """The hooks, which see the messages that a caller gets."""

    def reader_closed(self, reader: "AsyncSimpleConsumer") -> None:
        """Forget a consumer that is closed already."""


class AsyncSimpleConsumer(GroupMember):
    """Returns messages, and accepts an acknowledgement for each. Made by
    `AsyncClient.simple_consumer`.

    A message that is not acknowledged in its handling time is delivered again, as after a failed
    handler. Any number of tasks may receive and acknowledge. Use it as `async with`, or `close` it.

    Args:
        client: runs the flows.
        group: the group's state.
    """

    def __init__(self, client: SharingClient, group: ConsumerGroup) -> None:
        super().__init__(group)
        self._client = client
        self._reader = QueueFetcher(client, group, self)
        self._leases = Leases()
        self._fetched = asyncio.Event()
        self._ended = asyncio.Event()
        self._settling: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._committing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to read as soon as a broker assigns queues."""
        self._reader.start()
        what = f"group {self.group.name}: a commit"
        committing = repeat(self.group.settings.offset_commit_seconds, self._commit, what)
        self._committing = asyncio.create_task(committing)

    @checked()
    async def receive(
        self,
        max_messages: int = RECEIVE_COUNT,
        *,
        timeout: float = RECEIVE_SECONDS,
        handling: float = HANDLING_SECONDS,
    ) -> list[ReceivedMessage]:
        """Wait for messages to handle and acknowledge, and return them.

        With `ordered` in the subscription, each ordering key has at most one message at a time. The
        next one follows after its acknowledgement.

        Args:
            max_messages: maximum number of messages.
            timeout: seconds to wait for the first message; then the list is empty.
            handling: seconds for the handling. Then an unacknowledged message is delivered again.

        Raises:
            UsageError: when the number or the handling time is not positive, or the consumer is
                closed.
        """
        self._check_open()
        if not max_messages > 0:
            raise UsageError(f"max_messages is {max_messages}: it must be positive")
        if not handling > 0:
            raise UsageError(f"handling is {handling}: it must be positive")
        begun = asyncio.get_running_loop().time()
        messages: list[ReceivedMessage] = []
        for assigned, message, expires in await self._received(max_messages, timeout, handling):
            shown = self.group.namespace.own_message(message)
            self._leases.begin_lease(assigned, message, expires, shown)
            messages.append(shown)
        self._watch()
        if messages:
            group = self.group.namespace.own_name(self.group.name)
            seconds = asyncio.get_running_loop().time() - begun
            self._client.hooks.call_receive_hooks(group, messages, seconds)
        return messages

    async def _received(
        self, max_messages: int, timeout: float, handling: float
    ) -> list[tuple[AssignedQueue, ReceivedMessage, float]]:
        """Wait for messages; return each with its queue and the end of its lease."""
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        while not (taken := self._take(max_messages)):
            if self._closing is not None or now() >= deadline:
                return []
            self._fetched.clear()
            try:
                async with asyncio.timeout_at(min(deadline, self._next_held(deadline))):
                    await self._fetched.wait()
            except TimeoutError:
                continue
        expires = self._client.lease_clock() + handling
        return [(assigned, message, expires) for assigned, message in taken]

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledge messages: they are handled and will not be delivered again.

        Brokers get the acknowledgement with the next committed offset. If this process is killed
        within about `offset_commit_seconds`, the message is delivered again.

        Args:
            messages: messages that `receive` has returned.

        Raises:
            LeaseLost: when the lease of one has ended. All others are acknowledged.
            UsageError: when the consumer is closed, or an argument is no message; earlier arguments
                are acknowledged.
        """
        self._check_open()
        lost: LeaseLost | None = None
        try:
            for message in messages:
                try:
                    lease = self._leases.end(message)
                except LeaseLost as error:
                    lost = lost or error
                    continue
                lease.assigned.finish(message.queue_offset)
        finally:  # also after an argument that is no message: earlier ones have ended
            self._wake_waiting()
        if lost is not None:
            raise lost

    @checked(but=("message",))
    async def retry(self, message: ReceivedMessage, after: float | None = None) -> None:
        """Report that handling has failed: the message is delivered again, as one more attempt.

        If this call is cancelled while it waits for the broker, the retry still happens.

        Args:
            message: a message that `receive` has returned.
            after: seconds until then; None: the usual delay. Without an ordering key, the broker
                delays the message, by its next longer delay level.

        Raises:
            LeaseLost: when the lease of the message has ended.
            UsageError: when the time is negative, or the consumer is closed.
            ConnectionLost: when the consumer is closed meanwhile: it is delivered again.
        """
        self._check_open()
        if after is not None and not after >= 0:
            raise UsageError(f"after is {after}: it must not be negative")
        await self._settled(message, retry_of_ours(after, reason="it was handed back"))

    @checked(but=("message",))
    async def reject(self, message: ReceivedMessage, reason: str) -> None:
        """Move a message to the group's dead-letter topic, and go on when it is stored there.

        That is tried until it succeeds, also when who waits for it is cancelled.

        Raises:
            LeaseLost: when it was not in your hands any more.
            UsageError: when the consumer is closed.
            ConnectionLost: when the consumer is closed meanwhile: it is delivered again.
        """
        self._check_open()
        await self._settled(message, Reject(reason))

    def give_up(self, message: ReceivedMessage, reason: str) -> Coroutine[Any, Any, None]:
        """The old name of `reject`."""
        old_names.warn_caller(old_names.now_called("SimpleConsumer.give_up", "reject"))
        return self.reject(message, reason)

    @checked(but=("message",))
    async def extend(self, message: ReceivedMessage, seconds: float) -> None:
        """Set the handling time of a message to `seconds` from now.

        Raises:
            LeaseLost: when the lease of the message has ended.
            UsageError: when the time is not positive, or the consumer is closed.
        """
        self._check_open()
        if not seconds > 0:
            raise UsageError(f"seconds is {seconds}: it must be positive")
        self._leases.extend(message, self._client.lease_clock() + seconds)
        self._watch()

    async def close(self) -> None:
        """Return no more messages, commit, unlock and leave the group.

        Messages without an acknowledgement are delivered again, to another member or later.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._fetched.set()  # wakes waiting receivers
        for assigned in self.group.assigned:
            self._leases.forget(assigned)
        self._wake_waiting()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._settling, *([self._committing] if self._committing else [])]
        for task in tasks:
            task.cancel()
        await self._reader.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._client.run(give_all_back(self.group))
        finally:
            self._client.reader_closed(self)
            await self._client.leave_group(self.group)

    # Leases ---------------------------------------------------------------------------------

    def _take(self, count: int) -> list[tuple[AssignedQueue, ReceivedMessage]]:
        now, due = self._client.lease_clock(), self._leases.next_due()
        if due is not None and due <= now:  # the timer did not advance while the machine slept
            self._expire()
        self.group.wake(asyncio.get_running_loop().time())
        taken: list[tuple[AssignedQueue, ReceivedMessage]] = []
        while len(taken) < count and (more := self.group.take_ready(now, count - len(taken))):
            for message in more:
                assigned = self.group.find(message.queue)
                if assigned is not None:
                    taken.append((assigned, message))
        return taken

    def _next_held(self, late: float) -> float:
        """Return when the next held message is due, or `late`."""
        dues = [due for each in self.group.assigned if (due := each.next_due()) is not None]
        return min(dues, default=late)

    def _watch(self) -> None:
        """Set a timer for the next lease that expires."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._leases.next_due()
        if due is not None and self._closing is None:
            seconds = due - self._client.lease_clock()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        for lease in self._leases.expired(self._client.lease_clock()):
            self._begin_to_settle(
                lease, retry_of_ours(0.0, reason="nobody acknowledged it in time")
            )
        self._watch()

    def _begin_to_settle(self, lease: Lease, outcome: Outcome) -> asyncio.Task[None]:
        task = asyncio.create_task(self._settle(lease, outcome))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _settled(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """End a lease and wait until its message is settled.

        A separate task does this, so that it continues if the caller is cancelled. Otherwise the
        message would run for ever without a lease.
        """
        settling = self._begin_to_settle(self._leases.end(message), outcome)
        await asyncio.wait([settling])
        if settling.cancelled():
            raise closed_meanwhile("consumer")

    async def _settle(self, lease: Lease, outcome: Outcome) -> None:
        assigned, message = lease.assigned, lease.message
        try:
            await self._client.run(settle(self.group, assigned, message, outcome))
        except Exception:  # noqa: BLE001 - a bug must not leave the message running for ever
            client_events.RECEIVED_NOT_SETTLED.log(
                log, traceback_of=True, group=self.group.name, **facts_of(message)
            )
            if assigned.is_running(message.queue_offset):
                until = asyncio.get_running_loop().time() + self.group.settings.settle_retry_seconds
                assigned.postpone(message.queue_offset, until, counts=False)
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        self._fetched.set()  # its ordering key continues
        self._ended.set()

    async def _commit(self) -> None:
        await self._reader.commit(commit(self.group, self.group.all_queues))

    def _check_open(self) -> None:
        if self._closing is not None:
            raise closed("consumer")

    # The reader's owner ---------------------------------------------------------------------

    async def on_assigned(self, queues: Sequence[AssignedQueue]) -> None:
        """Do nothing: the application is not informed."""

    async def on_revoked(self, queues: Sequence[AssignedQueue]) -> None:
        """Give queues back when none of their messages has a lease."""
        await asyncio.gather(*map(self._give_back, queues))

    async def _give_back(self, assigned: AssignedQueue) -> None:
        await self._reader.give_back_idle(assigned, self._ended)
        self._leases.forget(assigned)

    def on_reset(self, assigned: AssignedQueue) -> None:
        """Continue to read a queue at the broker's offset after its messages are settled."""
        self.group.leave(assigned.queue)
        self._reader.give_up_queues([assigned])

    def may_pull(self, assigned: AssignedQueue) -> bool:
        """Whether to fetch more messages of a queue now."""
        return assigned.has_room

    def fetched(self) -> None:
        """Wake waiting receivers."""
        self._fetched.set()

    # The member of a group ------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Rebalance now."""
        self._reader.look_soon()
