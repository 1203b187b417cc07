"""A call that fails by a bug: its client gets an error, the log says which call it was."""

import asyncio
from typing import Any, NoReturn

import pytest
from tests.waiting import run_scene

from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.field_bytes import EncodedAnswer
from reliable_mq.gateway.http2_frames import Stream
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.runtime.grpc_calls import Calls

CALLER = Caller("client-1", "127.0.0.1", {}, float("inf"))
UNREADABLE: Any = EncodedAnswer(b"", Code.OK)
SENT: Any = EncodedAnswer(b"sent", Code.OK)
MESSAGE: Any = EncodedAnswer(b"a message, which has no code")


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
        if response is UNREADABLE:
            raise ZeroDivisionError("a bug")
        if response is SENT:
            return
        self.answers.append((response.status.code, response.status.message))

    def send_answers(self, *_: object) -> bool:
        return True

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


def test_an_answer_that_cannot_be_sent_ends_its_call_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where no task waits for it: the broker of this process hands it over itself."""
    connection: Any = Connection()

    async def scene() -> None:
        calls = Calls(Broken())  # type: ignore[arg-type]
        calls._respond(connection, Stream(1, 0), "SendMessage", UNREADABLE)

    run_scene(scene())

    assert connection.answers == [(13, "the endpoint has failed; its log says why")]
    assert caplog.records[-1].getMessage().startswith("SendMessage: the call has failed")


def test_calls_are_counted_by_the_code_of_their_answer_also_if_it_is_bytes() -> None:
    connection: Any = Connection()
    counted: dict[tuple[str, int], int] = {}
    last = TYPES["ReceiveMessageResponse"]()
    last.status.code = Code.OK

    async def scene() -> None:
        calls = Calls(Broken())  # type: ignore[arg-type]
        calls._respond(connection, Stream(1, 0), "SendMessage", SENT)
        calls._write(connection, Stream(3, 0), "ReceiveMessage", (last, MESSAGE))
        counted.update(calls.ended)

    run_scene(scene())

    assert counted == {("SendMessage", Code.OK): 1, ("ReceiveMessage", Code.OK): 1}
