"""The answer to a send, made from a template: the broker writes it once for every message."""

import struct
from collections.abc import Sequence
from functools import partial

from reliable_mq.broker_core.store.appender import AppendResult
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.frame import JSON, encode_head
from reliable_mq.wire.java_int import I32_MAX
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import MSG_REGION, TRACE_ON

_FORMS = (b"%016X", b"%d", b"%d", b"%d")  # log offset, queue id, queue offset, opaque
_FIRST_MARK = 1_000_000_000  # as many digits as an opaque may have, and all the same number of them


class SendReply:
    """Encodes the success reply of a send.

    The JSON template is cut from a reply that was encoded in general, so both are the same bytes.

    Args:
        ip: the broker's packed address, 4 or 16 bytes.
        port: the broker's port.
        region_id: told to producers, for message traces.
        trace_on: whether producers may trace messages.
    """

    def __init__(self, ip: bytes, port: int, region_id: str, *, trace_on: bool) -> None:
        self._host = encode_offset_message_id(ip, port, 0)[:-16]
        host = bytes.fromhex(self._host)
        self._id_size = len(host) + 8
        self._pack_id = partial(struct.Struct(f">{len(host)}sq").pack, host)
        self.ext = {MSG_REGION: region_id, TRACE_ON: "true" if trace_on else "false"}
        self._template = self._cut_template()

    def _cut_template(self) -> bytes:
        """Return the reply with forms in the place of its four numbers.

        They are found by numbers that the rest of it does not hold: what the broker is called, and
        where, may look like any of them.
        """
        for first in range(_FIRST_MARK, I32_MAX, len(_FORMS)):
            marks = range(first, first + len(_FORMS))
            log_offset, queue_id, queue_offset, opaque = marks
            command = Command(code=0, opaque=opaque)
            sample = self._reply(command, f"{self._host}{log_offset}", queue_id, queue_offset)
            template = encode_command(sample)[8:].replace(b"%", b"%%")
            texts = [b"%d" % mark for mark in marks]
            if all(template.find(text) == template.rfind(text) >= 0 for text in texts):
                for text, form in zip(texts, _FORMS, strict=True):
                    template = template.replace(text, form)
                return template
        raise InvariantBroken("the names of the broker hold every number")

    def _reply(self, to: Command, message_id: str, queue_id: int, queue_offset: int) -> Command:
        ext = {
            **self.ext,
            "msgId": message_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
        }
        return reply(to, ext=ext)

    def encode(
        self,
        command: Command,
        queue_id: int,
        place: AppendResult,
        offsets: Sequence[int] = (),
        recall_handle: str = "",
    ) -> bytes:
        """Return the frame that answers `command`, whose message went to `place`.

        Args:
            command: the send.
            queue_id: where its message is.
            place: of the message, or of the first of a batch.
            offsets: where in the log the messages of a batch begin.
            recall_handle: how a timed message can be taken back, "" for any other.
        """
        if command.serialize_type == JSON and not (offsets or recall_handle):
            header = self._template % (
                place.commit_log_offset,
                queue_id,
                place.queue_offset,
                command.opaque,
            )
            return encode_head(JSON, len(header)) + header
        packed = b"".join(map(self._pack_id, offsets or (place.commit_log_offset,)))
        message_id = packed.hex(",", self._id_size).upper()
        answer = self._reply(command, message_id, queue_id, place.queue_offset)
        if recall_handle:
            answer.ext_fields["recallHandle"] = recall_handle
        return encode_answer(answer)

    def encode_half(
        self, command: Command, queue_id: int, place: AppendResult, transaction_id: str
    ) -> bytes:
        """Return the frame that answers `command`, whose half message went to `place`."""
        message_id = f"{self._host}{place.commit_log_offset:016X}"
        answer = self._reply(command, message_id, queue_id, place.queue_offset)
        answer.ext_fields["transactionId"] = transaction_id
        return encode_answer(answer)
