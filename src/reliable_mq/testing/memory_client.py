"""A client over a broker in memory: the real flows, one step after the other.

Receives flows; hands on what they return. Time stands still while one runs: what it would wait for
comes at once, or not at all. Nothing runs by itself: a consumer reads when `step` is called.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.asyncio_client_engine import ClientEngine
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_all_back, give_back, keep_ready, rebalance
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.group_member import GroupMember
from reliable_mq.client.consuming.offsets import commit
from reliable_mq.client.consuming.pop_leases import acknowledge, change_invisible
from reliable_mq.client.consuming.pop_shares import shares_of
from reliable_mq.client.consuming.popped_queue import PopLease
from reliable_mq.client.consuming.popping import RENEW_PART, pop
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.settling import settle
from reliable_mq.client.consuming.subscription import Handler, Subscription
from reliable_mq.client.flow import (
    Call,
    CallAll,
    Flow,
    Instant,
    Now,
    Once,
    Post,
    Step,
    Together,
    Wait,
    Work,
)
from reliable_mq.client.observing.middleware import Middleware
from reliable_mq.client.sending.outgoing import Sign
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConnectionLost, ReliableMQError, RequestTimeout
from reliable_mq.limits import PULL_COUNT_MAX
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, outcomes_of
from reliable_mq.testing.faults import Faults
from reliable_mq.testing.manual_clock import ManualClock
from reliable_mq.testing.memory_broker import NAME_SERVER, MemoryBroker
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command

_WAITS_MAX = 20


class TimeStandsStill(Exception):
    """A flow waits for what does not come while nobody moves the clock."""


class MemoryEngine(ClientEngine):
    """A client's connection to a broker in memory; see `MemoryClient`."""

    def __init__(
        self,
        broker: MemoryBroker,
        clock: ManualClock,
        faults: Faults,
        *,
        number: int,
        producer_group: str,
        middleware: Sequence[Middleware] = (),
        sign: Sign | None = None,
    ) -> None:
        # A request is tried once: what becomes of one that failed is what tests want to see.
        settings = ClientSettings(producer_group=producer_group, retries=0)
        super().__init__(NAME_SERVER, settings, middleware, sign)
        self.number = number
        self._broker = broker
        self._clock = clock
        self._faults = faults
        self._memory_readers: list[MemoryConsumer] = []
        self._waits = 0

    async def start(self) -> None:
        """There is nothing to connect."""

    def open_addresses(self) -> set[str]:
        """Nobody is told good-bye: `close` ends the connection."""
        return set()

    def drop(self, address: str) -> None:
        """Take nothing more while the broker is away."""
        raise ConnectionLost(f"{address} is away")

    async def close(self) -> None:
        """Leave all groups and the broker."""
        for reader in list(self._memory_readers):
            await reader.close()
        await self.transactions.close()
        self._broker.disconnect(self.number)

    def consume(self, subscription: Subscription, handler: Handler) -> "MemoryConsumer":
        """Read for a consumer group, whenever `step` is called."""
        group = ConsumerGroup(
            subscription,
            self._clock.epoch_ms,
            self.client_id,
            settings=self.settings,
            routes=self._routes,
            producer=self.carrier,
        )
        kind = MemoryMessageConsumer if subscription.by_message else MemoryConsumer
        reader = kind(self, group, handler, self._clock, self._faults)
        self._memory_readers.append(reader)
        self.join(reader)
        return reader

    async def leave_group(self, group: ConsumerGroup) -> None:
        """Take a consumer that has ended out of its group."""
        await self.membership.leave(group.name)
        self._memory_readers = [each for each in self._memory_readers if each.group is not group]

    async def step(self) -> int:
        """Read and handle what there is, once; return how many messages that were."""
        handled = sum([await reader.step() for reader in list(self._memory_readers)])
        await self.answer_broker()
        return handled

    async def answer_broker(self) -> int:
        """Answer what the broker asks of this client, and wait until that is done."""
        asked = self._broker.requests_to(self.number)
        for command in asked:
            answer = self._answer_request(self._broker.address, command)
            if answer is not None and not command.is_oneway:
                self._broker.answer(encode_answer(answer), self.number)
        running = list(self.transactions.running)
        await asyncio.gather(*running)
        return len(asked)

    async def run(self, flow: Flow[Any]) -> Any:
        """Drive a flow to its end.

        Raises:
            TimeStandsStill: when it goes on waiting.
        """
        before, self._waits = self._waits, 0
        try:
            return await super().run(flow)
        finally:
            self._waits = before

    def now(self) -> Instant:
        """Return the time of the clock."""
        return Instant(self._clock.now(), self._clock.epoch_ms, self._clock.now())

    async def _answer(self, step: Step) -> Any:
        if isinstance(step, Now):
            return self.now()
        if isinstance(step, Call):
            return await self._call(step)
        if isinstance(step, CallAll):
            return [await self._call_or_failure(each) for each in step.calls]
        if isinstance(step, Once):
            return await self.run(step.flow())
        if isinstance(step, Together):
            return [await self.run(flow) for flow in step.flows]
        if isinstance(step, Work):
            return step.function()
        if isinstance(step, Post):
            self._ask(step.address, step.command)
        if isinstance(step, Wait):
            self._waits += 1
            if self._waits > _WAITS_MAX:
                raise TimeStandsStill
        return None

    async def _call(self, step: Call) -> Command:
        answer = self._ask(step.address, step.command)
        if answer is None:
            raise RequestTimeout(f"{step.address} gave no answer")
        return answer

    def _ask(self, address: str, command: Command) -> Command | None:
        if self._faults.is_broker_away:
            raise ConnectionLost(f"{address} is away")
        if self._faults.takes_request(command):
            return None
        if address == NAME_SERVER:
            return self._broker.ask(address, command, self.number)
        name = RequestCode(command.code).name
        self._faults.switch.step(f"broker: sent {name}")
        answer = self._broker.ask(address, command, self.number)
        self._faults.switch.step(f"broker: answered {name}")
        return None if self._faults.takes_reply(command) else answer


