"""Sends with a signature, decoded in one pass: the fields of the header become one object.

A broker with access control reads requests with `decode_signed_request`.
"""

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.wire.command import (
    SENDS,
    Command,
    TypedCommand,
    decode_command,
    decode_typed,
    hidden,
)
from reliable_mq.wire.frame import JSON, Frame
from reliable_mq.wire.headers import SignedSendHeader

_NO_FRAME = Frame(JSON, b"", b"")


@decodable
class SignedSend(TypedCommand, gc=False, kw_only=True):
    """A send with a signature, its fields as one object. `frame` has the same fields as texts."""

    send_header: SignedSendHeader = msgspec.field(name="extFields")
    frame: Frame = hidden("frame", default=_NO_FRAME)

    def in_general(self) -> Command:
        """Return the same request with its fields as texts."""
        return decode_command(self.frame)


_decode_json_signed_send = msgspec.json.Decoder(SignedSend, strict=False).decode


def decode_signed_request(frame: Frame) -> Command:
    """Return the command in `frame`; a send with the fields of Apache's client is a `SignedSend`.

    Every other request has its fields as texts: a signature covers fields that no header knows.

    Raises:
        FrameError: when the header is not in the format that the frame names.
    """
    header = frame.header
    if frame.serialize_type == JSON and header.startswith(SENDS):
        command = decode_typed(_decode_json_signed_send, frame)
        if type(command) is SignedSend:
            command.frame = frame
        return command
    return decode_command(frame)
