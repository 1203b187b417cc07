"""Messages looked up by where they are stored.

Source: Apache RocketMQ `QueryMessageProcessor`.
"""

from reliable_mq.broker_core.requests.refusal import Refused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply


def view_message_by_id(state: BrokerState, request: Request) -> Command:
    """VIEW_MESSAGE_BY_ID: the stored record at a commit-log offset."""
    offset = int(request.command.ext_fields["offset"])
    record = state.store.read_record(offset) if offset >= 0 else None
    if record is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return reply(request.command, body=state.store.log.read(offset, record.size))
