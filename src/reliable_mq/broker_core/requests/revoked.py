"""Requests that waited: access control is asked again before they get messages.

While a pull, a pop or a notification waits, a right may be taken away.
"""

from typing import Any

from reliable_mq.access.users import AccessRefused
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command


def refuse_revoked(state: BrokerState, code: int, user: str, address: str, header: Any) -> None:
    """Refuse a request that waited, if its user may not do it any more.

    Args:
        state: the broker's state.
        code: of the request.
        user: who signed it; "": nobody.
        address: of the peer.
        header: of the request; it has a topic and a group.

    Raises:
        RequestRefused: the user or a policy was changed while the request waited.
    """
    if state.guard is None:
        return
    names = {"topic": header.topic, "consumerGroup": header.consumer_group}
    try:
        state.guard.check_again(user, Command(code, ext_fields=names), address)
    except AccessRefused as error:
        raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from None
