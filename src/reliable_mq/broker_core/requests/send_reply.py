"""The reply to a send, encoded from a template, because every message needs one."""

import struct
from collections.abc import Sequence
from functools import partial

from reliable_mq.broker_core.store.appender import AppendResult
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.frame import JSON, encode_head
from reliable_mq.wire.java_int import I32_MAX, I64_MAX
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import MSG_REGION, TRACE_ON

_FORMS = (b"%016X", b"%d", b"%d", b"%d")  # log offset, queue id, queue offset, opaque
_FIRST_MARK = 1_000_000_000  # all marks have the number of digits of the largest opaque


class SendReply:
    """Encodes the success reply of a send.

    The JSON template is made from a normally encoded reply, so that both give the same bytes.

    Args:
        ip: the broker's packed address, 4 or 16 bytes.
        port: the broker's port.
        region_id: region of the broker, which producers write into message traces.
        trace_on: whether producers may trace messages.
    """

    def __init__(self, ip: bytes, port: int, region_id: str, *, trace_on: bool) -> None:
        self._host = encode_offset_message_id(ip, port, 0)[:-16]
        host = bytes.fromhex(self._host)
        self._id_size = len(host) + 8
        self._pack_id = partial(struct.Struct(f">{len(host)}sq").pack, host)
        self.ext = {MSG_REGION: region_id, TRACE_ON: "true" if trace_on else "false"}
        self._template = self._cut_template()
        shortest, longest = self._template % ((0,) * 4), self._template % ((-I64_MAX,) * 4)
        # The bytes before the header, by the header's length
        self._heads = {
            length: encode_head(JSON, length) for length in range(len(shortest), len(longest) + 1)
        }

    def _cut_template(self) -> bytes:
        """Return the reply with a format specifier in place of each of its four numbers.

        The numbers are found by marks that occur nowhere else in the reply. The names and the
        address of the broker may contain some marks, so several are tried.
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
        raise InvariantBroken("every mark occurs in the names of the broker")

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
        """Return the frame of the reply to `command`, whose message is stored at `place`.

        Args:
            command: the send.
            queue_id: the queue of the message.
            place: place of the message, or of the first message of a batch.
            offsets: log offsets of the messages of a batch; default empty: no batch.
            recall_handle: the handle to recall a timed message; default "": not a timed message.
        """
        if command.serialize_type == JSON and not (offsets or recall_handle):
            header = self._template % (
                place.commit_log_offset,
                queue_id,
                place.queue_offset,
                command.opaque,
            )
            return self._heads[len(header)] + header
        packed = b"".join(map(self._pack_id, offsets or (place.commit_log_offset,)))
        message_id = packed.hex(",", self._id_size).upper()
        answer = self._reply(command, message_id, queue_id, place.queue_offset)
        if recall_handle:
            answer.ext_fields["recallHandle"] = recall_handle
        return encode_answer(answer)

    def encode_half(
        self, command: Command, queue_id: int, place: AppendResult, transaction_id: str
    ) -> bytes:
        """Return the frame of the reply to `command`, whose half message is stored at `place`."""
        message_id = f"{self._host}{place.commit_log_offset:016X}"
        answer = self._reply(command, message_id, queue_id, place.queue_offset)
        answer.ext_fields["transactionId"] = transaction_id
        return encode_answer(answer)
