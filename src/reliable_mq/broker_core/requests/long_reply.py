"""A reply whose body is long: it is made piece by piece, when it is written to the peer."""

from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.long_frame import LongBody, LongFrame


def long_reply(
    state: BrokerState, request: Request, ext: dict[str, str] | None, body: bytes | LongBody
) -> Command | None:
    """Return the reply with a short body; send one with a long body, and return None."""
    if isinstance(body, bytes):
        return reply(request.command, ext=ext, body=body)
    if not request.command.is_oneway:
        front = encode_answer(reply(request.command, ext=ext))
        state.reply(request.connection.id, LongFrame(front, body))
    return None
