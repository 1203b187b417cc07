"""A call that fails by a bug: its client gets an error, the log says which call it was."""

import asyncio
from typing import Any, NoReturn

import pytest
from tests.waiting import run_scene

from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.http2_frames import Stream
from reliable_mq.runtime.grpc_calls import Calls

CALLER = Caller("client-1", "127.0.0.1", {}, float("inf"))


class Broken:
    """A gateway with a bug in each call."""

    def __init__(self) -> None:
        self.unary = {"Heartbeat": self._fail}
        self.streamed = {"ReceiveMessage": self._fail}
        self.told = self._fail

    async def _fail(self, *_: object) -> NoReturn:
        raise ZeroDivisionError("a bug")


class Connection:
    """Notes what a call is answered."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def respond(self, _stream: Stream, response: Any) -> None:
        self.answers.append((response.status.code, response.status.message))

    def end(self, _stream: Stream, status: int, text: str) -> None:
        self.answers.append((status, text))


class Commands:
    """An open Telemetry stream."""

    def __init__(self) -> None:
        self.caller, self.turn, self.waiting = CALLER, asyncio.Lock(), 0


@pytest.mark.parametrize(
    ("name", "code"),
    [("Heartbeat", Code.INTERNAL_SERVER_ERROR), ("ReceiveMessage", 13), ("Telemetry", 13)],
)
def test_a_call_that_fails_by_a_bug_is_answered_and_logged(
    name: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    connection, stream = Connection(), Stream(1, 0)

    async def scene() -> None:
        calls = Calls(Broken())  # type: ignore[arg-type]
        asked: Any = (connection, stream, name, CALLER, None, None)
        if name == "Heartbeat":
            calls.answer(*asked)
        elif name == "ReceiveMessage":
            calls.answer_streamed(*asked)
        else:
            calls.tell(connection, stream, Commands(), None)  # type: ignore[arg-type]
        while calls._running:
            await asyncio.wait(calls._running)

    run_scene(scene())

    assert connection.answers == [(code, "the endpoint has failed; its log says why")]
    (record,) = caplog.records
    assert record.getMessage() == f"{name}: the call has failed, its client is told"
    assert record.exc_info is not None
