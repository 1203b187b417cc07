"""Blocking work beside a loop: in a thread, save at the end of the interpreter."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from reliable_mq.runtime.asyncio_threads import in_thread

NAME: ContextVar[str] = ContextVar("NAME", default="nobody")


class Refusing(ThreadPoolExecutor):
    """Threads that take no work, for the reason that the system gives."""

    def __init__(self, reason: str) -> None:
        super().__init__(1)
        self.reason = reason

    def submit(self, *_args: object, **_names: object) -> "object":  # type: ignore[override]
        raise RuntimeError(self.reason)


async def where_it_runs(reason: str) -> threading.Thread:
    asyncio.get_running_loop().set_default_executor(Refusing(reason))
    return await in_thread(threading.current_thread)


def test_work_is_not_done_on_the_loop_because_there_is_no_thread_to_be_had() -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asyncio.run(where_it_runs("can't start new thread"))


@pytest.mark.parametrize(
    "reason",
    [
        "cannot schedule new futures after interpreter shutdown",
        "can't create new thread at interpreter shutdown",
    ],
)
def test_at_the_end_of_the_interpreter_the_loop_does_the_work(reason: str) -> None:
    assert asyncio.run(where_it_runs(reason)) is threading.current_thread()


def test_the_work_sees_the_context_of_who_asked() -> None:
    async def scenario() -> str:
        NAME.set("ada")
        return await in_thread(NAME.get)

    assert asyncio.run(scenario()) == "ada"


def test_what_the_work_raises_reaches_who_asked() -> None:
    def work() -> None:
        raise RuntimeError("at interpreter shutdown, says the work")

    async def scenario() -> None:
        await in_thread(work)

    with pytest.raises(RuntimeError, match="says the work"):
        asyncio.run(scenario())
