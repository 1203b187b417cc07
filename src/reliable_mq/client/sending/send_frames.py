"""Renders send requests from templates: the common part of a queue's requests is rendered once.

It receives a prepared message and returns the whole frame. The frame is equal byte for byte to the
encoding of `SenderFields.command`, because templates are made from that.
"""

import msgspec

from reliable_mq.client.sending.outgoing import PreparedMessage, SenderFields
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import Message, MessageQueue
from reliable_mq.wire.command import encode_command
from reliable_mq.wire.frame import HEAD_SIZE, JSON, encode_frame
from reliable_mq.wire.java_int import I32_MAX

TEMPLATES_MAX = 4096
"""Maximum templates, of some 300 bytes each. With more queues, a client makes them again."""

_FORMS = (b"%d", b"%d", b"%b", b"%d")  # born time, flag, properties, opaque
_FIRST_MARK = 1_000_000_000  # as long as the longest opaque; all marks have the same length
_BODY = b"-"

_encode_text = msgspec.json.Encoder().encode


class SendFrames:
    """Renders the requests of one client.

    Args:
        sender: the fields that are equal in all requests.
    """

    def __init__(self, sender: SenderFields) -> None:
        self._sender = sender
        self._templates: dict[MessageQueue, bytes] = {}

    def frame(self, out: PreparedMessage, queue: MessageQueue, now_ms: int, opaque: int) -> bytes:
        """Return the request that sends a message with an uncompressed body.

        Raises:
            FrameError: when it would be longer than 16 MiB.
        """
        template = self._templates.get(queue) or self._cut(queue)
        message = out.message
        properties = _encode_text(out.properties.decode())
        header = template % (now_ms, message.flag, properties, opaque)
        return encode_frame(JSON, header, message.body)

    def _cut(self, queue: MessageQueue) -> bytes:
        """Return the header of all requests for `queue`, with placeholders for the variable fields.

        These fields are found by marks: numbers that occur nowhere else in the header. Names of
            topics
        and groups might contain any number.
        """
        for first in range(_FIRST_MARK, I32_MAX, len(_FORMS)):
            born, flag, properties, opaque = range(first, first + len(_FORMS))
            letter = PreparedMessage(
                Message(topic=queue.topic, body=_BODY, flag=flag), b"%d" % properties
            )
            command = self._sender.command(letter, queue, born)
            command.opaque = opaque
            header = encode_command(command)[HEAD_SIZE : -len(_BODY)].replace(b"%", b"%%")
            marks = (b"%d" % born, b"%d" % flag, b'"%d"' % properties, b"%d" % opaque)
            if all(header.find(mark) == header.rfind(mark) >= 0 for mark in marks):
                for mark, form in zip(marks, _FORMS, strict=True):
                    header = header.replace(mark, form)
                if len(self._templates) >= TEMPLATES_MAX:
                    self._templates.clear()
                self._templates[queue] = header
                return header
        raise InvariantBroken("the names of a queue contain every possible mark")
