"""Handlers behind the guard of access control: each checks its request first.

Receives the guard. Returns the handler of every request code, also of those that no handler
answers: who is not known does not learn what this broker answers.
"""

from collections.abc import Callable

from reliable_mq.access.guard import Guard
from reliable_mq.access.users import AccessRefused
from reliable_mq.broker_core.requests.handlers import (
    HANDLERS,
    Answered,
    Handler,
    not_supported,
)
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.line_limit import refusal_log
from reliable_mq.plain_text import cut
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.signed_send import SignedSend

log = refusal_log(__name__)

_SENDS = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})

_REASON_SHOWN_MAX = 300  # characters; a peer chooses the names in it


def guarded(guard: Guard) -> Callable[[int], Handler]:
    """Return a function that gives the guarded handler of a request code."""
    known = {code: _guarded(guard, handler) for code, handler in HANDLERS.items()}
    unknown = _guarded(guard, _refuse_unknown)

    def handler_of(code: int) -> Handler:
        return known.get(code, unknown)

    return handler_of


def _refuse_unknown(_state: BrokerState, request: Request) -> Command:
    return not_supported(request.command)


def _guarded(guard: Guard, handler: Handler) -> Handler:
    def handle(state: BrokerState, request: Request) -> Answered:
        connection, command = request.connection, request.command
        short = command if type(command) is SignedSend else None
        if short is not None:
            sender = guard.sender_admitted(short, connection.host)
            if sender is not None:
                request.user = sender.username
                return handler(state, request)
            command = request.command = short.in_general()
        try:
            user = guard.sender_of(command)
            request.user = user.username if user is not None else ""
            guard.authorize(user, command, connection.host, connection.address)
        except AccessRefused as error:
            guard.note_refused()
            reason = cut(str(error), _REASON_SHOWN_MAX)
            broker_events.ACCESS_REFUSED.log(
                log, code=command.code, client=connection.address, reason=reason
            )
            raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from None
        if command.code in _SENDS:
            guard.note_sender(user, command, connection.host)
        return handler(state, request)

    return handle
