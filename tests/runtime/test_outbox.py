"""Answers that are written piece by piece."""

import pytest

from reliable_mq.errors import StoreError
from reliable_mq.runtime.outbox import Outbox
from reliable_mq.wire.frame import JSON, encode_frame
from reliable_mq.wire.long_frame import PIECE_SIZE, LongBody, LongFrame


def all_of(outbox: Outbox) -> list[bytes]:
    taken = []
    while outbox.frames:
        taken.append(bytes(outbox.take()))
    return taken


def test_frames_come_out_in_order_in_pieces_that_are_not_large() -> None:
    outbox = Outbox()
    long = encode_frame(JSON, b"long", b"x" * (3 * PIECE_SIZE))
    body = [b"1" * PIECE_SIZE, b"2" * 10]
    outbox.put(
        [long, LongFrame(encode_frame(JSON, b"made"), LongBody(PIECE_SIZE + 10, iter(body)))]
    )
    outbox.put([b"short"])

    pieces = all_of(outbox)

    front = encode_frame(JSON, b"made", b"x" * (PIECE_SIZE + 10))[: -PIECE_SIZE - 10]
    assert b"".join(pieces) == long + front + b"".join(body) + b"short"
    assert max(map(len, pieces)) <= PIECE_SIZE


def test_only_what_is_in_memory_is_held() -> None:
    outbox = Outbox()
    outbox.put([bytes(100_000), LongFrame(bytes(4) + b"f", LongBody(10**6, iter(())))])

    assert outbox.held == 100_000
    outbox.take()
    assert outbox.held == 100_000 - PIECE_SIZE
    outbox.take()
    assert outbox.held == 0


def test_a_frame_whose_rest_is_gone_is_told() -> None:
    outbox = Outbox()
    outbox.put([LongFrame(bytes(4) + b"f", LongBody(100, iter([b"x" * 99])))])
    outbox.take()
    outbox.take()

    with pytest.raises(StoreError, match="1 bytes of an answer are gone"):
        outbox.take()
