"""The shells of the consumers that are asked, with a client that plays the world's part."""

import asyncio
import logging
from typing import TypeVar

import msgspec
import pytest
from tests.client.script import Answer, World, group_of, in_turn, says
from tests.client.scripted_consumer import (
    ScriptedClient,
    ext,
    found,
    members,
    play,
    record,
    world_with,
)
from tests.client.scripted_pulls import (
    COMMIT,
    NOTHING_NEW,
    QUEUE,
    QUICK,
    PullingClient,
    committed,
    pulled_from,
)
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_pull_consumer import AsyncPullConsumer, PullOptions
from reliable_mq.client.consuming.asyncio_pulled_queues import PulledQueues
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
from reliable_mq.client.consuming.subscription import Sql, Subscription
from reliable_mq.client.flow import Flow
from reliable_mq.errors import ConfigurationError, ConnectionLost, UsageError
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record

T = TypeVar("T")

CHECK = RequestCode.CHECK_CLIENT_CONFIG
PULL = RequestCode.PULL_MESSAGE


def test_offsets_that_an_administrator_resets_are_read_from_and_committed() -> None:
    async def scene() -> None:
        world = world_with(NOTHING_NEW)
        pulled = pulled_from(world)
        pulled.start()
        await eventually(pulled.positions.positions)
        pulled.reset_offsets({QUEUE: 40, MessageQueue("t", "elsewhere", 0): 9})
        assert await pulled.position(QUEUE) == 40
        await pulled.close()
        assert committed(world) == [40]

    play(scene())


