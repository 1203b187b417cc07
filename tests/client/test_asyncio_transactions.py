"""Answers for half messages: whatever answers them, nothing of it ends the loop."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.client.script import World
from tests.client.test_transaction import GROUP, question
from tests.waiting import run_scene

from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.consuming.thread_handling import Threads
from reliable_mq.client.flow import Flow
from reliable_mq.client.sending.asyncio_transactions import AsyncTransactions
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.transaction import TransactionFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import CheckBack, Decision
from reliable_mq.wire.command import Command
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record
from reliable_mq.wire.record_encode import encode_record

T = TypeVar("T")


def exits(_: CheckBack) -> Decision:
    sys.exit(3)


async def exits_on_the_loop(_: CheckBack) -> Decision:
    sys.exit(3)


def transactions_of(world: World) -> AsyncTransactions:
    async def run(flow: Flow[T]) -> T:
        return world.play(flow)

    async def tell(group: str) -> None:
        assert group == GROUP

    settings = ClientSettings()
    routes = RouteCache(None, 4, 30.0)  # type: ignore[arg-type] # nobody asks for a route
    flows = TransactionFlows(settings, routes, SendFlows(settings, routes, bytes))
    return AsyncTransactions(flows, run, tell)


def asked() -> Command:
    """Return what a broker asks of a half message."""
    properties = encode_properties({"UNIQ_KEY": "M" * 32, "PGROUP": GROUP})
    return question(encode_record(Record(topic="t", body=b"x", properties=properties)))


@pytest.mark.parametrize("answerer", [Threads(1, "check").wrapped(exits), exits_on_the_loop])
def test_a_check_function_that_exits_says_nothing_and_ends_nothing(
    answerer: Callable[[CheckBack], Awaitable[Decision]], caplog: pytest.LogCaptureFixture
) -> None:
    world = World()

    async def scene() -> None:
        transactions = transactions_of(world)
        await transactions.join(GROUP, answerer)
        transactions.asked("a:10911", asked())
        await asyncio.gather(*transactions.running)
        assert world.posts == [], "the broker asks again"

    run_scene(scene())
    assert f"the answer for half message {'M' * 32} failed" in caplog.text


def test_what_brokers_ask_after_the_close_is_left_to_another_member_of_the_group() -> None:
    calls: list[str] = []

    async def answerer(check: CheckBack) -> Decision:
        calls.append(check.message.message_id)
        return Decision.COMMIT

    async def scene() -> None:
        world = World()
        transactions = transactions_of(world)
        await transactions.join(GROUP, answerer)
        await transactions.close()
        transactions.asked("a:10911", asked())
        await asyncio.gather(*transactions.running)
        assert (calls, world.posts) == ([], [])

    run_scene(scene())
