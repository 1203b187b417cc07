"""Groups that are left: what else happens before brokers have answered."""

import asyncio

import pytest
from tests.client.script import World, routes_answer, says
from tests.client.scripted_consumer import ScriptedClient, consumed, play, reading
from tests.client.test_introductions import Engine
from tests.waiting import eventually

from reliable_mq.client.connecting.asyncio_membership import AsyncMembership
from reliable_mq.errors import UsageError
from reliable_mq.wire.codes import RequestCode


class Connected(Engine):
    """An engine with a connection to its only broker."""

    def __init__(self) -> None:
        world = World({RequestCode.HEART_BEAT: says(), RequestCode.UNREGISTER_CLIENT: says()})
        world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = routes_answer({"t": {"a": 1}})
        super().__init__(world)
        world.play(self.routes.of("t"))

    def open_addresses(self) -> set[str]:
        return {"a:10911"}


def test_nobody_joins_a_group_before_brokers_have_answered_that_it_was_left() -> None:
    """A broker might strike him off, and hear of him again only with the next heartbeat."""

    async def scene() -> None:
        engine = Connected()
        membership = AsyncMembership(engine)
        member, _ = reading(ScriptedClient(World()), consumed)
        membership.join(member)
        leaving = asyncio.create_task(membership.leave("g"))
        await eventually(lambda: engine.asked == 1)
        assert not membership.members, "a heartbeat would put it back"
        with pytest.raises(UsageError, match="group g"):
            membership.join(member)
        engine.may_answer.set()
        await leaving
        membership.join(member)

    play(scene())


def test_a_group_is_left_behind_the_heartbeat_under_way_although_who_sent_it_is_cancelled() -> None:
    """Taken in later, it would put the member back for as long as the connection lives."""

    async def scene() -> None:
        engine = Connected()
        membership = AsyncMembership(engine)
        member, _ = reading(ScriptedClient(World()), consumed)
        membership.join(member)
        beating = asyncio.create_task(membership.heartbeat())
        await eventually(lambda: engine.asked == 1)
        beating.cancel()
        leaving = asyncio.create_task(membership.leave("g"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert engine.asked == 1
        engine.may_answer.set()
        await leaving
        codes = [call.command.code for call in engine.world.calls]
        assert codes[-2:] == [RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT]

    play(scene())


def test_a_producer_that_joins_while_the_client_says_farewell_disturbs_nobody() -> None:
    async def scene() -> None:
        engine = Connected()
        membership = AsyncMembership(engine)
        membership.produce("p")
        membership.produce("q")
        leaving = asyncio.create_task(membership.leave_producer_groups())
        await eventually(lambda: engine.asked == 1)
        membership.produce("late")
        engine.may_answer.set()
        await leaving
        calls = engine.world.calls_of(RequestCode.UNREGISTER_CLIENT)
        assert [call.command.ext_fields["producerGroup"] for call in calls] == ["p", "q"]

    play(scene())
