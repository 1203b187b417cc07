"""The fetcher of a consumer by the message: pops from brokers, and keeps leases that are in use.

One task pops from each share (`popping.Share`): as many messages as handlers may begin soon.
For each broker a task extends the leases of messages in use. Messages that nobody begins go back.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from reliable_mq.client.asyncio_daemon import attempt, repeat
from reliable_mq.client.consuming.asyncio_pop_acks import AsyncPopAcks
from reliable_mq.client.consuming.asyncio_queue_reader import Acceptance, FlowRunner, introduce
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.obstacles import Obstacles
from reliable_mq.client.consuming.pop_leases import ACK_SECONDS, change_invisible
from reliable_mq.client.consuming.pop_shares import Share, shares_of
from reliable_mq.client.consuming.popped_queue import PopLease, PoppedQueue
from reliable_mq.client.consuming.popping import RENEW_PART, pop
from reliable_mq.errors import ProtocolError, ReliableMQError, RemoteError, Unavailable
from reliable_mq.limits import PULL_COUNT_MAX
from reliable_mq.message import MessageQueue
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of, queue_facts
from reliable_mq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

RENEW_TICK_SECONDS = 1.0
RENEWED_AT_ONCE = 500
HELD_FACTOR = 4
"""So many times the messages that handlers take may be here, with those that wait to be retried."""
_RETRY_SECONDS = 0.1


class MessageOwner(Protocol):
    """The owner of popped messages."""

    def fetched(self) -> None:
        """Check for fetched messages."""

    def most_active(self) -> int:
        """Return how many messages may run or wait for a handler."""


class MessageFetcher:
    """Pops the messages of one member.

    Args:
        client: runs the flows.
        group: the group's state.
        owner: receives messages.
    """

    def __init__(self, client: FlowRunner, group: ConsumerGroup, owner: MessageOwner) -> None:
        self.group = group
        self._client = client
        self._owner = owner
        self.acks = AsyncPopAcks(client, group)
        self._acceptance = Acceptance()
        self.when_accepted = self._acceptance.when
        self._obstacles = Obstacles(group.name, are_declared=group.subscription.has_declared_topics)
        self._look = asyncio.Event()
        self._room = asyncio.Event()
        self._has_stopped = False
        self._is_settled = False
        self._daemons: list[asyncio.Task[None]] = []
        self._poppers: dict[Share, asyncio.Task[None]] = {}
        self._extending: dict[str, asyncio.Task[bool]] = {}  # by broker

    @property
    def shares(self) -> set[MessageQueue]:
        """What this member pops from; the queue id -1 stands for all queues of a broker."""
        return {MessageQueue(*share) for share in self._poppers}

    def start(self) -> None:
        """Begin to pop as soon as the brokers of the topics are known."""
        name = f"group {self.group.name}"
        self._daemons = [
            asyncio.create_task(self._coordinate()),
            asyncio.create_task(repeat(self._tick_seconds, self.renew, f"{name}: extending")),
        ]

    @property
    def _tick_seconds(self) -> float:
        """The interval at which leases are looked at: four looks before one ends, at least."""
        left = self.group.subscription.invisible_time * (1 - RENEW_PART)
        return min(RENEW_TICK_SECONDS, left / 4)

    def look_soon(self) -> None:
        """Look up now where to pop."""
        self._look.set()

    def wake(self) -> None:
        """Pop again if there is room: something has changed."""
        self._room.set()

    def stop_fetching(self) -> None:
        """Pop no more. Leases are still extended.

        A pop on its way cannot be called back. What it still brings is given back.
        """
        self._has_stopped = True
        self._room.set()
        if self._daemons:
            self._daemons[0].cancel()

    async def stop(self) -> None:
        """Give back what nobody handles, and acknowledge what was handled."""
        self.stop_fetching()
        for daemon in self._daemons:
            daemon.cancel()
        extending = list(self._extending.values())
        for each in extending:
            each.cancel()
        await asyncio.gather(*self._daemons, *extending, return_exceptions=True)
        await self.give_back(self._drop_unused())
        self.group.budget.cancel_wait(self._room.set)
        for queue in self.group.popped_queues:
            queue.release()  # handlers that still run have no say any more
        await self.acks.close(ACK_SECONDS)

    def _drop_unused(self) -> list[PopLease]:
        """Drop all messages that no handler has, and return their leases."""
        return [
            queue.drop(offset)
            for queue in self.group.popped_queues
            for offset in list(queue.leases)
            if not queue.is_running(offset)
        ]

    async def _coordinate(self) -> None:
        group = self.group
        what = f"group {group.name}: the first heartbeat"
        await attempt(lambda: introduce(self._client, group, self._obstacles), what)
        while True:
            self._look.clear()
            self._is_settled = False
            await attempt(self._look_once, f"group {group.name}: looking for brokers")
            settings = group.settings
            pause = (
                settings.rebalance_seconds if self._is_settled else settings.rebalance_retry_seconds
            )
            try:
                async with asyncio.timeout(pause):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _look_once(self) -> None:
        """Begin and end to pop where brokers came and went."""
        looked = await self._client.run(shares_of(self.group, self._poppers))
        self._obstacles.log_repeated(looked.obstacles)
        self._obstacles.note_missing(looked.missing, asyncio.get_running_loop().time())
        for share, popper in list(self._poppers.items()):
            if popper.done() or share in looked.gone:
                popper.cancel()
                del self._poppers[share]
        for share in looked.shares:
            if share not in self._poppers and not self._has_stopped:
                popper = asyncio.create_task(self._pop_forever(share))
                popper.add_done_callback(self._popper_ended)
                self._poppers[share] = popper
        if not looked.obstacles:
            self._acceptance.accept()
            self._is_settled = not looked.missing

    def _popper_ended(self, popper: asyncio.Task[None]) -> None:
        if not popper.cancelled() and (bug := popper.exception()) is not None:
            client_events.QUEUE_READING_BROKEN.log(log, traceback_of=bug, group=self.group.name)

    # Popping --------------------------------------------------------------------------------

    async def _pop_forever(self, share: Share) -> None:
        failures = 0
        while not self._has_stopped:
            count = self._room_of_share()
            if count < 1:
                self._room.clear()
                await self._room.wait()
                continue
            failures = 0 if await self._pop_once(share, count) else failures + 1
            if failures:
                pause = _RETRY_SECONDS * 2.0 ** min(failures - 1, 10)
                await asyncio.sleep(min(pause, self.group.settings.pull_retry_seconds_max))

    def _room_of_share(self) -> int:
        """Return how many messages to pop from a share: what handlers take soon, divided evenly."""
        queues = self.group.popped_queues
        if self.group.is_paused:
            return 0
        held = sum(queue.held for queue in queues)
        unfinished = sum(queue.unfinished for queue in queues)
        most = self._owner.most_active()
        room = min(most - (unfinished - held), HELD_FACTOR * most - unfinished)
        cost = sum(queue.cost for queue in queues)
        settings, budget = self.group.settings, self.group.budget
        if unfinished >= settings.held_count_max or sum(q.size for q in queues) >= (
            settings.held_bytes_max
        ):
            return 0
        if room > 0 and not budget.has_room(cost, settings.pull_bytes, self._room.set):
            return 0
        idle = max(1, len(self._poppers))
        return min(-(-room // idle), PULL_COUNT_MAX)

    async def _pop_once(self, share: Share, count: int) -> bool:
        """Pop once; return whether the broker gave an answer."""
        group, loop = self.group, asyncio.get_running_loop()
        begun = loop.time()
        where = MessageQueue(*share)
        seconds = group.subscription.invisible_time
        poll = group.settings.pull_suspend_seconds
        try:
            popped = await self._client.run(
                pop(group, share, count, invisible_seconds=seconds, poll_seconds=poll)
            )
        except Unavailable as error:
            client_events.PULL_UNANSWERED.log(
                log, group=group.name, **queue_facts(where), error=error
            )
            group.routes.mark_stale(share.topic)
            return False
        except (RemoteError, ProtocolError) as error:
            group.pull_faults.failed(where, error, loop.time())
            if isinstance(error, RemoteError) and error.code in _NOT_HEARD:
                await self._client.send_full_heartbeats()
            return False
        group.pull_faults.works(where, loop.time())
        if self._obstacles.absent:
            self._obstacles.note_read(share.topic)
        if self._has_stopped:
            await self.give_back(popped.leases)
            return True
        if popped.leases:
            now = loop.time()
            group.rates_of(share.topic, begun).pulled(len(popped.leases), now - begun, now)
            self.add(popped.leases)
            self._owner.fetched()
        return not popped.is_full

    def add(self, leases: Iterable[PopLease]) -> list[PoppedQueue]:
        """Add popped messages to their queues; return these."""
        by_queue: dict[MessageQueue, list[PopLease]] = {}
        for lease in leases:
            by_queue.setdefault(lease.message.queue, []).append(lease)
        queues = []
        for queue, its in by_queue.items():
            popped = self.group.popped_queue(queue, self.acks.add)
            popped.wake_reader = self._room.set
            popped.add_popped(its)
            queues.append(popped)
        return queues

    # Leases ---------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Begin to extend the leases of messages in use, and to give back what waited too long.

        A broker that does not answer delays only its own leases.
        """
        now = self._client.lease_clock()
        used: dict[str, list[PopLease]] = {}
        unused: dict[str, list[PopLease]] = {}
        for queue in self.group.popped_queues:
            for offset in queue.expired(now):
                queue.drop(offset)
            broker_name = queue.queue.broker_name
            if broker_name in self._extending:
                continue
            waiting = set(queue.ready_offsets)
            due = [at for at, lease in queue.leases.items() if lease.renew_at <= now]
            for offset in due:
                if offset in waiting:  # dropped at once: no handler may begin it now
                    unused.setdefault(broker_name, []).append(queue.drop(offset))
                elif not queue.leases[offset].is_changing:
                    used.setdefault(broker_name, []).append(queue.leases[offset])
        for broker_name in used.keys() | unused.keys():
            work = partial(self._extend, used.get(broker_name, []), unused.get(broker_name, []))
            what = f"group {self.group.name}: extending at {broker_name}"
            extending = asyncio.create_task(attempt(work, what))
            self._extending[broker_name] = extending
            extending.add_done_callback(partial(self._has_extended, broker_name))

    def _has_extended(self, broker_name: str, _: object) -> None:
        del self._extending[broker_name]

    async def _extend(self, used: list[PopLease], unused: list[PopLease]) -> None:
        """Extend leases of one broker, and give back others."""
        seconds = self.group.subscription.invisible_time
        for at in range(0, len(used), RENEWED_AT_ONCE):
            some = used[at : at + RENEWED_AT_ONCE]
            flow = change_invisible(self.group, some, seconds, RENEW_PART)
            for lease, error in zip(some, await self._client.run(flow), strict=True):
                if error is not None:
                    self._not_extended(lease, error)
        await self.give_back(unused)

    def _not_extended(self, lease: PopLease, error: ReliableMQError) -> None:
        if not lease.is_lost and self._client.lease_clock() >= lease.expires:
            lease.is_lost = True
            client_events.POP_LEASE_LOST.log(
                log, group=self.group.name, **facts_of(lease.message), error=error
            )

    async def give_back(self, leases: list[PopLease]) -> None:
        """Let messages come back at once that no queue here has any more.

        If a broker does not take this, they come back when their lease ends.
        """
        by_broker: dict[str, list[PopLease]] = {}
        for lease in leases:
            if not lease.is_changing:
                by_broker.setdefault(lease.handle.broker, []).append(lease)
        await asyncio.gather(*map(self._give_back, by_broker.values()))

    async def _give_back(self, leases: list[PopLease]) -> None:
        for at in range(0, len(leases), RENEWED_AT_ONCE):
            some = leases[at : at + RENEWED_AT_ONCE]
            await self._client.run(change_invisible(self.group, some, 0.0))


_NOT_HEARD = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)
