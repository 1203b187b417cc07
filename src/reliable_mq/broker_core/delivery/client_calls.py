"""Requests of the broker to its clients, and the callbacks that wait for the answers.

Receives an answer by connection and opaque. Passes it to the callback. If a client disconnects or
the timeout passes, the callback gets None.
Source: Apache RocketMQ `Broker2Client.callClient`.
"""

from collections.abc import Callable

import msgspec

from reliable_mq.errors import InvariantBroken
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.command import Command, encode_command

log = limited_log(__name__)

TIMEOUT_MS = 10_000

Answered = Callable[[Command | None], None]
"""Called with the client's answer, or with None when there will be no answer."""


class _Call(msgspec.Struct, frozen=True):
    deadline_ms: int
    answered: Answered


class ClientCalls:
    """Calls under way, by connection and opaque.

    Invariant C3: every call is answered exactly once, and no connection is kept without a call.
    """

    def __init__(self) -> None:
        self._calls: dict[int, dict[int, _Call]] = {}
        self._last_opaque = 0

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._calls.values())

    def invariants(self) -> None:
        """Check C3 as far as this table shows it."""
        if not all(self._calls.values()):
            raise InvariantBroken("C3: a connection without calls is kept")

    def begin(
        self,
        connection: int,
        command: Command,
        now_ms: int,
        answered: Answered,
        timeout_ms: int = TIMEOUT_MS,
    ) -> bytes:
        """Return the frame to send to a client; `answered` is called later, once."""
        self._last_opaque = (self._last_opaque + 1) & 0x7FFFFFFF
        command.opaque = self._last_opaque
        frame = encode_command(command)
        call = _Call(now_ms + timeout_ms, answered)
        self._calls.setdefault(connection, {})[command.opaque] = call
        return frame

    def answer(self, connection: int, command: Command) -> None:
        """Pass a client's answer to its callback; an answer without a call is dropped."""
        calls = self._calls.get(connection)
        call = calls.pop(command.opaque, None) if calls else None
        if call is None:
            return
        if not calls:
            del self._calls[connection]
        call.answered(command)

    def forget(self, connection: int) -> None:
        """Answer None to the calls of a closed connection."""
        for call in self._calls.pop(connection, {}).values():
            _give_up(call)

    def expire(self, now_ms: int) -> None:
        """Answer None to the calls whose timeout has passed."""
        late = [
            (connection, opaque)
            for connection, calls in self._calls.items()
            for opaque, call in calls.items()
            if call.deadline_ms <= now_ms
        ]
        for connection, opaque in late:
            calls = self._calls[connection]
            call = calls.pop(opaque)
            if not calls:
                del self._calls[connection]
            _give_up(call)


def _give_up(call: _Call) -> None:
    """Answer None. An error of the callback is only logged: it must not stop the broker.

    No caller could handle the error: a connection has closed, or a timeout has passed.
    """
    try:
        call.answered(None)
    except InvariantBroken:
        raise
    except Exception:  # noqa: BLE001 - it is logged
        broker_events.CLIENT_CALLBACK_FAILED.log(log, traceback_of=True)
