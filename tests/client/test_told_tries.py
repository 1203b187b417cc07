"""Whoever sends, and whoever looks on, is told how many requests a message took."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.observing.seen import Noted
from tests.client.script import Answer, World, fails, in_turn, says
from tests.client.test_producer import BATCH, SEND, STORED, stores_the_batch, world_of

from reliable_mq.client.flow import Step
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity, Sending
from reliable_mq.client.observing.send_results import of_nothing
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.errors import (
    BrokerBusy,
    ConnectionLost,
    NoRoute,
    ReliableMQError,
    RemoteError,
    RequestTimeout,
)
from reliable_mq.message import Message
from reliable_mq.wire.codes import ResponseCode

SILENT = fails(RequestTimeout("silent"))
BUSY = says(ResponseCode.SYSTEM_BUSY)
ILLEGAL = says(ResponseCode.MESSAGE_ILLEGAL)
DONE = says(ext=STORED)
MESSAGE = Message(topic="t", body=b"x")


@pytest.mark.parametrize(
    ("answers", "tries"), [([DONE], 1), ([BUSY, DONE], 2), ([SILENT, BUSY, DONE], 3)]
)
def test_a_result_says_how_many_requests_it_took(answers: list[Answer], tries: int) -> None:
    world, producer = world_of({"t": {"a": 1, "b": 1}})
    world.answers[SEND] = in_turn(*answers)
    assert world.play(producer.send(MESSAGE)).tries == tries
    world.answers[BATCH] = in_turn(*answers[:-1], stores_the_batch)
    assert world.play(producer.send_batch([MESSAGE, MESSAGE])).tries == tries


@pytest.mark.parametrize(
    ("answers", "error", "tries"),
    [
        ([ILLEGAL], RemoteError, 1),
        ([SILENT, ILLEGAL], RemoteError, 2),
        ([BUSY], BrokerBusy, 3),
        ([SILENT], RequestTimeout, 3),
    ],
)
def test_an_error_says_how_many_requests_were_made(
    answers: list[Answer], error: type[ReliableMQError], tries: int
) -> None:
    world, producer = world_of({"t": {"a": 1, "b": 1}})
    world.answers[SEND] = in_turn(*answers)
    with pytest.raises(error) as raised:
        world.play(producer.send(MESSAGE))
    assert raised.value.tries == tries == len(world.calls_of(SEND))


def test_where_no_request_was_made_none_is_said_to_be() -> None:
    world, producer = world_of({})
    with pytest.raises(NoRoute) as raised:
        world.play(producer.send(MESSAGE))
    assert raised.value.tries == 0


def test_a_middleware_is_told_of_the_message_that_took_most() -> None:
    world, producer = world_of({"t": {"a": 1, "b": 1}})
    world.answers[SEND] = in_turn(BUSY, DONE, ILLEGAL)
    results = [world.play(producer.send(MESSAGE))]
    refused = RemoteError(13, "illegal")
    refused.tries = 1
    sending = Sending(
        verb="send_many", messages=[], group="g", origin=ClientIdentity(), begun=0.0, begun_ms=0
    )
    assert sending.tries == 0
    sending.results = [*results, refused, None]
    assert sending.tries == 2
    sending.results = [None]
    assert sending.tries == 1
    sending.posts = 3
    assert sending.tries == 3


class Reviving(World):
    """A world whose brokers are back after so many waits."""

    def _answer(self, step: Step) -> Any:
        if len(self.waits) == 2:
            self.dead.clear()
        return super()._answer(step)


def test_of_a_one_way_message_a_middleware_is_told_the_same_whether_it_left_or_not() -> None:
    noted = Noted()
    hooks = Hooks([noted], ClientIdentity())

    def post(world: World, producer: SendFlows) -> None:
        world.dead.add("a:10911")

        async def send(messages: Sequence[Message]) -> int:
            return world.play(producer.send_oneway(messages[0]))

        asyncio.run(hooks.around_send("send_oneway", [MESSAGE], send, of_nothing, posts_of=int))

    world, producer = world_of({"t": {"a": 1}})
    reviving = Reviving(world.answers)
    post(reviving, producer)
    assert len(reviving.posts) == 1
    with pytest.raises(ConnectionLost):
        post(world, producer)

    assert [each.tries for each in noted.sendings] == [3, 3]


def test_a_one_way_message_that_cannot_leave_says_how_often_it_was_tried() -> None:
    world, producer = world_of({"t": {"a": 1}})
    world.dead.add("a:10911")
    with pytest.raises(ConnectionLost) as raised:
        world.play(producer.send_oneway(MESSAGE))
    assert raised.value.tries == 3
