"""Shapes of sends: what is remembered is proved first, and limited."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.wire.command import Command, decode_command, encode_command, request
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, FrameReader
from reliable_mq.wire.known_send import KnownSends, SendShape, SendShapes, shape_of
from reliable_mq.wire.record_form import RecordForm

FORM = RecordForm(b"t", 0, 0, bytes(8), bytes(8), 0, (b"", b""), 32, 0)
FIELDS = {
    "b": "t",
    "a": "producers",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x010123456789ABCDEF\x02WAIT\x01true\x02",
}


def frame_of(kind: int = JSON, opaque: int = 7, body: bytes = b"x", **changes: str) -> Frame:
    command = request(310, {**FIELDS, **changes}, body)
    command.opaque, command.serialize_type = opaque, kind
    (frame,) = FrameReader().feed(encode_command(command))
    return frame


def bytes_of(frame: Frame) -> bytes:
    head = (4 + len(frame.header) + len(frame.body)).to_bytes(4, "big")
    size = len(frame.header).to_bytes(3, "big")
    return head + bytes((frame.serialize_type,)) + size + frame.header + frame.body


def with_header(frame: Frame, old: bytes, new: bytes) -> Frame:
    assert old in frame.header
    return msgspec.structs.replace(frame, header=frame.header.replace(old, new, 1))


class Peer:
    """A connection whose sends are learnt; all of them have a form."""

    def __init__(self, form: RecordForm | None = FORM) -> None:
        self.asked: list[SendShape] = []

        def form_of(sends: KnownSends) -> RecordForm | None:
            self.asked.append(sends.shape)
            return form

        self.shapes = SendShapes(form_of)
        self.reader: FrameReader[Command] = FrameReader(1_000, self.shapes.known)

    def feed(self, *frames: Frame) -> list[Command]:
        cut = self.reader.feed(b"".join(map(bytes_of, frames)))
        return [self.shapes.decode(each) if isinstance(each, Frame) else each for each in cut]


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
@given(
    queue=st.integers(0, 9),
    time=st.integers(10**12, 10**13 - 1),
    opaque=st.integers(0, 9),
    key=st.text("0123456789ABCDEFxyz", min_size=16, max_size=16),
    body=st.binary(max_size=40),
)
def test_a_send_that_differs_only_in_its_five_places_is_read_as_the_general_decoder_reads_it(
    kind: int, queue: int, time: int, opaque: int, key: str, body: bytes
) -> None:
    peer = Peer()
    peer.feed(frame_of(kind))
    changes: dict[str, Any] = {"e": str(queue), "g": str(time)}
    frame = frame_of(kind, opaque, body, i=f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02", **changes)
    (sends,) = peer.feed(frame, frame)
    assert isinstance(sends, KnownSends)
    assert list(sends.frames()) == [frame, frame]
    command, fields = decode_command(frame), (queue, time, key.encode(), opaque)
    assert sends.shape.fields(sends.rows()[0]) == fields
    header = sends.shape.header_with(queue, time, key.encode())
    read = {name: command.ext_fields[name] for name in header.to_ext()}
    assert (header.to_ext(), sends.shape.flag) == (read, command.flag)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"h":"0"', b'"h":"1"'),
        (b'"e":"3"', b'"e":"x"'),
        (b'"g":"1', b'"g":"0'),
        (b'"g":"1', b'"g":"-'),
        (b"0123456789ABCDEF", b"0123456789ABCD\\t"),
        (b"0123456789ABCDEF", b'0123456789","x":'),
        (b'"opaque":7', b'"opaque": '),
        (b"PYTHON", b"PITHON"),
    ],
)
def test_a_header_that_only_looks_alike_is_not_of_the_shape(old: bytes, new: bytes) -> None:
    peer = Peer()
    peer.feed(frame_of())
    other = with_header(frame_of(), old, new)
    assert other != frame_of()
    (cut,) = peer.reader.feed(bytes_of(other))
    assert cut == other


def test_a_number_with_a_needless_zero_is_not_of_the_shape() -> None:
    peer = Peer()
    peer.feed(frame_of(opaque=10, e="10"))
    for frame in (
        frame_of(opaque=10, e="03"),
        with_header(frame_of(opaque=11, e="10"), b":11", b":01"),
    ):
        assert peer.reader.feed(bytes_of(frame)) == [frame]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"h":', b'"e":"5","h":'),  # the last queue counts
        (b'"d":"4"', b'"d":"4","x":{"e":"5"}'),
        (b'"e":"3"', b'"e":3'),
        (b'"e":"3"', b'"e":"03"'),
        (b'"opaque":7', b'"opaque":1234567890'),
        (b"UNIQ_KEY", b"uniq_key"),
        (b"0123456789ABCDEF", b"0123-456-789-ABC"),
        (b'"h":"0"', b'"\x80":"0"'),
    ],
)
def test_a_header_in_which_a_place_may_mean_something_else_has_no_shape(
    old: bytes, new: bytes
) -> None:
    assert shape_of(frame_of()) is not None
    assert shape_of(with_header(frame_of(), old, new)) is None


def test_sends_of_one_shape_stand_together_until_another_frame_comes() -> None:
    peer = Peer()
    peer.feed(frame_of())
    other = frame_of(ROCKETMQ)
    commands = peer.feed(frame_of(), frame_of(opaque=8), other, frame_of(), frame_of())
    assert [len(each.bodies) if isinstance(each, KnownSends) else 0 for each in commands] == [
        2,
        0,
        2,
    ]
    assert peer.reader.count == 5


def test_no_more_sends_stand_together_than_a_turn_should_handle() -> None:
    """The turn of a connection ends between two commands."""
    peer = Peer()
    peer.feed(frame_of())
    frames = [frame_of()] * 70, [frame_of(body=b"x" * (n % 2)) for n in range(70)]
    for of_one_size_or_two in frames:
        commands = peer.feed(*of_one_size_or_two)
        sizes = [len(each.bodies) for each in commands if isinstance(each, KnownSends)]
        assert sizes == [32, 32, 6]


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
@pytest.mark.parametrize("sizes", [(9,) * 16, (9, 8) * 8, (9,) * 5 + (8,) * 11])
def test_sends_of_one_size_and_of_many_sizes_are_read_alike(
    kind: int, sizes: tuple[int, ...]
) -> None:
    peer = Peer()
    peer.feed(frame_of(kind))
    frames = [frame_of(kind, n % 10, b"x" * size, e=str(n % 9)) for n, size in enumerate(sizes)]
    found = [each for each in peer.feed(*frames) if isinstance(each, KnownSends)]
    assert [each for sends in found for each in sends.frames()] == frames
    for sends in found:
        rows, columns = sends.rows(), sends.by_place()
        assert list(zip(*rows, strict=True)) == list(columns)
        assert [sends.shape.fields(row)[3] for row in rows] == [
            decode_command(each).opaque for each in sends.frames()
        ]


@pytest.mark.parametrize("spoilt", range(9))
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"h":"0"', b'"h":"1"'),
        (b'"e":"3"', b'"e":"x"'),
        (b'"g":"1', b'"g":"0'),
        (b"0123456789ABCDEF", b"0123456789ABCD\\t"),
        (b'"opaque":7', b'"opaque": '),
    ],
)
def test_one_of_many_that_only_looks_alike_stands_for_itself(
    old: bytes, new: bytes, spoilt: int
) -> None:
    peer = Peer()
    peer.feed(frame_of())
    frames = [frame_of(body=b"%d" % n) for n in range(9)]
    frames[spoilt] = with_header(frames[spoilt], old, new)
    cut = peer.reader.feed(b"".join(map(bytes_of, frames)))
    assert [each for each in cut if isinstance(each, Frame)] == [frames[spoilt]]
    sizes = [len(each.bodies) for each in cut if isinstance(each, KnownSends)]
    assert sizes == [size for size in (spoilt, 8 - spoilt) if size]


def test_what_a_connection_can_make_a_broker_remember_is_limited() -> None:
    peer = Peer()
    for size in range(400):
        peer.feed(frame_of(b="t" * (1 + size % 100)))
        peer.shapes.invariants()
    assert 32 <= len(peer.asked) <= 34, "later ones are learnt now and then"
    long = Peer()
    long.feed(frame_of(n="x" * 1024))
    assert not long.asked


def test_a_shape_that_the_broker_does_not_want_is_not_used() -> None:
    peer = Peer(form=None)
    peer.feed(frame_of())
    (cut,) = peer.reader.feed(bytes_of(frame_of()))
    assert isinstance(cut, Frame)