class HeldPulls(ScriptedClient):
    """Lets every pull wait, as a broker does that has nothing, and notes which were given up."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.held = 0
        self.given_up = 0

    async def run(self, flow: Flow[T]) -> T:
        if getattr(flow, "__name__", "") == "pull_once":
            self.held += 1
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up += 1
                raise
        return await super().run(flow)


def test_a_seek_gives_up_the_pull_that_a_broker_holds_and_pulls_anew_at_once() -> None:
    async def scene() -> None:
        client = HeldPulls(world_with(NOTHING_NEW))
        wanted = Subscription(group="g", topics={"t": "*"}, ordered=False)
        group = group_of(client.world, wanted, queues={"a": 1}, settings=QUICK, polled=True)
        pulled = PulledQueues(client, group, auto_commit=False)
        pulled.start()
        await eventually(lambda: client.held == 1)
        pulled.seek(QUEUE, 40)
        await eventually(lambda: client.held == 2)
        assert client.given_up == 1
        assert pulled.positions.positions() == {QUEUE: 40}
        await pulled.close()

    play(scene())


def test_polls_go_on_where_the_broker_has_messages() -> None:
    async def scene() -> None:
        world = world_with(
            in_turn(
                found(2, record(0), record(1)),
                says(ResponseCode.PULL_OFFSET_MOVED, ext(100)),
                found(101, record(100)),
                NOTHING_NEW,
            )
        )
        pulled = pulled_from(world)
        pulled.start()
        await eventually(lambda: pulled.positions.positions() == {QUEUE: 100})
        messages = await pulled.poll(60.0, 10)
        assert [message.queue_offset for message in messages] == [100]
        await pulled.close()

    play(scene())


def test_a_commit_that_fails_when_a_queue_leaves_keeps_it_from_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        world = world_with(in_turn(found(1, record(0)), NOTHING_NEW))
        world.answers[COMMIT] = says(ResponseCode.SYSTEM_ERROR, remark="on fire")
        pulled = pulled_from(world)
        pulled.start()
        await pulled.poll(60.0, 10)
        pulled.positions.poll_begins()
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("a", "client-a")
        pulled.rebalance_soon()
        await eventually(lambda: not pulled.group.all_queues)
        assert "the last commit failed" in caplog.text
        await pulled.close()

    play(scene())


def test_a_consumer_that_is_closed_gives_the_room_of_what_it_fetched_back_to_its_client() -> None:
    async def scene() -> None:
        pulled = pulled_from(world_with(in_turn(found(2, record(0), record(1)), NOTHING_NEW)))
        pulled.start()
        await eventually(lambda: any(each.unfinished for each in pulled.group.assigned))
        budget = pulled.group.assigned[0].budget
        assert budget.held
        await pulled.close()
        assert budget.held == 0
        assert pulled.group.all_queues == []

    play(scene())


def test_queues_that_are_assigned_anew_with_what_no_broker_can_filter_change_nothing() -> None:
    async def scene() -> None:
        world = world_with(NOTHING_NEW)
        world.answers[CHECK] = says(ResponseCode.SYSTEM_ERROR, remark="it does not read")
        pull = AsyncPullConsumer(PullingClient(world), PullOptions(group="g"))
        await pull.assign([QUEUE], wanted="paid")
        with pytest.raises(ConfigurationError, match="cannot filter topic t"):
            await pull.assign([QUEUE], wanted=Sql("colour = ="))
        assert pull._pulled is not None
        assert pull._pulled.group.filters == {"t": "paid"}
        await pull.close()

    play(scene())


class Moving(PullingClient):
    """Has a queue taken away whenever brokers are asked for offsets."""

    pull: AsyncPullConsumer

    async def run(self, flow: Flow[T]) -> T:
        if getattr(flow, "__name__", "") in {"first_offset", "offsets_at"}:
            assert self.pull._pulled is not None
            self.pull._pulled.reader.choose([QUEUE])
        return await super().run(flow)


def test_the_lag_of_all_queues_leaves_out_one_that_leaves_meanwhile() -> None:
    async def scene() -> None:
        world = world_with(NOTHING_NEW)
        world.answers[RequestCode.GET_MAX_OFFSET] = says(ext={"offset": "7"})
        client = Moving(world, queues=2)
        client.pull = pull = AsyncPullConsumer(client, PullOptions(group="g"))
        gone = MessageQueue("t", "a", 1)
        await pull.assign([QUEUE, gone])
        assert await pull.lag() == {QUEUE: 7}
        with pytest.raises(UsageError, match="is not assigned"):
            await pull.lag(gone)
        await pull.close()

    play(scene())


class SlowCheck(PullingClient):
    """Waits until it may before it looks whether brokers can filter."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.is_asked = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def run(self, flow: Flow[T]) -> T:
        if getattr(flow, "__name__", "") == "check_filters":
            self.is_asked.set()
            await self.may_go_on.wait()
        return await super().run(flow)


def test_queues_that_are_assigned_while_the_consumer_is_closed_are_not_read() -> None:
    async def scene() -> None:
        client = SlowCheck(world_with(NOTHING_NEW))
        pull = AsyncPullConsumer(client, PullOptions(group="g"))
        assigning = asyncio.create_task(pull.assign([QUEUE]))
        await client.is_asked.wait()
        await pull.close()
        client.may_go_on.set()
        with pytest.raises(UsageError, match="this consumer is closed"):
            await assigning
        assert pull._pulled is None

    play(scene())


def simple_from(
    world: World, *, ordered: bool = False, client: ScriptedClient | None = None
) -> AsyncSimpleConsumer:
    wanted = Subscription(group="g", topics={"t": "*"}, ordered=ordered)
    group = group_of(world, wanted, queues={"a": 1}, settings=QUICK)
    return AsyncSimpleConsumer(client or ScriptedClient(world), group)


def once(answer: Answer) -> Answer:
    """Answer a pull of the topic so, and nothing more."""
    of_topic = in_turn(answer, NOTHING_NEW)
    return lambda call: (
        of_topic(call) if call.command.ext_fields["topic"] == "t" else NOTHING_NEW(call)
    )