class MemoryClient(AsyncClient):
    """One client: a connection, its routes, its producer, its consumers.

    Args:
        broker: whom it talks to.
        clock: its time.
        faults: what happens to its requests.
        number: of its connection; no two clients have the same.
        producer_group: how the broker knows it when it sends.
        middleware: sees what is sent.
        sign: signs what is sent.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        clock: ManualClock,
        faults: Faults,
        *,
        number: int,
        producer_group: str,
        middleware: Sequence[Middleware] = (),
        sign: Sign | None = None,
    ) -> None:
        self.number = number
        self._memory = MemoryEngine(
            *(broker, clock, faults),
            number=number,
            producer_group=producer_group,
            middleware=middleware,
            sign=sign,
        )
        self._use_engine(self._memory)

    async def consume(  # type: ignore[override]
        self, subscription: Subscription, handler: Handler
    ) -> "MemoryConsumer":
        """Read for a consumer group, whenever `step` is called."""
        return self._memory.consume(subscription, handler)

    async def step(self) -> int:
        """Read and handle what there is, once; return how many messages that were."""
        return await self._memory.step()


class MemoryConsumer(GroupMember):
    """One consumer group's member: reads, hands out and settles when it is told to."""

    def __init__(
        self,
        client: MemoryEngine,
        group: ConsumerGroup,
        handler: Handler,
        clock: ManualClock,
        faults: Faults,
    ) -> None:
        super().__init__(group)
        self._client = client
        self._handler = handler
        self._clock = clock
        self._faults = faults

    async def step(self) -> int:
        """Read what there is, handle what is ready, commit; return how many were handled."""
        try:
            await self._read()
            handled = 0
            self.group.wake(self._clock.now())
            batches = []
            while batch := self.group.take_ready(self._clock.now()):
                batches.append(batch)
            # By the order of storing: which queue comes first differs from process to process.
            batches.sort(key=lambda batch: batch[0].commit_log_offset)
            for batch in self._faults.ordered(batches):
                handled += await self._handle(batch)
            await self._commit()
        except (ReliableMQError, TimeStandsStill):
            return 0  # the broker is away; what was taken comes again
        return handled

    def when_accepted(self, call: Callable[[], None]) -> None:
        """Call at once: the broker in memory knows the group."""
        call()

    def rebalance_soon(self) -> None:
        """Each step does."""

    def on_reset(self, assigned: AssignedQueue) -> None:
        """Give a queue back; the next step takes it anew."""
        self.group.leave(assigned.queue)

    async def close(self) -> None:
        """Give the queues back and leave the group."""
        try:
            await self._client.run(give_all_back(self.group))
        finally:
            await self._client.leave_group(self.group)

    async def _commit(self) -> None:
        await self._client.run(commit(self.group, self.group.all_queues))

    async def _read(self) -> None:
        await self._introduce()
        await self._client.run(rebalance(self.group))
        for assigned in [each for each in self.group.all_queues if each.leaving]:
            await self._client.run(give_back(self.group, assigned))
        await self._client.run(keep_ready(self.group))
        for assigned in list(self.group.assigned):
            before = -1
            while assigned.is_started and assigned.has_room and before != assigned.next_offset:
                before = assigned.next_offset
                await self._client.run(pull_once(self.group, assigned))

    async def _introduce(self) -> None:
        for topic in self.group.subscription.topics:
            try:
                await self._client.run(self.group.routes.of(topic))
            except ReliableMQError:
                continue  # nobody has sent to it yet
        # In full each time: where time leaps, the broker has forgotten who was silent meanwhile.
        await self._client.send_full_heartbeats()

    async def _handle(self, messages: Sequence[ReceivedMessage]) -> int:
        """Handle a batch, and settle each of it; delayed ones are held instead."""
        now = []
        for message in messages:
            late = self._faults.meet("delay", message.topic)
            if late is None:
                now.append(message)
            else:
                until = self._clock.now() + late.seconds
                self._assigned(message).postpone(message.queue_offset, until, counts=False)
        if not now:
            return 0
        outcomes = await outcomes_of(self._handler(tuple(now)), len(now))
        for message, outcome in zip(now, outcomes, strict=True):
            await self._settle(message, outcome)
            if outcome == CONSUMED and self._faults.meet("duplicate", message.topic):
                await self._handler((message,))
        return len(now)

    async def _settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        assigned = self._assigned(message)
        lost = outcome == CONSUMED and self._faults.meet("lost acknowledgement", message.topic)
        if lost:
            assigned.postpone(message.queue_offset, self._clock.now(), counts=False)
            return
        try:
            await self._client.run(settle(self.group, assigned, message, outcome))
        except TimeStandsStill:  # neither a dead letter nor a retry is stored: as a client waits
            until = self._clock.now() + self.group.settings.settle_retry_seconds
            assigned.postpone(message.queue_offset, until, counts=False)

    def _assigned(self, message: ReceivedMessage) -> AssignedQueue:
        found = self.group.find(message.queue)
        if found is None:
            raise LookupError(f"{message.queue} was given back while it was read")
        return found


