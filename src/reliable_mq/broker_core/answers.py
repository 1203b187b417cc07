"""The replies of a broker, and when each may leave. The reply to a send has a template.

Receives frames for connections. Returns the frames that may leave at the end of a turn. All replies
that wait for the records of one turn wait together: these records become durable together.
"""

import struct
from binascii import hexlify
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise, repeat

from reliable_mq.broker_core.store.appender import AppendResult
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.frame import JSON, ROCKETMQ, encode_frame, encode_head
from reliable_mq.wire.java_int import I32_MAX, I64_MAX
from reliable_mq.wire.long_frame import AnyFrame
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import MSG_REGION, TRACE_ON

Answer = tuple[int, AnyFrame]
"""A connection's id, and a whole frame."""
_I32 = struct.Struct(">i")
_FORMS = (b"%016X", b"%d", b"%d", b"%d")  # log offset, queue id, queue offset, opaque
_TEXT_FORMS = (b"%016X", b"%b", b"%d", b"%b")  # queue id and opaque as they stand in a frame
_Numbers = tuple[int, int, int, int]  # in the order of the forms
_FIRST_MARK = 1_000_000_000  # all marks have the number of digits of the largest opaque


class Answers:
    """The replies of a broker.

    Invariants B2 and S2: a reply that waits for the log leaves only when the log is stored up to
    its offset. Waiting replies leave in the order of their offsets.
    """

    def __init__(self) -> None:
        self.ready: list[Answer] = []  # replies that may leave now: they wait for no record
        self.held: list[Answer] = []  # replies that wait for the records of this turn
        self._held_end = 0
        # Replies of earlier turns, by the log offset that they wait for.
        self._withheld: deque[tuple[int, list[Answer]]] = deque()
        self.waiting = 0  # replies that wait for earlier turns
        self.unsaved = 0  # replies to sends that wait for the file of a new topic; others have them
        self.released = 0  # the log offset up to which replies have left

    def invariants(self) -> None:
        """S2: what waits is behind what was released, in the order of the log."""
        ends = [end for end, _answers in self._withheld]
        if any(first > second for first, second in pairwise(ends)):
            raise InvariantBroken(f"S2: replies wait for the log in this order: {ends}")
        if ends and ends[0] <= self.released:
            raise InvariantBroken(f"S2: a reply waits for {ends[0]}, {self.released} is released")

    def now(self, connection: int, frame: AnyFrame) -> None:
        """Send a reply at the end of this turn."""
        self.ready.append((connection, frame))

    def when_stored(self, connection: int, end: int, frame: bytes) -> None:
        """Send a reply when the log before `end` is stored as the flush type promises."""
        self.held.append((connection, frame))
        if end > self._held_end:  # noqa: PLR1730 - a call of max() costs more than the rest
            self._held_end = end

    def all_when_stored(self, connection: int, end: int, frames: Iterable[bytes]) -> None:
        """Send several replies as `when_stored` does; `end` is that of the last one's record."""
        self.held.extend(zip(repeat(connection), frames))
        self._held_end = max(self._held_end, end)

    def late(self, connection: int, end: int, frame: bytes) -> None:
        """Send a reply as `when_stored` does; its record may be stored, and others released."""
        if end <= self.released:
            self.now(connection, frame)
        else:
            self.when_stored(connection, end, frame)

    def release(self, end: int) -> int:
        """Release the replies that wait for log offsets up to `end`; return their number.

        With ASYNC_FLUSH an older `end` is reported again when it is durable. It releases nothing.
        """
        withheld, count = self._withheld, 0
        if end > self.released:  # noqa: PLR1730 - as above
            self.released = end
        while withheld and withheld[0][0] <= end:
            answers = withheld.popleft()[1]
            count += len(answers)
            self.ready += answers
        self.waiting -= count
        return count

    def end_turn(self, log_end: int) -> list[Answer]:
        """End a turn, after which the log ends at `log_end`; return the replies that may leave."""
        if self.held:
            self._withhold(log_end)
        ready, self.ready = self.ready, []
        return ready

    def end_sends(self, log_end: int) -> None:
        """End a turn of sends; only their replies wait."""
        if self.held:
            self._withhold(log_end)

    def take_ready(self) -> list[Answer]:
        """Return the replies that may leave now."""
        ready, self.ready = self.ready, []
        return ready

    def _withhold(self, log_end: int) -> None:
        held, self.held = self.held, []
        if self._held_end > log_end:
            raise InvariantBroken(f"B2: an answer waits for {self._held_end} of {log_end}")
        if log_end <= self.released:  # it was stored while the turn ran
            self.ready += held
            return
        self._withheld.append((log_end, held))
        self.waiting += len(held)


