"""Frames. W2: any split of the bytes gives the same frames. F1: what is kept is below one frame."""

import tracemalloc
from typing import Never

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import damaged, split

from reliable_mq.errors import FrameError
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.wire.frame import (
    JSON,
    ROCKETMQ,
    Frame,
    FrameReader,
    bare_frame,
    encode_frame,
    encode_head,
    header_info,
)

FRAME = st.builds(Frame, st.integers(0, 255), st.binary(max_size=60), st.binary(max_size=60))
STREAM = st.lists(FRAME, max_size=5)

# length 4 + 2 + 3 = 9, header info: type 1 and 2 bytes of header
GOLDEN = bytes.fromhex("00000009 01000002") + b"hd" + b"bdy"


def encoded(frames: list[Frame]) -> bytes:
    return b"".join(encode_frame(f.serialize_type, f.header, f.body) for f in frames)


def fed(pieces: list[bytes]) -> tuple[list[Frame], FrameReader[Never]]:
    reader = FrameReader()
    return [frame for piece in pieces for frame in reader.feed(piece)], reader


def only(data: bytes) -> Frame | None:
    """Return the frame that the bytes are; None: they are something else."""
    try:
        frames, reader = fed([data])
    except FrameError:
        return None
    return frames[0] if len(frames) == 1 and not reader.kept_size else None


def test_a_frame_is_its_length_its_header_info_its_header_and_its_body() -> None:
    assert encode_frame(ROCKETMQ, b"hd", b"bdy") == GOLDEN
    assert encode_head(ROCKETMQ, 2) + b"hd" == encode_frame(ROCKETMQ, b"hd")
    assert FrameReader().feed(GOLDEN) == [Frame(ROCKETMQ, b"hd", b"bdy")]


def test_a_frame_may_have_neither_header_nor_body() -> None:
    assert encode_frame(JSON, b"") == bytes.fromhex("00000004 00000000")
    assert FrameReader().feed(bytes(3) + b"\x04" + bytes(4)) == [Frame(JSON, b"", b"")]


@given(FRAME, st.binary(max_size=3))
def test_a_json_header_alone_is_the_frame_that_a_reader_finds(frame: Frame, more: bytes) -> None:
    data = encode_frame(JSON, frame.header)
    assert bare_frame(data) == only(data) == Frame(JSON, frame.header, b"")
    for other in (encoded([frame]), data + more, data[: len(more)], data + data):
        assert bare_frame(other) in (None, only(other))


@given(STREAM, st.data())
def test_any_split_of_the_bytes_gives_the_same_frames(
    frames: list[Frame], data: st.DataObject
) -> None:
    pieces = data.draw(split(encoded(frames)))

    got, reader = fed(pieces)

    assert got == frames
    assert reader.kept_size == 0


class Itself:
    """Lets each frame stand for itself."""

    def one(self, data: bytes, at: int, end: int, before: object) -> Frame:
        assert before is None
        body_at = at + 8 + int.from_bytes(data[at + 5 : at + 8])
        return Frame(data[at + 4], data[at + 8 : body_at], data[body_at:end])

    def many(self, data: bytes, at: int, size: int, count: int) -> None:
        raise NotImplementedError


@given(FRAME, STREAM, st.data())
def test_only_a_recognised_frame_that_comes_alone_and_whole_is_returned_without_a_feed(
    frame: Frame, others: list[Frame], data: st.DataObject
) -> None:
    stream = encoded([frame, *others])
    for piece in data.draw(split(stream)):
        reader: FrameReader[Frame] = FrameReader(9, {header_info(frame): Itself()})
        is_known = (one := only(piece)) and header_info(one) == header_info(frame)
        assert reader.feed_alone(piece) == (one if is_known else None)
    assert reader.feed(encoded([frame])[:-1]) == []
    assert reader.feed_alone(encoded([frame])) is None, "the frame before has not come in whole"
    assert FrameReader().feed_alone(encoded([frame])) is None, "nobody recognises it"


