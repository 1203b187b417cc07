"""The hands of a consumer: pauses, calls that hang, and what a handler leaves behind."""

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import uvloop
from tests.client.script import World
from tests.client.scripted_consumer import QUICK, ScriptedClient, message, play, reading
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, Retry
from reliable_mq.wire.codes import RequestCode

LIMIT = 0.001
BACK = RequestCode.CONSUMER_SEND_MSG_BACK


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def checked_until(consumer: AsyncPushConsumer, condition: Callable[[], object]) -> None:
    """Look for calls that take too long, as the consumer's own task does, until this holds."""

    async def holds() -> object:
        await consumer.pool.check()
        return condition()

    await eventually(holds, lambda: inspect.getsource(condition))


def test_a_hand_goes_on_with_what_there_is_and_lets_others_have_the_loop() -> None:
    """A handler that never waits would keep the loop for the whole backlog."""
    tasks: set[object] = set()
    others = 0

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        tasks.add(asyncio.current_task())
        end = time.monotonic() + 0.0005
        while time.monotonic() < end:
            pass
        return [CONSUMED]

    async def scene() -> None:
        nonlocal others
        consumer, assigned = reading(ScriptedClient(World()), handle, keys=[""] * 20, concurrency=1)
        consumer.pool.pump()
        while assigned.unfinished:
            await asyncio.sleep(0)
            others += 1

    uvloop.run(scene())  # its clock stands still within a turn
    assert len(tasks) == 1
    assert others >= 5


def test_what_a_handler_sets_in_its_context_is_gone_with_the_next_message() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    seen: list[str] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        seen.append(user.get())
        user.set("Ada")
        await asyncio.sleep(0)
        seen.append(user.get())
        return [CONSUMED]

    async def scene() -> None:
        consumer, assigned = reading(ScriptedClient(World()), handle, keys=["", ""], concurrency=1)
        consumer.pool.pump()
        await eventually(lambda: not assigned.unfinished)

    play(scene())
    assert seen == ["nobody", "Ada", "nobody", "Ada"]


@pytest.mark.parametrize("change", [list.clear, list.pop, lambda given: given.append(given[0])])
def test_a_handler_that_changes_what_it_was_given_has_failed_and_takes_nothing_away(
    change: Any,
) -> None:
    """Its messages stayed with the call for ever: neither handled nor handed out again."""
    handled: list[int] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        if len(handled) < 2:
            handled.extend(message.queue_offset for message in messages)
            change(messages)
        handled.extend(message.queue_offset for message in messages)
        return [CONSUMED] * len(messages)

    async def scene() -> None:
        consumer, assigned = reading(
            ScriptedClient(World()), handle, ordered=True, keys=["j", "k"], batch=2,
            retry_waits=(LIMIT,),
        )  # fmt: skip
        consumer.pool.pump()
        await eventually(lambda: not assigned.unfinished)

    play(scene())
    assert handled == [0, 1, 0, 1]


def test_what_a_handler_makes_of_properties_is_not_seen_by_the_next_attempt() -> None:
    seen: list[dict[str, str]] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        properties = messages[0].properties
        seen.append(dict(properties))
        properties.clear()
        properties["mine"] = "yes"
        return [CONSUMED if len(seen) == 3 else Retry()]

    async def scene() -> None:
        consumer, assigned = reading(
            ScriptedClient(World()), handle, ordered=True, keys=["k"], retry_waits=(LIMIT,)
        )
        consumer.pool.pump()
        await eventually(lambda: not assigned.unfinished)

    play(scene())
    assert seen[0]
    assert seen == [seen[0]] * 3


