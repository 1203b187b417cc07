"""From when the leases of popped messages count. The clock is the world's."""

import asyncio
import inspect
from collections.abc import Callable
from typing import TypeVar

import pytest
from tests.client.pop_broker import QUICK, PopBroker, PoppingClient, popping_group
from tests.client.script import Answer, World, fails
from tests.client.scripted_consumer import play
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_message_fetcher import MessageFetcher
from reliable_mq.client.consuming.pop_leases import change_invisible
from reliable_mq.client.consuming.pop_shares import Share
from reliable_mq.client.consuming.popped_queue import PopLease
from reliable_mq.client.consuming.popping import pop
from reliable_mq.client.flow import Call, Flow
from reliable_mq.errors import RequestTimeout
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.pop_handle import PopHandle

T = TypeVar("T")
BEGIN = 1000.0


def late(world: World, answer: Answer, *, before: float = 0.0, after: float = 0.0) -> Answer:
    """Return an answer that the broker gives after `before`, and that comes `after` later."""

    def answered(call: Call) -> Command:
        world.seconds += before
        reply = answer(call)
        world.seconds += after
        return reply

    return answered


def popped(broker: PopBroker, *, invisible: float, poll: float) -> PopLease:
    group = popping_group(broker.world)
    flow = pop(group, Share("t", "a"), 1, invisible_seconds=invisible, poll_seconds=poll)
    (lease,) = broker.world.play(flow).leases
    return lease


def test_an_extension_counts_from_before_its_request_however_late_the_answer_is() -> None:
    broker = PopBroker(World(), "")
    lease = popped(broker, invisible=60.0, poll=0.0)
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    broker.world.answers[code] = late(broker.world, broker.world.answers[code], after=4.9)

    assert broker.world.play(change_invisible(popping_group(broker.world), [lease], 2.0, 0.5)) == [
        None
    ]
    assert (lease.renew_at, lease.expires) == (BEGIN + 1, BEGIN + 2)
    assert lease.expires <= lease.handle.revive_ms / 1000


@pytest.mark.parametrize(
    ("poll", "held", "way", "begun"),
    [
        pytest.param(0.0, 0.0, 4.9, 0.0, id="not held: from the request"),
        pytest.param(15.0, 0.0, 4.9, 0.0, id="held as long as the broker likes: not before it"),
        pytest.param(15.0, 12.0, 0.1, 6.1, id="held: a tenth before the answer"),
        pytest.param(15.0, 12.0, 5.9, 11.9, id="held, and long on its way"),
    ],
)
def test_a_lease_ends_here_before_it_ends_at_the_broker(
    poll: float, held: float, way: float, begun: float
) -> None:
    broker = PopBroker(World(), "")
    code = RequestCode.POP_MESSAGE
    answer = broker.world.answers[code]
    broker.world.answers[code] = late(broker.world, answer, before=held, after=way)

    lease = popped(broker, invisible=60.0, poll=poll)
    assert lease.expires == pytest.approx(BEGIN + begun + 60)
    assert lease.renew_at == pytest.approx(BEGIN + begun + 30)
    assert lease.expires <= lease.handle.revive_ms / 1000


class OneDead(PoppingClient):
    """A client that waits for the answers of broker "dead" until `may_fail`."""

    def __init__(self, world: World, is_dead: Callable[[Flow[object]], bool]) -> None:
        super().__init__(world)
        self.may_fail = asyncio.Event()
        self._is_dead = is_dead

    async def run(self, flow: Flow[T]) -> T:
        if self._is_dead(flow):
            await self.may_fail.wait()
        return await super().run(flow)


def _names(flow: Flow[object], broker_name: str) -> bool:
    leases = inspect.getgeneratorlocals(flow).get("leases", ())
    return any(lease.handle.broker == broker_name for lease in leases)


def test_a_dead_broker_does_not_delay_the_leases_of_another() -> None:
    async def scene() -> None:
        world = World()
        PopBroker(world)
        world.answers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = fails(RequestTimeout("silent"))
        group = popping_group(world, QUICK)
        client = OneDead(world, lambda flow: _names(flow, "dead"))
        fetcher = MessageFetcher(client, group, None)  # type: ignore[arg-type]
        for broker_name in ("dead", "a"):
            queue = MessageQueue("t", broker_name, 0)
            message = ReceivedMessage(topic="t", body=b"x", queue=queue, queue_offset=1)
            handle = PopHandle(1, 1, 60_000, 2, "0", broker_name, 0, 1)
            end = client.lease_clock() + 60
            (added,) = fetcher.add([PopLease(message, "t", handle, end, end - 60)])
            added.take_ready(1, 0.0)

        async def is_extended_again() -> bool:
            await fetcher.renew()
            return len(world.calls_of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) >= 3

        await eventually(is_extended_again, seconds=5.0)
        client.may_fail.set()
        await fetcher.stop()

    play(scene())
