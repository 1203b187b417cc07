"""What a slave refuses: everything that would append to its log, which is its master's.

Receives the function that finds handlers. Returns one that refuses these requests. A slave with
`slaveReadEnable=false` refuses pulls, too: its clients read from the master. Offsets that consumers
commit here are kept for the master. A slave whose log was not compared with its master's refuses
all that shows messages, or says what was done with them. Waiting pulls and pops are refused where
they are answered.
Source: Apache RocketMQ `SendMessageProcessor.rejectRequest`, `PullMessageProcessor.rejectRequest`,
`EndTransactionProcessor`.
"""

from collections.abc import Callable

from msgspec.structs import astuple

from reliable_mq.broker_core.commits_at_slave import CommittedPlace
from reliable_mq.broker_core.long_works import Steps
from reliable_mq.broker_core.requests.handlers import Answered, Handler
from reliable_mq.broker_core.requests.refusal import RequestRefused, of_unverified
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import UpdateConsumerOffsetHeader

_APPENDS = frozenset(
    {
        *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
        *(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_REPLY_MESSAGE),
        *(RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.RECALL_MESSAGE),
        *(RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE),
        *(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION),
    }
)
_BEFORE_ONLINE = frozenset(
    {
        *(RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CONFIG),
        *(RequestCode.GET_BROKER_HA_STATUS, RequestCode.EXCHANGE_BROKER_HA_INFO),
    }
)
_PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_LOOKS = frozenset(
    {RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.PEEK_MESSAGE}
)
_PROGRESS = frozenset(
    {
        *(RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET),
        RequestCode.GET_TIMER_CHECK_POINT,
    }
)

Find = Callable[[int], Handler | None]


def at_slave(find: Find) -> Find:
    """Return `find`, but with refusals for what only a master does."""

    def handler_of(code: int) -> Handler | None:
        if code == RequestCode.CONSUMER_SEND_MSG_BACK:
            return _refuse_send_back
        if code in _APPENDS:
            return _refuse_append
        if code == RequestCode.END_TRANSACTION:
            return _refuse_end
        handler = find(code)
        if code == RequestCode.UPDATE_CONSUMER_OFFSET and handler is not None:
            return _for_master(handler)
        if handler is None or code not in _PULLS | _LOOKS | _PROGRESS:
            return handler
        return _if_verified(_if_readable(handler) if code in _PULLS else handler)

    return handler_of


def before_online(find: Find) -> Find:
    """Return `find`, but only for what slaves ask a master that takes their progress over."""

    def handler_of(code: int) -> Handler | None:
        return find(code) if code in _BEFORE_ONLINE else _refuse_early

    return handler_of


def _refuse_early(_state: BrokerState, _request: Request) -> Command:
    raise RequestRefused(
        ResponseCode.SYSTEM_BUSY,
        "[REJECTREQUEST]system busy, start flow control for a while: this master has just started "
        "and takes over what its slaves have done",
    )


def _refuse_send_back(state: BrokerState, request: Request) -> Command:
    """Have the consumer send the message itself, to another master; see `EscapeBridge`."""
    if state.stand_in.is_acting:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"no master available along with {state.config.broker_ip}: this broker is a slave",
        )
    return _refuse_append(state, request)


def _refuse_append(_state: BrokerState, _request: Request) -> Command:
    raise RequestRefused(
        ResponseCode.SYSTEM_BUSY,
        "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave",
    )


def _refuse_end(_state: BrokerState, _request: Request) -> Command:
    raise RequestRefused(
        ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transaction; its master does"
    )


def _for_master(commit: Handler) -> Handler:
    """Return the handler of commits, which also keeps them for the master."""

    def handle(state: BrokerState, request: Request) -> Answered:
        answer = commit(state, request)
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
            header = UpdateConsumerOffsetHeader.decode(request.command.ext_fields)
            place = CommittedPlace(header.consumer_group, header.topic, header.queue_id)
            if state.offsets.get(*astuple(place)) == header.commit_offset:
                state.commits_at_slave.note(place, header.commit_offset)
        return answer

    return handle


def _if_readable(pull: Handler) -> Handler:
    def handle(state: BrokerState, request: Request) -> Answered:
        if not state.config.slave_read:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: slaveReadEnable is "
                "false at this slave",
            )
        return pull(state, request)

    return handle


def _if_verified(show: Handler) -> Handler:
    def handle(state: BrokerState, request: Request) -> Answered:
        if state.is_unverified:
            raise of_unverified()
        answer = show(state, request)
        if answer is None or isinstance(answer, Command):
            return answer
        return _if_still_verified(state, answer)

    return handle


def _if_still_verified(state: BrokerState, steps: Steps[Command | None]) -> Steps[Command | None]:
    """Work on a request that takes long; the log may turn out to differ meanwhile."""
    answer = yield from steps
    if state.is_unverified:
        raise of_unverified()
    return answer
