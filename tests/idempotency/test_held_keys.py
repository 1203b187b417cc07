"""The keys of calls that are under way around a call: it must not wait for its own end."""

import asyncio
import gc
import threading
import weakref

import pytest

from reliable_mq.errors import UsageError
from reliable_mq.idempotency.held_keys import holding
from reliable_mq.idempotency.sql_calls import KeyedCall


class Book: ...


BOOK = Book()


def call(key: str = "k", scope: str = "pay") -> KeyedCall:
    return KeyedCall(scope, key, f"shown {key}", None, "token", 60.0)


def is_refused(asked: KeyedCall, book: Book = BOOK) -> bool:
    try:
        with holding(book, asked):
            return False
    except UsageError:
        return True


def test_a_call_inside_of_one_with_the_same_key_is_refused_at_any_depth() -> None:
    with holding(BOOK, call()), holding(BOOK, call("other")):
        assert is_refused(call())
        assert is_refused(call("other"))
        with pytest.raises(UsageError, match=r"a call of pay with key 'shown k' calls pay with"):
            holding(BOOK, call()).__enter__()
        assert not is_refused(call("third"))
        assert not is_refused(call(scope="refund"))
        assert not is_refused(call(), Book())
    assert not is_refused(call())


def test_a_key_is_let_go_when_its_call_raises() -> None:
    with pytest.raises(ZeroDivisionError), holding(BOOK, call()):
        raise ZeroDivisionError
    assert not is_refused(call())


def test_calls_of_other_threads_are_not_around_a_call() -> None:
    found: list[bool] = []
    with holding(BOOK, call()):
        thread = threading.Thread(target=lambda: found.append(is_refused(call())))
        thread.start()
        thread.join()
    assert found == [False]


def test_a_task_that_outlives_the_call_that_began_it_may_use_the_key() -> None:
    async def scene() -> tuple[bool, bool]:
        ended = asyncio.Event()

        async def task() -> tuple[bool, bool]:
            before = is_refused(call())
            await ended.wait()
            return before, is_refused(call())

        with holding(BOOK, call()):
            running = asyncio.create_task(task())
            await asyncio.sleep(0)
        ended.set()
        return await running

    assert asyncio.run(scene()) == (True, False)


def test_tasks_that_begin_each_other_keep_none_of_the_calls_that_have_ended() -> None:
    """A task remembers the calls around it only while they run."""

    class Named(str):
        """A key that can be watched."""

        __slots__ = ("__weakref__",)

    kept: list[weakref.ref[Named]] = []

    async def step(number: int, done: asyncio.Future[None]) -> None:
        key = Named(f"{number}")
        kept.append(weakref.ref(key))
        with holding(BOOK, call(key)):
            del key
            if number < 30:
                asyncio.get_running_loop().call_soon(
                    lambda: tasks.append(asyncio.create_task(step(number + 1, done)))
                )
            else:
                done.set_result(None)

    tasks: list[asyncio.Task[None]] = []

    async def scene() -> None:
        done = asyncio.get_running_loop().create_future()
        await step(0, done)
        await done
        await asyncio.gather(*tasks)
        tasks.clear()

    asyncio.run(scene())
    gc.collect()
    assert sum(each() is not None for each in kept) <= 1