def test_a_queue_that_moves_is_given_back_with_what_nobody_acknowledged_after_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        world = world_with(once(found(3, record(0), record(1), record(2))))
        simple = simple_from(world)
        simple.start()
        first, second, third = await simple.receive(timeout=60.0)
        await simple.ack(first, third)
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("a", "client-a")
        simple.rebalance_soon()
        await eventually(lambda: not any(each.queue == QUEUE for each in simple.group.all_queues))
        assert "1 of its messages are still being handled after 0.05 s" in caplog.text
        assert committed(world)[-1] == 1
        assert second.queue_offset == 1
        await simple.close()

    play(scene())


def test_a_message_that_cannot_be_settled_because_of_a_bug_comes_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Flow[None]:
        raise TypeError("a bug")

    async def scene() -> None:
        simple = simple_from(world_with(once(found(1, record(0)))))
        simple.group.settings = msgspec.structs.replace(QUICK, settle_retry_seconds=0.01)
        simple.start()
        (message,) = await simple.receive(timeout=60.0)
        monkeypatch.setattr("reliable_mq.client.consuming.asyncio_simple_consumer.settle", broken)
        with caplog.at_level(logging.ERROR):
            await simple.retry(message)
        assert "was received and not settled" in caplog.text
        (again,) = await simple.receive(timeout=60.0)
        assert (again.queue_offset, again.reconsume_times) == (0, 0)
        await simple.close()

    play(scene())


class SlowBroker(ScriptedClient):
    """Lets whatever is settled wait until it may."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def run(self, flow: Flow[T]) -> T:
        if getattr(flow, "__name__", "") == "settle":
            self.is_asked.set()
            await self.may_answer.wait()
        return await super().run(flow)


def test_a_message_is_handed_back_although_who_waits_for_that_is_cancelled() -> None:
    async def scene() -> None:
        client = SlowBroker(world_with(once(found(1, record(0)))))
        simple = simple_from(client.world, client=client)
        simple.start()
        (message,) = await simple.receive(timeout=60.0)
        retrying = asyncio.create_task(simple.retry(message))
        await client.is_asked.wait()
        retrying.cancel()
        await asyncio.wait([retrying])
        assert retrying.cancelled()
        client.may_answer.set()
        await eventually(lambda: not any(each.unfinished for each in simple.group.assigned))
        assert len(client.world.calls_of(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
        await simple.close()

    play(scene())


def test_who_waits_for_a_dead_letter_when_the_consumer_is_closed_hears_that() -> None:
    async def scene() -> None:
        client = SlowBroker(world_with(once(found(1, record(0)))))
        simple = simple_from(client.world, client=client)
        simple.start()
        (message,) = await simple.receive(timeout=60.0)
        giving_up = asyncio.create_task(simple.reject(message, "it cannot be read"))
        await client.is_asked.wait()
        await simple.close()
        with pytest.raises(ConnectionLost, match="this consumer was closed meanwhile"):
            await giving_up

    play(scene())


class OnePull(ScriptedClient):
    """Lets all pulls wait when the topic was pulled once, as a broker does that has no more."""

    async def run(self, flow: Flow[T]) -> T:
        pulled = (call.command.ext_fields["topic"] for call in self.world.calls_of(PULL))
        if getattr(flow, "__name__", "") == "pull_once" and "t" in pulled:
            await asyncio.Event().wait()
        return await super().run(flow)


def test_a_key_goes_on_behind_what_is_acknowledged_together_with_what_is_no_message() -> None:
    def with_key(offset: int) -> Record:
        properties = encode_properties({"UNIQ_KEY": f"ID{offset}", "__SHARDINGKEY": "k"})
        return msgspec.structs.replace(record(offset), properties=properties)

    async def scene() -> None:
        client = OnePull(world_with(once(found(2, with_key(0), with_key(1)))))
        simple = simple_from(client.world, ordered=True, client=client)
        simple.start()
        (first,) = await simple.receive(timeout=60.0)
        receiving = asyncio.create_task(simple.receive(timeout=3600.0))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="a received message is needed"):
            await simple.ack(first, "no message")  # type: ignore[arg-type]
        await eventually(receiving.done)
        assert [message.queue_offset for message in receiving.result()] == [1]
        await simple.close()

    play(scene())
