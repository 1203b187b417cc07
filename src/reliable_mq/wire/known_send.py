"""Sends that look alike: the header of one is taken apart once, those of the next are compared.

The sends of one client differ only in queue, time, unique key, opaque and body, and in the
signature if it signs. Receives frames of one connection. Returns commands, as the general decoder
would: a `KnownSends` for headers that equal an earlier one in every byte outside of these places.
Any other is decoded in general.
Rule 1: a place counts only if the general decoder reads it, and nothing else, from there. This is
tried with other values before a shape is used.
Rule 2: what a connection lets this side remember is limited in size and in number.
"""

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

import msgspec

from reliable_mq.errors import FrameError, InvariantBroken
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, decode_command, decode_request
from reliable_mq.wire.frame import (
    HEAD_SIZE,
    JSON,
    ROCKETMQ,
    TOGETHER_MAX,
    Frame,
    encode_frame,
    header_info,
)
from reliable_mq.wire.headers import HeaderInvalid, SendMessageHeaderV2
from reliable_mq.wire.record_form import RecordForm
from reliable_mq.wire.request_signature import RequestSigner
from reliable_mq.wire.rows import are_numbers, columns_of
from reliable_mq.wire.send_signature import LETTERS, SendSignature, signature_in

_SHAPES_MAX = 8  # of a connection: one for each number of digits of queue and opaque
_HEADER_SIZE_MAX = 512  # bytes; the shapes of a connection have 22 KB at most
_LEARNT_AT_ONCE = 32
_LEARNT_OF = 256  # later one in so many: the sends of a client may have nothing in common

_SEND = RequestCode.SEND_MESSAGE_V2
_KEY_BEGIN, _KEY_END = "UNIQ_KEY\x01", "\x02"
_TIME = rb"([1-9]\d{12})"
_KEY = rb"([0-9A-Za-z]{1,64})"
# Where queue, time and unique key are, in this order; behind them a JSON header has the opaque.
_JSON_PLACES = tuple(
    map(
        re.compile,
        (
            rb'"e":"(\d{1,9})"',
            rb'"g":"' + _TIME + b'"',
            rb"UNIQ_KEY\\u0001" + _KEY + rb"\\u0002",
            rb'"opaque":(\d{1,9})[,}]',
        ),
    )
)
_COMPACT_PLACES = tuple(
    map(
        re.compile,
        (
            rb"\x00\x01e\x00\x00\x00[\x01-\x09](\d{1,9})",
            rb"\x00\x01g\x00\x00\x00\x0d" + _TIME,
            rb"UNIQ_KEY\x01" + _KEY + rb"\x02",
        ),
    )
)
_COMPACT_OPAQUE = (5, 9)  # behind code, language and version
_FIRST_TIME = b"1000000000000"
_OTHER_DIGITS = bytes.maketrans(b"0123456789", b"1234567891")  # no digit stays, no 0 is made
_OTHER_BYTES = bytes(byte ^ 0x55 for byte in range(256))

_PLACES = 4  # that of a signature comes after them

_Places = list[tuple[int, int]]
_Values = tuple[bytes, ...]


class KnownSends(Command, gc=False, kw_only=True):
    """Sends of a known shape that came one after another, as one command.

    Attributes:
        shape: what they have in common.
        values: what the header of each is made of.
        columns: the same, a column for each value. Only one of both is given.
        bodies: of each.
    """

    shape: "SendShape"
    values: list[_Values]
    columns: Sequence[_Values]
    bodies: Sequence[bytes]

    def rows(self) -> Sequence[_Values]:
        """Return `values`."""
        return self.values or list(zip(*self.columns, strict=True))

    def by_place(self) -> Sequence[_Values]:
        """Return `columns`."""
        return self.columns or list(zip(*self.values, strict=True))

    def frames(self) -> Iterator[Frame]:
        """Yield the frames that came."""
        for values, body in zip(self.rows(), self.bodies, strict=True):
            yield Frame(self.shape.serialize_type, b"".join(values), body)

    def in_general(self, decode: Callable[[Frame], Command]) -> list[Command]:
        """Return the same requests as the general decoder returns them."""
        return list(map(decode, self.frames()))

    def are_signed_by(self, signer: RequestSigner) -> bool:
        """Whether each of them has the right signature of a user."""
        signature, pick = self.shape.signature, self.shape.pick
        if signature is None:
            return False
        if self.columns:
            columns, bodies = self.columns, self.bodies
            return signature.are_right(signer, columns[signature.at], pick(columns), bodies)
        at, is_right = signature.at, signature.is_right
        if len(self.bodies) == 1:
            (values,), (body,) = self.values, self.bodies
            return is_right(signer, values[at], pick(values), body)
        # A few, or of several sizes: to make columns of them costs more than it saves.
        for values, body in zip(self.values, self.bodies, strict=True):
            if not is_right(signer, values[at], pick(values), body):
                return False
        return True


