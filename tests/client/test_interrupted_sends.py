"""Signal handlers that raise while their thread sends: no place among messages is lost by that.

Python calls handlers at the begin of its functions and behind the functions of C; so does a
profiler, which can be told at which of them it raises.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from reliable_mq.client import sending
from reliable_mq.client.sending.thread_in_flight import InFlight, Place
from reliable_mq.client.sending.thread_sending import Batcher, ThreadSending
from reliable_mq.errors import TooManyInFlight
from reliable_mq.message import Message

MESSAGE = Message(topic="t", body=b"1234")


class TimeIsUp(BaseException):
    """What the handler of a signal raises."""


class Ended(Exception):
    """The sender got through before it was interrupted."""


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Raise `TimeIsUp` at such a step of the block; `Ended` when it has fewer."""
    left = itertools.count(step, -1)

    def look(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        is_ours = name.startswith(f"{sending.__name__}.") or frame.f_code in AThread.CODES
        if is_ours and event in ("call", "c_return") and next(left) == 0:
            raise TimeIsUp

    try:
        sys.setprofile(look)
        yield
    except TimeIsUp:
        return
    finally:
        sys.setprofile(None)
    raise Ended


class AThread:
    """Plays the loop's thread; what it is given has ended at once."""

    def submit(self, _: object) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def call_soon(self, function: Callable[..., object], *words: object) -> None:
        function(*words)

    CODES = (submit.__code__, call_soon.__code__)


def sending_of(room: InFlight, monkeypatch: pytest.MonkeyPatch) -> ThreadSending:
    stands_in = "reliable_mq.client.sending.thread_sending.send_single"
    monkeypatch.setattr(stands_in, lambda *_: None)
    engine: Any = SimpleNamespace(
        hooks=SimpleNamespace(sends=()), in_flight=room, send_unbounded=lambda *_, **__: None
    )
    client = ThreadSending(SimpleNamespace(_engine=engine))  # type: ignore[arg-type]
    client._thread = AThread()  # type: ignore[assignment]
    return client


class ABatcher:
    """Plays a batcher; what it takes has ended at once."""

    def __init__(self, room: InFlight) -> None:
        self._room = room

    def accept(self, _: Message, ticket: Future[object], size: int, place: Iterator[Place]) -> None:
        is_taken = ticket.set_running_or_notify_cancel()
        self._room.return_places([(size, 1)] if is_taken else place)


def put_into_a_batcher(_: ThreadSending, room: InFlight) -> None:
    thread, batcher = AThread(), ABatcher(room)
    Batcher(thread, batcher, room).put(MESSAGE)  # type: ignore[arg-type]


def block_in_vain(_: ThreadSending, room: InFlight) -> None:
    room.block(4, 0.0)
    room.return_places([(4, 1)])


@pytest.mark.parametrize(
    "verb",
    [
        lambda client, _: client.send(MESSAGE),
        lambda client, _: client.send_async(MESSAGE),
        put_into_a_batcher,
        block_in_vain,
    ],
)
def test_a_sender_that_is_interrupted_anywhere_keeps_no_place(
    verb: Callable[[ThreadSending, InFlight], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in itertools.count():
        room = InFlight(2, 100)
        client = sending_of(room, monkeypatch)
        try:
            with interrupted_at(step):
                verb(client, room)
        except Ended:
            break
        assert room.take_places(100), f"step {step}"
        room.release_places(100)
        assert (room.count, room.size) == (0, 0), f"step {step}"
        room.invariants()
    assert step > 4


def test_a_sender_that_is_interrupted_while_it_waits_in_line_leaves_it() -> None:
    for step in itertools.count():
        room = InFlight(2, 100)
        assert room.take_places(99)
        try:
            with interrupted_at(step), pytest.raises(TooManyInFlight):
                room.block(4, 0.0)
        except Ended:
            break
        room.release_places(99)
        assert room.take_places(100), f"step {step}"
        room.release_places(100)
        assert (room.count, room.size) == (0, 0), f"step {step}"
        room.invariants()
    assert step > 4
