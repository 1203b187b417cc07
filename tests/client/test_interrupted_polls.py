"""A thread that a signal interrupts while it polls, over a scripted world."""

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from tests.client.scripted_consumer import found, record, world_with
from tests.client.scripted_pulls import NOTHING_NEW, QUEUE, PullingClient

from reliable_mq.client.consuming.asyncio_pull_consumer import AsyncPullConsumer, PullOptions
from reliable_mq.client.consuming.thread_pull_consumer import PullConsumer
from reliable_mq.client.flow import Call
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.wire.command import Command

T = TypeVar("T")


class TimeIsUp(Exception):
    """What a signal raises in a task that may take no longer."""


class Interrupted(LoopThread):
    """Raises once what a signal does, when the loop is done and its caller is not awake yet."""

    signal: BaseException | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result = super().run(coroutine)
        signal, self.signal = self.signal, None
        if signal is not None:
            raise signal
        return result


@pytest.fixture
def thread() -> Iterator[Interrupted]:
    thread = Interrupted()
    yield thread
    thread.close()


def two_messages(call: Call) -> Command:
    if call.command.ext_fields["queueOffset"] != "0":
        return NOTHING_NEW(call)
    return found(2, record(0), record(1))(call)


@pytest.mark.parametrize("signal", [KeyboardInterrupt(), TimeIsUp()])
def test_what_an_interrupted_poll_would_have_returned_comes_with_the_next_one(
    signal: BaseException, thread: Interrupted
) -> None:
    async def begin() -> AsyncPullConsumer:
        client = PullingClient(world_with(two_messages))
        pull = AsyncPullConsumer(client, PullOptions(group="g", auto_commit=True))
        await pull.assign([QUEUE])
        return pull

    pull = PullConsumer(thread, thread.run(begin()))
    thread.signal = signal
    with pytest.raises(type(signal)):
        pull.poll(60.0, 10)
    messages = pull.poll(60.0, 10)
    assert [message.queue_offset for message in messages] == [0, 1]
    pull.close()