class SendShape:
    """What the headers of some sends have in common.

    Args:
        frame: one of them.
        places: of queue, time, unique key and opaque; of the signature, if it has one.
        command: the frame as the general decoder returns it, its fields as texts.

    Attributes:
        properties: the text before and behind the unique key.
        form: how the records of such messages are written.
        size: of a header.
        pick: returns queue, time, unique key and opaque of the values of a header.
        signature: what is signed; None: there is no signature.
    """

    __slots__ = (
        "_behind",
        "_constants",
        "_is_json",
        "_least_opaque",
        "_least_queue",
        "_unpack",
        "_width",
        "flag",
        "form",
        "header",
        "pick",
        "properties",
        "serialize_type",
        "signature",
        "size",
    )

    form: RecordForm

    def __init__(self, frame: Frame, places: _Places, command: Command) -> None:
        sizes, at = [], 0
        for begin, end in (*sorted(places), (len(frame.header), len(frame.header))):
            sizes += [begin - at, end - begin]
            at = end
        # Constants stand before, between and behind the places.
        numbers = [2 * sorted(places).index(place) + 1 for place in places]
        self.pick = itemgetter(*numbers[:_PLACES])
        first, *others = [f"{size}s" for size in sizes[:-1]]
        self._behind = "".join(others)
        parts = struct.Struct(first + self._behind)
        self.size, self._unpack = parts.size, parts.unpack_from
        values = self._unpack(frame.header)
        self._width = len(values) + 1  # with the body
        self._constants = values[::2]
        self.serialize_type = frame.serialize_type
        self._is_json = frame.serialize_type == JSON
        queue, _time, _key, opaque = self.pick(values)
        self._least_queue = _least(queue)
        self._least_opaque = _least(opaque) if self._is_json else b""
        self.header, self.flag = SendMessageHeaderV2.decode(command.ext_fields), command.flag
        before, name, behind = (self.header.properties or "").partition(_KEY_BEGIN)
        self.properties = before + name, behind[behind.find(_KEY_END) :]
        self.signature = (
            SendSignature(numbers[_PLACES], command, *self.properties)
            if len(numbers) > _PLACES
            else None
        )

    def one(self, data: bytes, at: int, end: int, before: object) -> KnownSends | None:
        """Return the sends to which a frame belongs; None: its header is not of this shape.

        Args:
            data: bytes with the frame, whose header has the size and the form of the shape.
            at: where the frame begins.
            end: where it ends.
            before: what stands for the frame before; it is continued if it has this shape.
        """
        values = self._unpack(data, at + HEAD_SIZE)
        if values[::2] != self._constants:
            return None
        queue, time, key, opaque = self.pick(values)
        # What stands there must be written as the general decoder reads it: numbers without
        # needless zeros, or letters and digits.
        numbers = queue + time + opaque if self._is_json else queue + time
        if not (
            numbers.isdigit()
            and key.isalnum()
            and queue >= self._least_queue
            and time >= _FIRST_TIME
            and opaque >= self._least_opaque
        ):
            return None
        signature = self.signature
        if signature is not None and values[signature.at].translate(None, LETTERS):
            return None
        body = data[at + HEAD_SIZE + self.size : end]
        if (
            isinstance(before, KnownSends)
            and before.shape is self
            and isinstance(before.bodies, list)
            and len(before.bodies) < TOGETHER_MAX
        ):
            before.values.append(values)
            before.bodies.append(body)
            return before
        return KnownSends(code=_SEND, shape=self, values=[values], columns=(), bodies=[body])

    def many(self, data: bytes, at: int, size: int, count: int) -> KnownSends | None:
        """Return the sends in `count` frames of one size; None: not all are of this shape."""
        # What stands before the first place is one value with the head of the frame.
        first, *others = self._constants
        form = f"{HEAD_SIZE + len(first)}s{self._behind}{size - HEAD_SIZE - self.size}s"
        heads, *columns, bodies = columns_of(form, self._width, data, at, count)
        others.append(data[at : at + HEAD_SIZE] + first)
        for known, column in zip(others, (*columns[1::2], heads), strict=True):
            if column.count(known) < count:
                return None
        columns.insert(0, (first,) * count)
        queues, times, keys, opaques = self.pick(columns)
        signed = b"".join(columns[self.signature.at]) if self.signature is not None else b""
        numbers = (queues, times, opaques) if self._is_json else (queues, times)
        are_fine = are_numbers(numbers) and b"".join(keys).isalnum()  # as in `one`
        if not are_fine or signed.translate(None, LETTERS):
            return None
        return KnownSends(code=_SEND, shape=self, values=[], columns=columns, bodies=bodies)

    def sends_of(self, frame: Frame) -> KnownSends:
        """Return the send in a frame of this shape."""
        values = self._unpack(frame.header)
        bodies = [frame.body]
        return KnownSends(code=_SEND, shape=self, values=[values], columns=(), bodies=bodies)

    def fields(self, values: _Values) -> tuple[int, int, bytes, int]:
        """Return the queue, the time, the unique key and the opaque of a send."""
        queue, time, key, opaque = self.pick(values)
        if self._is_json:
            return int(queue), int(time), key, int(opaque)
        return int(queue), int(time), key, int.from_bytes(opaque, "big", signed=True)

    def header_with(self, queue_id: int, born_time_ms: int, key: bytes) -> SendMessageHeaderV2:
        """Return the fields of a send of this shape."""
        before, after = self.properties
        return msgspec.structs.replace(
            self.header,
            queue_id=queue_id,
            born_timestamp=born_time_ms,
            properties=f"{before}{key.decode()}{after}",
        )


