"""The calls of gRPC clients, each in a task of its own, and what becomes of those that fail.

A call that fails by a bug is answered as one, and logged; the others go on.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

from reliable_mq.access.users import User
from reliable_mq.errors import ReliableMQError
from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.gateway.asyncio_consuming import OnLeft
from reliable_mq.gateway.asyncio_gateway import Gateway, Handle, refusal
from reliable_mq.gateway.asyncio_upstream import ASK_SECONDS, Begun, Teller, refused_by
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.field_bytes import code_of
from reliable_mq.gateway.http2_frames import Stream
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.line_limit import limited_log, refusal_log
from reliable_mq.plain_text import cut
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.command import Command

if TYPE_CHECKING:
    from reliable_mq.runtime.grpc_connection import GrpcConnection
    from reliable_mq.runtime.grpc_telemetry import Telemetry

log = limited_log(__name__)
refusals = refusal_log(f"{__name__}.refusals")

Authenticate = Callable[[Caller], Awaitable[User]]

_INVALID_ARGUMENT, _INTERNAL = 3, 13
_BUG = "the endpoint has failed; its log says why"
_acting_at = lru_cache(maxsize=256)(Acting)


class Calls:
    """Answers calls with a gateway.

    Args:
        gateway: answers them.
        authenticate: returns the user who has signed a call, or refuses it; None: nobody signs.
        on_refused: called when a signature is refused.
        teller: the broker of this process; None: there is none.
    """

    def __init__(
        self,
        gateway: Gateway,
        authenticate: Authenticate | None = None,
        on_refused: Callable[[], None] | None = None,
        teller: Teller | None = None,
    ) -> None:
        self._gateway = gateway
        self._authenticate = authenticate
        self._on_refused = on_refused
        self._teller = teller if authenticate is None else None
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self.ended: Counter[tuple[str, int]] = Counter()
        """How many calls have ended since the start, by name and the code of their answer."""
        self._has_told = False  # whether `hand_over` has something to do

    def answer_usual(
        self, connection: "GrpcConnection", stream: Stream, name: str, caller: Caller, body: bytes
    ) -> bool:
        """Answer a call whose bytes have the usual form; return whether they have."""
        begin = None if self._teller is None else self._gateway.usual.get(name)
        begun = None if begin is None else self._begin_quickly(begin, caller, body)
        if begun is None:
            return False
        self._tell(connection, stream, name, begun, caller)
        return True

    def answer(
        self, connection: "GrpcConnection", stream: Stream, name: str, caller: Caller, call: Any,
        refused: RpcRefused | None,
    ) -> None:  # fmt: skip
        """Answer a call with one answer."""
        if refused is not None:
            self._respond(connection, stream, name, refusal(name, refused.code, str(refused)))
            return
        begin = None if self._teller is None else self._gateway.quick.get(name)
        begun = None if begin is None else self._begin_quickly(begin, caller, call)
        if begun is not None:
            self._tell(connection, stream, name, begun, caller)
            return
        handle = self._gateway.unary.get(name)
        if handle is None:
            text = f"{name} is not supported"
            response = refusal(name, Code.NOT_IMPLEMENTED, text)
            self._respond(connection, stream, name, response)
            return
        self._run(self._answered(connection, stream, name, handle, caller, call))

    def _tell(
        self, connection: "GrpcConnection", stream: Stream, name: str, begun: Begun, caller: Caller
    ) -> None:
        """Tell the broker of this process what a call wants.

        No task waits for the answer: that would cost as much as the rest of the call.
        """

        def on_answer(answer: Command | ReliableMQError) -> None:
            self._respond(connection, stream, name, _response(name, begun, answer))

        cast("Teller", self._teller).tell(caller.host, begun.command, ASK_SECONDS, on_answer)
        self._has_told = True

    def _begin_quickly(
        self, begin: Callable[[Caller, Any], Begun | None], caller: Caller, call: Any
    ) -> Begun | None:
        """Begin a call that one request to the broker of this process answers, if it is one."""
        teller = self._teller
        if teller is None:
            return None
        acting = ACTING.set(_acting_at(caller.host))
        try:
            begun = begin(caller, call)
        except Exception:  # noqa: BLE001 - a task meets it again, and says it
            return None
        finally:
            ACTING.reset(acting)
        return begun if begun is not None and teller.reaches(begun.address) else None

    def hand_over(self, number: int) -> None:
        """Hand over what brokers were told on a connection; answers may have come afterwards."""
        if self._has_told and self._teller is not None:
            self._has_told = False
            self._teller.hand_over(number)

    async def _answered(
        self, connection: "GrpcConnection", stream: Stream, name: str, handle: Handle,
        caller: Caller, call: Any,
    ) -> None:  # fmt: skip
        try:
            await self._begin(caller)
            response = await handle(caller, call)
        except RpcRefused as refused:
            response = refusal(name, refused.code, str(refused))
        except Exception:  # noqa: BLE001 - it is logged, and the others go on
            broker_events.CALL_BROKEN.log(log, call=name, traceback_of=True)
            response = refusal(name, Code.INTERNAL_SERVER_ERROR, _BUG)
        self._respond(connection, stream, name, response)

    def _respond(
        self, connection: "GrpcConnection", stream: Stream, name: str, response: Any
    ) -> None:
        """Send the only answer of a call, and count it."""
        try:
            self.ended[name, code_of(response) or 0] += 1
            connection.respond(stream, response)
        except Exception:  # noqa: BLE001 - it is logged, and the others go on
            broker_events.CALL_BROKEN.log(log, call=name, traceback_of=True)
            connection.end(stream, _INTERNAL, _BUG)

    def answer_streamed(
        self, connection: "GrpcConnection", stream: Stream, name: str, caller: Caller, call: Any,
        refused: RpcRefused | None,
    ) -> None:  # fmt: skip
        """Answer a call with many answers."""
        if refused is not None:
            self._end_refused(connection, stream, name, refused)
            return
        self._run(self._streamed(connection, stream, name, caller, call))

    async def _streamed(
        self, connection: "GrpcConnection", stream: Stream, name: str, caller: Caller, call: Any
    ) -> None:
        try:
            await self._begin(caller)
            handle = self._gateway.streamed[name]
            await handle(caller, call, partial(self._write, connection, stream, name))
        except RpcRefused as refused:
            self._end_refused(connection, stream, name, refused)
            return
        except Exception:  # noqa: BLE001 - it is logged, and the others go on
            broker_events.CALL_BROKEN.log(log, call=name, traceback_of=True)
            connection.end(stream, _INTERNAL, _BUG)
            return
        connection.end(stream, 0, "")

    def _write(
        self, connection: "GrpcConnection", stream: Stream, name: str,
        answers: Sequence[Any], on_left: OnLeft = None,
    ) -> bool:  # fmt: skip
        """Send answers of a call, of which one has its code; see `Write`."""
        for each in answers:
            if (code := code_of(each)) is not None:
                self.ended[name, code] += 1
        return connection.send_answers(stream, answers, on_left)

    def _end_refused(
        self, connection: "GrpcConnection", stream: Stream, name: str, refused: RpcRefused
    ) -> None:
        response = TYPES[f"{name}Response"]()
        response.status.code, response.status.message = refused.code, str(refused)
        self._write(connection, stream, name, (response,))
        connection.end(stream, 0, "")

    @property
    def running(self) -> int:
        """How many calls and commands are being answered by tasks."""
        return len(self._running)

    def tell(
        self, connection: "GrpcConnection", stream: Stream, telemetry: "Telemetry", command: Any
    ) -> None:
        """Give the gateway a command of a client."""
        telemetry.waiting += 1
        self._run(self._told(connection, stream, telemetry, command))

    async def _told(
        self, connection: "GrpcConnection", stream: Stream, telemetry: "Telemetry", command: Any
    ) -> None:
        try:
            async with telemetry.turn:  # settings count in the order in which they come
                await self._begin(telemetry.caller)
                await self._gateway.told(telemetry.caller, command, telemetry)
        except RpcRefused as refused:
            is_theirs = refused.code < Code.INTERNAL_ERROR
            status = _INVALID_ARGUMENT if is_theirs else _INTERNAL
            connection.end(stream, status, f"{refused.code.name}: {refused}")
        except Exception:  # noqa: BLE001 - it is logged, and the others go on
            broker_events.CALL_BROKEN.log(log, call="Telemetry", traceback_of=True)
            connection.end(stream, _INTERNAL, _BUG)
        finally:
            telemetry.waiting -= 1

    def lost(self, telemetry: "Telemetry") -> None:
        """Note that a Telemetry stream has ended."""
        self._gateway.lost(telemetry)

    async def _begin(self, caller: Caller) -> None:
        """Note in the running task for whom it works."""
        try:
            user = None if self._authenticate is None else await self._authenticate(caller)
        except RpcRefused as refused:
            if refused.code is Code.UNAUTHORIZED:
                if self._on_refused is not None:
                    self._on_refused()
                broker_events.ACCESS_REFUSED.log(
                    refusals,
                    code=int(refused.code),
                    client=f"{caller.host}:0",
                    reason=cut(str(refused), 300),
                )
            raise
        name = user.username if user is not None else ""
        ACTING.set(Acting(caller.host, user, name))

    def _run(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def _response(name: str, begun: Begun, answer: Command | ReliableMQError) -> Any:
    """Return the answer to a call, given that of the broker."""
    try:
        if not isinstance(answer, ReliableMQError):
            return begun.finish(answer)
        refused = refused_by(answer)
    except RpcRefused as error:
        refused = error
    except Exception:  # noqa: BLE001 - it is logged, and the others go on
        broker_events.CALL_BROKEN.log(log, call=name, traceback_of=True)
        refused = RpcRefused(Code.INTERNAL_SERVER_ERROR, _BUG)
    return refusal(name, refused.code, str(refused))
