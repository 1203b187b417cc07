"""Requests of consumers by the message that wait.

The first pops of a new group wait until the group is saved. After a crash nobody would know a group
that has messages in flight: its checkpoints would not move its offset, and its acknowledgements
would be lost. Apache's broker does not wait.
"""

from reliable_mq.broker_core.delivery.long_poll import Wanted
from reliable_mq.broker_core.delivery.waiting_pops import WaitingPop, poll_end_ms
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.command import Command
from reliable_mq.wire.pop_headers import NotificationHeader, PopMessageHeader

_SAVED_MS_MAX = 5_000  # of a slow disk


def waiting_pop(
    request: Request,
    header: PopMessageHeader | NotificationHeader,
    deadline_ms: int,
    wanted: Wanted = None,
) -> WaitingPop:
    """Return what waits for a request."""
    connection, command = request.connection, request.command
    return WaitingPop(
        connection.id,
        connection.address,
        Command(command.code, command.opaque, serialize_type=command.serialize_type),
        header,
        deadline_ms,
        wanted,
        request.user,
    )


def hold_until_saved(state: BrokerState, request: Request, pop: WaitingPop) -> None:
    """Let a pop wait until its group is saved, and then go on."""
    header: PopMessageHeader = pop.header
    end_ms = poll_end_ms(header.born_time, header.poll_time, request.now_ms)
    pop.deadline_ms = max(end_ms, request.now_ms + _SAVED_MS_MAX)
    state.pops.hold(pop)

    def go_on() -> None:
        if pop.number in state.pops.waiting:
            pop.deadline_ms = end_ms
            state.pops.go_on(pop)

    state.files.when_saved(go_on)