@given(STREAM)
def test_bytes_that_come_one_by_one_give_the_same_frames(frames: list[Frame]) -> None:
    stream = encoded(frames)

    assert fed([stream[at : at + 1] for at in range(len(stream))])[0] == frames


@given(STREAM, FRAME, st.data())
def test_what_was_returned_and_what_is_kept_is_what_was_fed(
    frames: list[Frame], last: Frame, data: st.DataObject
) -> None:
    whole = encoded([last])
    stream = encoded(frames) + whole[: data.draw(st.integers(0, len(whole) - 1))]

    got, reader = fed(data.draw(split(stream)))

    assert got == frames
    assert reader.kept_size == len(stream) - len(encoded(frames)) < len(whole)


@given(STREAM, FRAME, st.data(), st.integers(1, 3))
def test_frames_that_are_cut_some_at_a_time_are_the_same(
    frames: list[Frame], last: Frame, data: st.DataObject, at_once: int
) -> None:
    begun = encoded([last])[:-1]
    reader = FrameReader(at_once)
    got: list[Frame] = []
    for piece in data.draw(split(encoded(frames) + begun)):
        cut = reader.feed(piece)
        while cut:
            assert len(cut) <= at_once
            got += cut
            if not reader.uncut or data.draw(st.booleans()):
                break
            cut = reader.cut_more()
    while reader.uncut:
        got += reader.cut_more()

    assert got == frames
    assert reader.kept_size == len(begun)


def test_a_large_frame_in_many_pieces_comes_out_whole_and_with_it_the_one_behind() -> None:
    frames = [Frame(JSON, b"h" * 100, b"b" * 3_000_000), Frame(ROCKETMQ, b"x", b"y")]
    stream = encoded(frames)

    assert fed([stream[at : at + 65_536] for at in range(0, len(stream), 65_536)])[0] == frames


def test_many_tiny_pieces_cost_no_more_memory_than_the_frame() -> None:
    piece = encode_frame(JSON, b"", b"b" * 200_000)[:4] + bytes(4)
    reader = FrameReader()
    reader.feed(piece)

    tracemalloc.start()
    for _ in range(50_000):
        reader.feed(bytes((1, 2, 3)))
    kept, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert reader.kept_size == 150_008
    assert kept < 2 * reader.kept_size


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3, FRAME_SIZE_MAX - 3, 2**31 - 1])
def test_a_length_that_no_frame_has_is_refused_when_its_last_byte_comes(length: int) -> None:
    reader = FrameReader()
    stream = length.to_bytes(4, "big", signed=True)
    assert reader.feed(stream[:3]) == []

    with pytest.raises(FrameError, match="length"):
        reader.feed(stream[3:])


def test_the_largest_frame_is_read_and_one_byte_more_is_not_written() -> None:
    body = bytes(FRAME_SIZE_MAX - 8)

    assert FrameReader().feed(encode_frame(JSON, b"", body)) == [Frame(JSON, b"", body)]
    with pytest.raises(FrameError):
        encode_frame(JSON, b"h", body)


def test_a_header_longer_than_its_frame_is_refused_before_the_body_comes() -> None:
    with pytest.raises(FrameError, match="header of 7 bytes does not fit into a frame of 10"):
        FrameReader().feed(bytes.fromhex("0000000a 00000007"))


@given(st.data())
def test_damaged_streams_give_frames_or_a_frame_error(data: st.DataObject) -> None:
    stream = data.draw(st.binary(max_size=100) | damaged(STREAM.map(encoded)))
    pieces = data.draw(split(stream))

    reader = FrameReader()
    try:
        frames = [frame for piece in pieces for frame in reader.feed(piece)]
    except FrameError:
        return
    assert len(encoded(frames)) + reader.kept_size == len(stream)


@given(damaged(STREAM.map(encoded)), st.data())
def test_a_split_does_not_decide_whether_a_stream_is_refused(
    stream: bytes, data: st.DataObject
) -> None:
    def outcome(pieces: list[bytes]) -> list[Frame] | None:
        try:
            return fed(pieces)[0]
        except FrameError:
            return None

    assert outcome(data.draw(split(stream))) == outcome([stream])
