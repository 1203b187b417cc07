"""Answers as frames: one that cannot be sent becomes an error answer to the same request.

Receives an answer of any size; hands on the frame that leaves; refuses to raise. What a request
echoes is in the hands of who sent it, so a long name must not cost more than an error answer.
"""

from reliable_mq.errors import FrameError
from reliable_mq.line_limit import limited_log
from reliable_mq.plain_text import cut
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, encode_command, reply

log = limited_log(__name__)

REMARK_LENGTH_MAX = 4_096  # characters; Apache's own remarks stay below 1,000


def encode_answer(answer: Command) -> bytes:
    """Return the frame of an answer.

    A remark that is too long is cut. An answer that fits no frame, or whose fields do not fit its
    header, is replaced by SYSTEM_ERROR with the reason.
    """
    remark = answer.remark
    if remark is not None and len(remark) > REMARK_LENGTH_MAX:
        answer.remark = cut(remark, REMARK_LENGTH_MAX)
    try:
        return encode_command(answer)
    except FrameError as error:
        log.warning("an answer cannot be sent, an error is sent: %s", error)
        reason = f"the answer to this request cannot be sent: {error}"
        return encode_command(reply(answer, ResponseCode.SYSTEM_ERROR, reason))
