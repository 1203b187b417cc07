"""A long frame: the same bytes as a frame made at once, in pieces that are made when wanted."""

import pytest

from reliable_mq.errors import FrameError
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.long_frame import LongBody, LongFrame


def test_its_pieces_are_the_frame_that_would_be_made_at_once() -> None:
    pieces = [b"a" * 70_000, b"b", b"c" * 300_000]
    whole = reply(Command(11, 7), ext={"name": "value"}, body=b"".join(pieces))
    front = encode_command(reply(Command(11, 7), ext={"name": "value"}))

    frame = LongFrame(front, LongBody(370_001, iter(pieces)))

    assert len(frame) == len(encode_command(whole))
    assert bytes(frame) == encode_command(whole)


def test_a_piece_is_made_when_it_is_wanted() -> None:
    made: list[int] = []

    def piece(number: int) -> bytes:
        made.append(number)
        return b"x"

    taken = iter(LongFrame(encode_command(request_of(1)), LongBody(3, map(piece, range(3)))))

    assert made == []
    next(taken)
    next(taken)
    assert made == [0]


def test_a_frame_that_no_peer_would_read_is_not_begun() -> None:
    with pytest.raises(FrameError, match="are allowed"):
        LongFrame(encode_command(request_of(1)), LongBody(FRAME_SIZE_MAX, iter(())))


def request_of(code: int) -> Command:
    return Command(code, 1)
