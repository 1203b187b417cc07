"""What administrators have handled at once, apart from all queues, when its consumer closes."""

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.client.script import World
from tests.client.scripted_consumer import QUICK, Held, ScriptedClient, play, reading, record
from tests.client.test_asyncio_hands import LIMIT, Hanging
from tests.waiting import eventually

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.consuming.asyncio_answers import ConsumerAnswers
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.flow import Instant
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Outcome
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.record_encode import encode_record

DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
PATIENT = msgspec.structs.replace(QUICK, close_timeout_seconds=60.0)
HASTY = msgspec.structs.replace(QUICK, close_timeout_seconds=LIMIT)


class Told:
    """Plays the client of the answers, and keeps them."""

    def __init__(self) -> None:
        self.replies: list[Command] = []

    @property
    def name_servers(self) -> NameServers:
        return NameServers(("ns:9876",), 1.0)

    def now(self) -> Instant:
        return Instant(0.0, 0, 0.0)

    def answer(self, address: str, command: Command) -> None:
        assert address == "a:10911"
        self.replies.append(command)

    @property
    def results(self) -> list[tuple[str, str | None]]:
        """What the handler came to, as it was told."""
        bodies: list[dict[str, Any]] = [fastjson.loads(each.body) for each in self.replies]
        return [(body["consumeResult"], body.get("remark")) for body in bodies]


def ask(told: Told, consumer: AsyncPushConsumer) -> Command | None:
    """Have a message handled, as a broker asks for it; return what is answered at once."""
    serve = ConsumerAnswers(told, {"g": consumer}.get).requests()[DIRECTLY]
    body = encode_record(record(7))
    return serve("a:10911", request(DIRECTLY, {"consumerGroup": "g"}, body))


def test_closing_waits_for_a_handler_that_an_administrator_began_and_tells_its_word() -> None:
    async def scene() -> None:
        told, handler = Told(), Held()
        consumer, _ = reading(ScriptedClient(World()), handler, PATIENT)
        assert ask(told, consumer) is None
        await handler.running.wait()
        closing = asyncio.create_task(consumer.close())
        await eventually(lambda: not consumer.pool.accepts)
        for _ in range(100):  # nothing of this world takes more turns
            await asyncio.sleep(0)
        assert not closing.done()
        handler.may_end.set()
        await closing
        assert told.results == [("CR_SUCCESS", None)]

    play(scene())


def test_who_asked_for_a_handler_that_the_close_cancels_hears_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        told, handler = Told(), Held()
        consumer, _ = reading(ScriptedClient(World()), handler, HASTY)
        assert ask(told, consumer) is None
        await handler.running.wait()
        await consumer.close()
        ((result, remark),) = told.results
        assert (result, remark) == ("CR_THROW_EXCEPTION", "CancelledError: the consumer was closed")

    with caplog.at_level(logging.INFO):
        play(scene())
    assert "message ID7 (key -) of topic t was handled because a:10911 asked" in caplog.text


def test_closing_waits_no_longer_than_it_may_for_a_thread_that_an_administrator_began() -> None:
    hanging = Hanging()

    async def scene() -> None:
        told = Told()
        consumer, _ = reading(ScriptedClient(World()), hanging, HASTY)
        assert ask(told, consumer) is None
        try:
            await eventually(lambda: hanging.begun == [7])
            await consumer.close()
            ((_, remark),) = told.results
            assert remark is not None
            assert remark.endswith("the consumer was closed, a thread is still in the handler")
        finally:
            hanging.may_end.set()

    play(scene())


async def finds_no_file(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    raise FileNotFoundError(os.fsdecode(b"caf\xe9.txt"))


def test_who_asked_hears_also_of_an_error_whose_words_are_no_characters() -> None:
    async def scene() -> None:
        told = Told()
        consumer, _ = reading(ScriptedClient(World()), finds_no_file)
        assert ask(told, consumer) is None
        await eventually(lambda: told.replies)
        assert told.results == [("CR_THROW_EXCEPTION", r"FileNotFoundError: caf\udce9.txt")]
        await consumer.close()

    play(scene())


def test_a_consumer_that_closes_handles_nothing_more_that_administrators_ask_for() -> None:
    async def scene() -> None:
        told, handler = Told(), Held()
        consumer, _ = reading(ScriptedClient(World()), handler, PATIENT)
        consumer.pool.pump()
        await handler.running.wait()
        closing = asyncio.create_task(consumer.close())
        await eventually(lambda: not consumer.pool.accepts)
        refused = ask(told, consumer)
        assert refused is not None
        assert refused.code == ResponseCode.SYSTEM_ERROR
        handler.may_end.set()
        await closing
        assert told.replies == []

    play(scene())
