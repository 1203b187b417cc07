"""Requests that send one message, from templates: what those of a queue share is rendered once.

Receives a message that is ready; hands on the whole frame. What it makes is what `encode_command`
makes of `SenderFields.command`, byte for byte, because the templates are cut from that.
"""

import msgspec

from reliable_mq.client.sending.outgoing import PreparedMessage, SenderFields
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import Message, MessageQueue
from reliable_mq.wire.command import encode_command
from reliable_mq.wire.frame import HEAD_SIZE, JSON, encode_frame
from reliable_mq.wire.java_int import I32_MAX

TEMPLATES_MAX = 4096
"""A client that sends to more queues makes their templates again; each has some 300 bytes."""

_FORMS = (b"%d", b"%d", b"%b", b"%d")  # born time, flag, properties, opaque
_FIRST_MARK = 1_000_000_000  # as many digits as an opaque may have, and all the same number of them
_BODY = b"-"

_encode_text = msgspec.json.Encoder().encode


class SendFrames:
    """Renders the requests of one client.

    Args:
        sender: what all of them say alike.
    """

    def __init__(self, sender: SenderFields) -> None:
        self._sender = sender
        self._templates: dict[MessageQueue, bytes] = {}

    def frame(self, out: PreparedMessage, queue: MessageQueue, now_ms: int, opaque: int) -> bytes:
        """Return the request that sends a message whose body is not packed.

        Raises:
            FrameError: when it would be longer than 16 MiB.
        """
        template = self._templates.get(queue) or self._cut(queue)
        message = out.message
        properties = _encode_text(out.properties.decode())
        header = template % (now_ms, message.flag, properties, opaque)
        return encode_frame(JSON, header, message.body)

    def _cut(self, queue: MessageQueue) -> bytes:
        """Return the header of all requests for `queue`, with forms where they differ.

        They are found by numbers that the rest of it does not hold: what topics and groups are
        called may look like any of them.
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
        raise InvariantBroken("the names of a queue hold every number")
