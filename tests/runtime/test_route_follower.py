"""Where topics are: one name server after the other is asked, and the core is told."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.topic_brokers import Places, TopicBrokers
from reliable_mq.errors import Unavailable
from reliable_mq.runtime.route_follower import follow_routes_forever
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply

ROUTE = (
    b'{"brokerDatas":[],"queueDatas":['
    b'{"brokerName":"a","perm":6,"readQueueNums":2,"writeQueueNums":4},'
    b'{"brokerName":"b","perm":2,"readQueueNums":4,"writeQueueNums":4},'
    b'{"brokerName":"c","perm":4,"readQueueNums":-1,"writeQueueNums":4}]}'
)


def told_by(*answers: bytes | ResponseCode | None) -> Places:
    """Return what the core is told when name servers answer so; None: one does not answer."""
    table: TopicBrokers[str] = TopicBrokers()
    told: dict[str, Places] = {}

    async def ask(address: str, command: Command) -> Command:
        assert command.ext_fields == {"topic": "orders"}
        answer = answers[int(address)]
        if answer is None:
            raise Unavailable("away")
        if isinstance(answer, ResponseCode):
            return reply(command, answer)
        return reply(command, body=answer)

    async def scene() -> None:
        registrar: Any = SimpleNamespace(addresses=[str(n) for n in range(len(answers))], ask=ask)
        core: Any = SimpleNamespace(
            state=SimpleNamespace(topic_brokers=table),
            told_places=lambda name, places, _now_ms: told.update({name: places}),
        )
        table.is_followed = True
        assert table.places("orders", "somebody", 0) is None
        task = asyncio.create_task(follow_routes_forever(core, registrar))
        await eventually(lambda: bool(told))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_scene(scene())
    found: Sequence[tuple[str, int]] = told["orders"]
    return found


def test_brokers_with_readable_queues_are_told() -> None:
    assert told_by(ROUTE) == (("a", 2), ("c", 0))


def test_a_name_server_that_is_away_or_talks_nonsense_is_passed_over() -> None:
    assert told_by(None, b"nonsense", ROUTE) == (("a", 2), ("c", 0))


def test_a_topic_that_no_name_server_knows_is_nowhere() -> None:
    assert told_by(ResponseCode.TOPIC_NOT_EXIST, ROUTE) == ()
    assert told_by(None, None) == ()
