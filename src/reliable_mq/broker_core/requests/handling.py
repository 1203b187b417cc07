"""Requests and the replies to them: a handler is found, called, and its fault is answered.

What may be asked depends on what the broker is: a master, a slave, or a former master.
"""

from reliable_mq.broker_core.long_works import Steps, Work
from reliable_mq.broker_core.requests import audited
from reliable_mq.broker_core.requests.at_slave import Find, at_slave, before_online
from reliable_mq.broker_core.requests.audited import AUDITED
from reliable_mq.broker_core.requests.guarded import guarded
from reliable_mq.broker_core.requests.handlers import (
    HANDLERS,
    Answered,
    answer_to_failed,
    not_supported,
    refuse_large,
)
from reliable_mq.broker_core.state import BrokerState, PeerConnection, Request
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import REQUEST_BODY_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import ONE_WAY_FLAG, Command

log = limited_log(__name__)


class RequestHandling:
    """Handles the requests of one broker.

    Attributes:
        handler_of: returns the handler of a request's code.
        is_plain: whether a send may be stored without a look at its handler.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state, guard = state, state.guard
        found: Find = HANDLERS.get if guard is None else guarded(guard)
        is_slave = state.config.is_slave
        self.handler_of = at_slave(found) if is_slave else found
        self._online = self._isolated = self.handler_of
        self.is_plain = not is_slave

    def fence(self) -> None:
        """Refuse what a master does."""
        self.handler_of, self.is_plain = at_slave(self.handler_of), False

    def isolate(self) -> None:
        """Serve nobody but slaves, until `go_online`."""
        self.handler_of, self.is_plain = before_online(self.handler_of), False
        self._isolated = self.handler_of

    def go_online(self) -> None:
        """Serve everybody, if this broker was not fenced meanwhile."""
        if self.handler_of is self._isolated:
            self.handler_of = self._online
            self.is_plain = not self._state.config.is_slave

    def handle(self, request: Request) -> None:
        """Have a request handled, and send the reply, unless it comes later."""
        state, command = self._state, request.command
        pending = audited.begin(state, request) if command.code in AUDITED else None
        handler = self.handler_of(command.code)
        try:
            if handler is None:
                answer: Answered = not_supported(command)
            else:
                if len(command.body) > REQUEST_BODY_SIZE_MAX:
                    refuse_large(command)
                answer = handler(state, request)
        except Exception as error:  # noqa: BLE001 - it is told and logged there
            answer = answer_to_failed(state, request, error)
        if answer is None or isinstance(answer, Command):
            self._end(request, pending, answer)
        else:
            state.works.add(request.connection.id, self._in_steps(request, pending, answer))

    def _end(
        self, request: Request, pending: audited.PendingAct | None, answer: Command | None
    ) -> None:
        """Note the end of a request in the audit, and send the reply."""
        if pending is not None:
            audited.end(self._state, request, pending, answer)
        if answer is not None and not request.command.flag & ONE_WAY_FLAG:
            self._state.reply(request.connection.id, encode_answer(answer))

    def _in_steps(
        self, request: Request, pending: audited.PendingAct | None, steps: Steps[Command | None]
    ) -> Work:
        """Do the rest of a request that takes long."""
        try:
            answer = yield from steps
        except Exception as error:  # noqa: BLE001 - it is told and logged there
            answer = answer_to_failed(self._state, request, error)
        self._end(request, pending, answer)

    def take_answer(self, connection: PeerConnection, command: Command) -> None:
        """Take a client's answer to a request of this broker."""
        try:
            self._state.calls.answer(connection.id, command)
        except InvariantBroken:
            raise
        except Exception:  # noqa: BLE001 - it is logged
            broker_events.CLIENT_ANSWER_UNUSABLE.log(
                log, traceback_of=True, client=connection.address
            )
