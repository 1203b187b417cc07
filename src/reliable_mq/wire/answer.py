"""Answers as frames. If an answer cannot be encoded, the frame has an error answer instead.

Receives an answer of any size. Returns the frame to send. Never raises. An answer may echo fields
of its request, so a long name from a peer must not cost more than an error answer.
"""

from reliable_mq.errors import FrameError
from reliable_mq.line_limit import limited_log
from reliable_mq.plain_text import cut
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import LANGUAGE, REPLY_FLAG, VERSION, Command, encode_command, reply
from reliable_mq.wire.frame import HEAD_SIZE, JSON, encode_head
from reliable_mq.wire.long_frame import AnyFrame

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


_DONE_BEGIN, _DONE_END = encode_command(reply(Command(code=0, opaque=7)))[HEAD_SIZE:].split(b"7", 1)
_DONE_HEADS = [
    encode_head(JSON, len(_DONE_BEGIN) + digits + len(_DONE_END)) + _DONE_BEGIN
    for digits in range(12)
]
"""What comes before the opaque, by its number of digits."""
_DONE_SIZE_MAX = len(_DONE_HEADS[-1]) + 11 + len(_DONE_END)
_DONE_AT, _DONE_END_AT = HEAD_SIZE + len(_DONE_BEGIN), -len(_DONE_END)


def encode_done(to: Command) -> bytes:
    """Return the frame of an answer that says SUCCESS and nothing else: it has a template."""
    if to.serialize_type != JSON:
        return encode_command(reply(to))
    opaque = b"%d" % to.opaque
    return b"".join((_DONE_HEADS[len(opaque)], opaque, _DONE_END))


def decode_done(frame: AnyFrame) -> Command | None:
    """Return the answer in a frame of `encode_done`; None: it is another frame, or not one only."""
    if len(frame) > _DONE_SIZE_MAX or not isinstance(frame, bytes):
        return None
    if not frame.endswith(_DONE_END):
        return None
    opaque = frame[_DONE_AT:_DONE_END_AT]
    if len(opaque) >= len(_DONE_HEADS) or not frame.startswith(_DONE_HEADS[len(opaque)]):
        return None
    return Command(0, int(opaque), REPLY_FLAG, LANGUAGE, VERSION) if opaque.isdigit() else None