class SendReply:
    """Encodes the success reply of a send from a template, because every message needs one.

    The JSON template is made from a normally encoded reply, so that both give the same bytes.

    Args:
        ip: the broker's packed address, 4 or 16 bytes.
        port: the broker's port.
        region_id: region of the broker, which producers write into message traces.
        trace_on: whether producers may trace messages.
    """

    def __init__(self, ip: bytes, port: int, region_id: str, *, trace_on: bool) -> None:
        self._host = encode_offset_message_id(ip, port, 0)[:-16]
        self._next_host = f",{self._host}".encode()
        self.ext = {MSG_REGION: region_id, TRACE_ON: "true" if trace_on else "false"}
        self._template = self._cut_template(_FORMS)
        self._text_template = self._cut_template(_TEXT_FORMS)
        self._batch_template = b"%b".join(self._template.rsplit(_FORMS[0], 1))
        self._compact_templates: dict[tuple[int, int], bytes] = {}
        shortest, longest = self._template % ((0,) * 4), self._template % ((-I64_MAX,) * 4)
        # The bytes before the header, by the header's length
        self._heads = {
            length: encode_head(JSON, length) for length in range(len(shortest), len(longest) + 1)
        }

    def _cut_template(self, forms: Sequence[bytes]) -> bytes:
        """Return the reply with a format specifier in place of each of its four numbers.

        The numbers are found by marks that occur nowhere else in the reply. The names and the
        address of the broker may contain some marks, so several are tried.
        """
        for first in range(_FIRST_MARK, I32_MAX, len(forms)):
            marks = range(first, first + len(forms))
            log_offset, queue_id, queue_offset, opaque = marks
            command = Command(code=0, opaque=opaque)
            sample = self._reply(command, f"{self._host}{log_offset}", queue_id, queue_offset)
            template = encode_command(sample)[8:].replace(b"%", b"%%")
            texts = [b"%d" % mark for mark in marks]
            if all(template.find(text) == template.rfind(text) >= 0 for text in texts):
                for text, form in zip(texts, forms, strict=True):
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
        if not (offsets or recall_handle):
            numbers = place.commit_log_offset, queue_id, place.queue_offset, command.opaque
            return self.encode_plain(command.serialize_type, numbers)
        places = offsets or (place.commit_log_offset,)
        packed = struct.pack(f">{len(places)}q", *places)
        later_ids = hexlify(packed, ",", 8).upper().replace(b",", self._next_host)
        if command.serialize_type == JSON and not recall_handle:
            own = later_ids, queue_id, place.queue_offset, command.opaque
            return encode_frame(JSON, self._batch_template % own)
        message_id = self._host + later_ids.decode()
        answer = self._reply(command, message_id, queue_id, place.queue_offset)
        if recall_handle:
            answer.ext_fields["recallHandle"] = recall_handle
        return encode_answer(answer)

    def encode_plain(self, serialize_type: int, numbers: _Numbers) -> bytes:
        """Return `encode` for a send of a single message."""
        if serialize_type == JSON:
            header = self._template % numbers
            return self._heads[len(header)] + header
        offset, queue_id, queue_offset, opaque = numbers
        return self._compact(offset, b"%d" % queue_id, queue_offset, _I32.pack(opaque))

    def encode_text(
        self, serialize_type: int, offset: int, queue: bytes, queue_offset: int, opaque: bytes
    ) -> bytes:
        """Return `encode_plain`; queue and opaque are as they stand in the frame of the send."""
        if serialize_type != JSON:
            return self._compact(offset, queue, queue_offset, opaque)
        header = self._text_template % (offset, queue, queue_offset, opaque)
        return self._heads[len(header)] + header

    def encode_many(
        self,
        serialize_type: int,
        offsets: Sequence[int],
        queues: Sequence[bytes],
        queue_offsets: Sequence[int],
        opaques: Sequence[bytes],
    ) -> Iterable[bytes]:
        """Return `encode_text` of many sends, which come in columns.

        Queues and opaques have one length each.
        """
        if serialize_type != JSON:
            return map(self._compact, offsets, queues, queue_offsets, opaques)
        template = self._text_template
        numbers = zip(offsets, queues, queue_offsets, opaques, strict=True)
        least, most = min(queue_offsets), max(queue_offsets)
        if len(b"%d" % least) == len(b"%d" % most):  # then all answers have one length
            size = len(template % (0, queues[0], least, opaques[0]))
            return map((self._heads[size].replace(b"%", b"%%") + template).__mod__, numbers)
        headers = list(map(template.__mod__, numbers))
        return map(bytes.__add__, map(self._heads.__getitem__, map(len, headers)), headers)

    def _compact(self, offset: int, queue: bytes, queue_offset: int, opaque: bytes) -> bytes:
        """Return the reply with a ROCKETMQ header; it has a template for each number of digits."""
        number = b"%d" % queue_offset
        sizes = len(queue), len(number)
        template = self._compact_templates.get(sizes) or self._cut_compact(*sizes)
        return template % (opaque, offset, queue, number)

    def _cut_compact(self, queue_size: int, number_size: int) -> bytes:
        """Return, and keep, the template of replies whose numbers have so many digits.

        Two replies with other numbers differ in these only.
        """

        def sample(digit: str, opaque: int) -> bytes:
            command = Command(code=0, opaque=opaque, serialize_type=ROCKETMQ)
            ext = {**self.ext, "msgId": self._host + digit * 16}
            ext |= {"queueId": digit * queue_size, "queueOffset": digit * number_size}
            return encode_command(reply(command, ext=ext))

        forms = iter((b"%b", b"%016X", b"%b", b"%b"))
        pairs = zip(sample("0", 0), sample("1", -1), strict=True)
        template = b"".join(
            next(forms) if is_number else bytes(one for one, _ in same).replace(b"%", b"%%")
            for is_number, same in groupby(pairs, lambda pair: pair[0] != pair[1])
        )
        self._compact_templates[queue_size, number_size] = template
        return template

    def encode_half(
        self, command: Command, queue_id: int, place: AppendResult, transaction_id: str
    ) -> bytes:
        """Return the frame of the reply to `command`, whose half message is stored at `place`."""
        message_id = f"{self._host}{place.commit_log_offset:016X}"
        answer = self._reply(command, message_id, queue_id, place.queue_offset)
        answer.ext_fields["transactionId"] = transaction_id
        return encode_answer(answer)
