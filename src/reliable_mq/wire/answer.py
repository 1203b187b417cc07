"""Answers as frames. If an answer cannot be encoded, the frame has an error answer instead.

Receives an answer of any size. Returns the frame to send. Never raises. An answer may echo fields
of its request, so a long name from a peer must not cost more than an error answer.
"""

from reliable_mq.errors import FrameError
from reliable_mq.line_limit import limited_log
from reliable_mq.plain_text import cut
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, encode_command, reply

log = limited_log(__name__)

REMARK_LENGTH_MAX = 4_096  # characters; Apache's own remarks stay below 1,000


def encode_answer(answer: Command) -> bytes:
    """Return the frame of an answer.

    A remark that is too long is cut. If the answer does not fit into a frame, or its fields do not
    fit into the header, SYSTEM_ERROR with the reason replaces it.
    """
    remark = answer.remark
    if remark is not None and len(remark) > REMARK_LENGTH_MAX:
        answer.remark = cut(remark, REMARK_LENGTH_MAX)
    try:
        return encode_command(answer)
    except FrameError as error:
        broker_events.ANSWER_NOT_ENCODED.log(log, error=error)
        reason = f"the answer to this request cannot be sent: {error}"
        return encode_command(reply(answer, ResponseCode.SYSTEM_ERROR, reason))