def test_a_coroutine_that_takes_too_long_is_cancelled_and_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hangs(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling(), "the end of one call is none of the next one"
        await asyncio.Event().wait()
        return [CONSUMED]

    async def scene() -> None:
        client = ScriptedClient(World())
        consumer, assigned = reading(
            client, hangs, keys=["", ""], concurrency=1, handling_seconds=LIMIT
        )
        consumer.pool.pump()
        await checked_until(consumer, lambda: not assigned.unfinished)
        assert len(client.world.calls_of(BACK)) == 2

    play(scene())
    assert "takes longer than 0.001 s" in caplog.text
    assert "the handler took longer than 0.001 s" in caplog.text


def test_a_call_that_did_not_begin_while_the_process_stood_still_has_taken_no_time() -> None:
    handled: list[int] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        handled.extend(message.queue_offset for message in messages)
        return [CONSUMED] * len(messages)

    async def scene() -> None:
        client = ScriptedClient(World())
        consumer, assigned = reading(client, handle, handling_seconds=LIMIT)
        consumer.pool.pump()
        stood_still = asyncio.get_running_loop().time() + LIMIT
        while asyncio.get_running_loop().time() < stood_still:
            pass
        await consumer.pool.check()
        await eventually(lambda: not assigned.unfinished)
        assert handled == [0]

    play(scene())


def test_a_keyed_coroutine_that_takes_too_long_is_tried_again_in_its_place() -> None:
    attempts: list[tuple[int, int]] = []

    async def hangs_once(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        attempts.append((messages[0].queue_offset, messages[0].reconsume_times))
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return [CONSUMED]

    async def scene() -> None:
        consumer, assigned = reading(
            ScriptedClient(World()), hangs_once, ordered=True, keys=["k", "k"],
            handling_seconds=LIMIT, retry_waits=(LIMIT,),
        )  # fmt: skip
        consumer.pool.pump()
        await checked_until(consumer, lambda: not assigned.unfinished)

    play(scene())
    assert attempts == [(0, 0), (0, 1), (1, 0)]


class Hanging:
    """A plain function that hangs until it is let go."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun: list[int] = []

    def __call__(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        self.begun += [message.queue_offset for message in messages]
        self.may_end.wait(60)
        return [CONSUMED] * len(messages)


def test_a_thread_that_hangs_is_gone_round_by_another_one_up_to_twice_as_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging = Hanging()

    async def scene() -> None:
        client = ScriptedClient(World())
        consumer, assigned = reading(
            client, hanging, keys=[""] * 5, concurrency=2, handling_seconds=LIMIT
        )
        consumer.pool.pump()
        try:
            await checked_until(consumer, lambda: "all its handlers hang" in caplog.text)
            await eventually(lambda: len(hanging.begun) >= 4)
            assert sorted(hanging.begun) == [0, 1, 2, 3], "and then nothing more is started"
            await eventually(lambda: assigned.unfinished <= 1)
            assert len(client.world.calls_of(BACK)) == 4, "they come again"
        finally:
            hanging.may_end.set()
        await eventually(lambda: not assigned.unfinished and not consumer.pool.calls)
        assert hanging.begun[4:] == [4], "hands that are free again go on"
        assert len(client.world.calls_of(BACK)) == 4, "the old calls have no say any more"

    play(scene())
    assert "its outcomes do not count for these" in caplog.text


def test_a_key_waits_for_the_thread_that_hangs_and_its_word_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging = Hanging()

    async def scene() -> None:
        client = ScriptedClient(World())
        consumer, assigned = reading(
            client, hanging, ordered=True, keys=["k", "k"], concurrency=1, handling_seconds=LIMIT
        )
        consumer.pool.pump()
        try:
            await checked_until(
                consumer, lambda: hanging.begun and caplog.text.count("takes longer") >= 3
            )
            assert hanging.begun == [0], "nobody else may begin with the key"
            assigned.add_pulled([message(assigned.queue, 2)], 3)
            consumer.pool.pump()
            await eventually(lambda: len(hanging.begun) >= 2)
            assert hanging.begun == [0, 2], "others go on in its place"
        finally:
            hanging.may_end.set()
        await eventually(lambda: not assigned.unfinished)
        assert not client.world.calls_of(BACK)

    play(scene())
    assert "1 with ordering keys wait for it" in caplog.text


def test_a_coroutine_that_will_not_be_cancelled_is_gone_round_like_a_thread() -> None:
    begun: list[int] = []

    async def scene() -> None:
        may_end = asyncio.Event()

        async def stubborn(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            begun.append(messages[0].queue_offset)
            while len(begun) < 2:
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    continue
            return [CONSUMED]

        client = ScriptedClient(World())
        consumer, assigned = reading(
            client, stubborn, keys=["", ""], concurrency=1, handling_seconds=LIMIT
        )
        consumer.pool.pump()
        await checked_until(consumer, lambda: len(begun) >= 2)
        may_end.set()
        await eventually(lambda: not assigned.unfinished)
        assert len(client.world.calls_of(BACK)) == 1

    play(scene())


def test_closing_waits_for_no_coroutine_that_will_not_be_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        may_end = asyncio.Event()

        async def stubborn(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    continue
            return [CONSUMED]

        settings = msgspec.structs.replace(QUICK, close_timeout_seconds=LIMIT)
        client = ScriptedClient(World())
        consumer, _ = reading(client, stubborn, settings)
        consumer.pool.pump()
        await turns()
        (call,) = consumer.pool.tasks
        try:
            await consumer.close()
        finally:
            may_end.set()
        (last,) = client.world.calls_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert last.command.ext_fields["commitOffset"] == "0", "it comes again"
        await asyncio.wait([call])

    play(scene())
    assert "1 handler calls ignored their cancellation" in caplog.text


def test_a_paused_consumer_starts_nothing_until_it_is_resumed() -> None:
    seen: list[int] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        seen.extend(message.queue_offset for message in messages)
        return [CONSUMED]

    async def scene() -> None:
        consumer, assigned = reading(ScriptedClient(World()), handle, keys=["", ""])
        consumer.pause()
        consumer.pool.pump()
        await turns()
        assert seen == []
        consumer.resume([assigned.queue])
        await turns()
        assert seen == [], "what is paused as a whole is not resumed by the queue"
        consumer.resume()
        await turns()
        assert seen == [0, 1]
        consumer.pause([assigned.queue])
        assigned.add_pulled([message(assigned.queue, 2)], 3)
        consumer.pool.pump()
        await turns()
        assert seen == [0, 1]
        consumer.resume([assigned.queue])
        await turns()
        assert seen == [0, 1, 2]

    play(scene())


def test_a_pause_holds_for_queues_that_come_later() -> None:
    async def scene() -> None:
        consumer, assigned = reading(ScriptedClient(World()), Hanging())
        consumer.pause([assigned.queue])
        group = consumer.group
        group.forget(group.leave(assigned.queue))
        assert group.assign(assigned.queue).paused

    play(scene())


def test_the_lag_is_told_of_queues_whose_end_is_known() -> None:
    async def scene() -> None:
        consumer, assigned = reading(ScriptedClient(World()), Hanging(), QUICK, keys=["", ""])
        assert consumer.lag() == {}
        loop = asyncio.get_running_loop()
        noted = loop.time() - 3
        assigned.note_end(12, noted)
        (lag,) = consumer.lag().values()
        assert (lag.behind, lag.end_offset) == (12, 12)
        assert 3 <= lag.age <= loop.time() - noted

    play(scene())
