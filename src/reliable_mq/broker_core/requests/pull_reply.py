"""The reply to a pull that finds messages, from a template."""

from typing import NamedTuple

from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.frame import JSON, encode_frame
from reliable_mq.wire.long_frame import AnyFrame, LongBody, LongFrame

FOUND = "FOUND"  # the remark


class PullExt(NamedTuple):
    """The fields of a reply in order: suggested broker, offsets, flags."""

    suggested_broker: int
    next_offset: int
    min_offset: int
    max_offset: int
    topic_flag: int
    group_flag: int

    def to_ext(self) -> dict[str, str]:
        """Return the fields by their names on the wire."""
        return dict(zip(_NAMES, map(str, self), strict=True))


_NAMES = (
    *("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"),
    *("topicSysFlag", "groupSysFlag"),
)
_MARKS = PullExt(-11, -12, -13, -14, -15, -16)
_OPAQUE = -17


def encode_found(command: Command, ext: PullExt, body: bytes | LongBody) -> AnyFrame:
    """Return the frame of the reply to `command`, with the records in `body`."""
    if isinstance(body, LongBody):
        return LongFrame(bytes(encode_found(command, ext, b"")), body)
    if command.serialize_type == JSON:
        return encode_frame(JSON, _TEMPLATE % (*ext, command.opaque), body)
    return encode_answer(reply(command, ResponseCode.SUCCESS, FOUND, ext.to_ext(), body))


def _cut_template() -> bytes:
    """Make the template from a normally encoded reply, so that both give the same bytes."""
    sample = reply(Command(11, _OPAQUE), ResponseCode.SUCCESS, FOUND, _MARKS.to_ext())
    template = encode_command(sample)[8:].replace(b"%", b"%%")
    for mark in (*_MARKS, _OPAQUE):
        template = template.replace(str(mark).encode(), b"%d")
    return template


_TEMPLATE = _cut_template()
