"""A broker that does not know a group's subscription hears of it once, for all its queues."""

import asyncio
from typing import TypeVar

from tests.client.script import NAME_SERVER, World, group_of, route_table, routes_answer, says
from tests.client.scripted_consumer import QUICK, ScriptedClient, consumed, members, play
from tests.waiting import eventually

from reliable_mq.client.connecting.asyncio_membership import AsyncMembership
from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import Call, Flow
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import RequestTimeout
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

T = TypeVar("T")

PULL = RequestCode.PULL_MESSAGE
QUEUES = 50


def test_one_introduction_serves_all_queues_whose_broker_has_forgotten_the_group() -> None:
    async def scene() -> None:
        def forgets(call: Call) -> Command:
            if len(world.calls_of(PULL)) > QUEUES:
                raise RequestTimeout("nothing new")
            return reply(call.command, ResponseCode.SUBSCRIPTION_NOT_EXIST, "no subscription")

        world = World({PULL: forgets, RequestCode.QUERY_CONSUMER_OFFSET: says(ext={"offset": "0"})})
        client = ScriptedClient(world)
        subscription = Subscription(group="g", topics={"t": "*"}, ordered=False)
        group = group_of(world, subscription, queues={"a": QUEUES}, settings=QUICK)
        world.answers |= {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: members("client-a"),
            RequestCode.UPDATE_CONSUMER_OFFSET: says(),
        }
        consumer = AsyncPushConsumer(client, group, consumed)
        await consumer.start()
        await eventually(lambda: len(world.calls_of(PULL)) >= 2 * QUEUES)
        assert client.introductions == 1
        await consumer.close()

    play(scene())


class Engine:
    """Sends heartbeats into a scripted world, each when it is let go."""

    settings = ClientSettings()
    client_id = "me"

    def __init__(self, world: World) -> None:
        self.world = world
        self.routes = route_table()
        self.name_servers = NameServers((NAME_SERVER,), self.settings.request_timeout_seconds)
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def run(self, flow: Flow[T]) -> T:
        self.asked += 1
        await self.may_answer.wait()
        return self.world.play(flow)

    def open_addresses(self) -> set[str]:
        return set()

    def drop(self, address: str) -> None:
        raise AssertionError(address)


def test_who_asks_for_an_introduction_while_one_is_under_way_shares_the_next_one() -> None:
    async def scene() -> None:
        world = World({RequestCode.HEART_BEAT: says()})
        world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = routes_answer({"t": {"a": 1, "b": 1}})
        engine = Engine(world)
        world.play(engine.routes.of("t"))
        membership = AsyncMembership(engine)
        membership.produce("p")
        waiting = [asyncio.create_task(membership.send_full_heartbeats()) for _ in range(QUEUES)]
        await eventually(lambda: engine.asked)
        waiting.pop().cancel()
        engine.may_answer.set()
        await asyncio.gather(*waiting)
        beats = [call.address for call in world.calls_of(RequestCode.HEART_BEAT)]
        assert sorted(beats) == ["a:10911"] * 2 + ["b:10911"] * 2

    play(scene())


def test_an_introduction_that_was_given_up_serves_nobody() -> None:
    async def scene() -> None:
        world = World({RequestCode.HEART_BEAT: says()})
        world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = routes_answer({"t": {"a": 1}})
        engine = Engine(world)
        world.play(engine.routes.of("t"))
        membership = AsyncMembership(engine)
        membership.produce("p")
        first, second = (asyncio.create_task(membership.send_full_heartbeats()) for _ in range(2))
        await eventually(lambda: engine.asked)
        first.cancel()
        engine.may_answer.set()
        await second
        beats = len(world.calls_of(RequestCode.HEART_BEAT))
        assert beats == 2, "the first one was on its way, and its answer counts for nobody"

    play(scene())