def _least(digits: bytes) -> bytes:
    """Return the least number of so many digits that does not begin with a needless 0."""
    return b"0" if len(digits) == 1 else b"1" + b"0" * (len(digits) - 1)


def _places_in(frame: Frame) -> _Places:
    """Return where the values are that may differ; fewer than four: one was not found."""
    is_json, found, at = frame.serialize_type == JSON, [], 0
    for place in _JSON_PLACES if is_json else _COMPACT_PLACES:
        match = place.search(frame.header, at)
        if match is None:
            return []
        found.append(match.span(1))
        at = match.end()
    if not is_json:
        found.append(_COMPACT_OPAQUE)
    signature = signature_in(frame)
    return found if signature is None else [*found, signature]


def _with_other_values(frame: Frame, places: _Places) -> Frame:
    """Return a frame with another value at each place."""
    header = bytearray(frame.header)
    for begin, end in places:
        value, is_text = header[begin:end], (begin, end) != _COMPACT_OPAQUE
        other = (
            value.translate(_OTHER_DIGITS).swapcase() if is_text else value.translate(_OTHER_BYTES)
        )
        header[begin:end] = other
    return Frame(frame.serialize_type, bytes(header), frame.body)


def shape_of(frame: Frame) -> SendShape | None:
    """Return the shape of a send; None: it has none, or one that cannot be proved."""
    places = _places_in(frame)
    if not places:
        return None
    try:
        shape = SendShape(frame, places, decode_command(frame))
        tried = (frame, _with_other_values(frame, places))
        return shape if all(_reads_right(shape, each) for each in tried) else None
    except (FrameError, HeaderInvalid):
        return None


def _reads_right(shape: SendShape, frame: Frame) -> bool:
    """Whether a shape reads a frame as the general decoder does."""
    command, data = decode_command(frame), encode_frame(frame.serialize_type, frame.header)
    sends = shape.one(data, 0, len(data), None)
    if sends is None or command.code != _SEND:
        return False
    values, signature = sends.values[0], shape.signature
    queue_id, born_time_ms, key, opaque = shape.fields(values)
    read = opaque, shape.flag, shape.header_with(queue_id, born_time_ms, key)
    if read != (command.opaque, command.flag, SendMessageHeaderV2.decode(command.ext_fields)):
        return False
    columns = [(value,) for value in values]
    return signature is None or signature.is_of(values[signature.at], shape.pick(columns), command)


class SendShapes:
    """The shapes of the sends of one connection.

    Invariant W5: they are few and small, and each is tried on headers of its own size and form.

    Args:
        form_of: how records of sends are written; None: each of them needs more than that.
        decode: the general decoder.

    Attributes:
        known: the shapes, for `FrameReader`.
    """

    __slots__ = ("_decode", "_form_of", "_unknown", "known")

    def __init__(
        self,
        form_of: Callable[[KnownSends], RecordForm | None],
        decode: Callable[[Frame], Command] = decode_request,
    ) -> None:
        self._form_of, self._decode = form_of, decode
        self.known: dict[int, SendShape] = {}  # by header info: size and form
        self._unknown = 0  # sends of no known shape

    def invariants(self) -> None:
        """Check W5.

        Raises:
            InvariantBroken: when there are too many shapes, or one is under another's header info.
        """
        sizes = {info & 0xFFFFFF: shape.size for info, shape in self.known.items()}
        is_limited = len(self.known) <= _SHAPES_MAX and max(sizes, default=0) <= _HEADER_SIZE_MAX
        if not is_limited or any(known != size for known, size in sizes.items()):
            raise InvariantBroken(f"W5: shapes of headers of these sizes: {sizes}")

    def decode(self, frame: Frame) -> Command:
        """Return the command in a frame that was not recognised, and learn from it.

        Raises:
            FrameError: when the header is not in the format that the frame names.
        """
        command = self._decode(frame)
        if command.code == _SEND:
            self._unknown += 1
            if self._unknown <= _LEARNT_AT_ONCE or not self._unknown % _LEARNT_OF:
                self._learn(frame)
        return command

    def _learn(self, frame: Frame) -> None:
        if len(frame.header) > _HEADER_SIZE_MAX or frame.serialize_type not in (JSON, ROCKETMQ):
            return
        shape = shape_of(frame)
        if shape is None:
            return
        form = self._form_of(shape.sends_of(frame))
        if form is None:
            return
        shape.form = form
        if len(self.known) >= _SHAPES_MAX:
            self.known.clear()
        self.known[header_info(frame)] = shape