class MemoryMessageConsumer(MemoryConsumer):
    """A member of a group whose members share messages: it pops, and acknowledges each message."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._handled: list[PopLease] = []

    async def close(self) -> None:
        """Give back what was not handled, and leave the group."""
        queues = self.group.popped_queues
        left = [queue.drop(offset) for queue in queues for offset in list(queue.leases)]
        try:
            await self._client.run(change_invisible(self.group, left, 0.0))
        finally:
            await self._client.leave_group(self.group)

    async def _read(self) -> None:
        await self._introduce()
        await self._extend()
        seconds = self.group.subscription.invisible_time
        for share in sorted((await self._client.run(shares_of(self.group))).shares):
            flow = partial(pop, self.group, share, PULL_COUNT_MAX)
            while leases := (
                await self._client.run(flow(invisible_seconds=seconds, poll_seconds=0.0))
            ).leases:
                for lease in leases:
                    queue = self.group.popped_queue(lease.message.queue, self._handled.append)
                    queue.add_popped([lease])

    async def _extend(self) -> None:
        now, seconds = self._clock.now(), self.group.subscription.invisible_time
        for queue in self.group.popped_queues:
            for offset in queue.expired(now):
                queue.drop(offset)
            due = [lease for lease in queue.leases.values() if lease.renew_at <= now]
            await self._client.run(change_invisible(self.group, due, seconds, RENEW_PART))

    async def _commit(self) -> None:
        """Acknowledge what was handled; what cannot be acknowledged comes again."""
        handled, self._handled[:] = list(self._handled), []
        for lease in handled:
            await self._client.run(acknowledge(self.group, lease.handle.broker, [lease]))
