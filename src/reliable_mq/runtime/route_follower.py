"""Asks name servers where topics are, for the broker that assigns queues of the whole cluster.

It receives topics from the core, asks one name server after the other, and passes the answers back.
"""

import asyncio

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.topic_brokers import Places
from reliable_mq.broker_core.topics import READ
from reliable_mq.runtime.broker_members import ASKING_FAULTS, TopicRoute
from reliable_mq.runtime.registrar import Registrar
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import request
from reliable_mq.wire.peer_texts import read_json_as

_LOOK_SECONDS = 0.05
_AT_ONCE = 16


async def follow_routes_forever(core: BrokerCore, registrar: Registrar) -> None:
    """Answer what the core wants to know of topics; look every 50 ms."""
    table = core.state.topic_brokers
    table.is_followed = True
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        names = table.take_asked()
        for begin in range(0, len(names), _AT_ONCE):
            some = names[begin : begin + _AT_ONCE]
            found = await asyncio.gather(*(_places(name, registrar) for name in some))
            for name, places in zip(some, found, strict=True):
                core.told_places(name, places, now_ms())


async def _places(topic: str, registrar: Registrar) -> Places:
    """Return where a topic is, as the first name server says that answers."""
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    for address in registrar.addresses:
        try:
            answer = await registrar.ask(address, command)
            if answer.code != ResponseCode.SUCCESS:
                return ()
            route = read_json_as(answer.body, TopicRoute)
        except ASKING_FAULTS:
            continue
        return tuple(
            (each.broker_name, max(0, each.read_queue_nums))
            for each in route.queue_datas
            if each.perm & READ
        )
    return ()
