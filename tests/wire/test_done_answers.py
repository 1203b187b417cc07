"""Answers that say SUCCESS and nothing else: the template gives what the general way gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.wire.answer import decode_done, encode_answer, encode_done
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import decode_reply, reply, request
from reliable_mq.wire.frame import JSON, ROCKETMQ, FrameReader

I32 = st.integers(-(2**31), 2**31 - 1)


@given(I32, st.sampled_from([JSON, ROCKETMQ]))
def test_a_frame_of_the_template_is_the_usual_one(opaque: int, form: int) -> None:
    command = request(RequestCode.ACK_MESSAGE)
    command.opaque, command.serialize_type = opaque, form
    assert encode_done(command) == encode_answer(reply(command))


@given(st.integers(0, 2**31 - 1))
def test_it_is_read_as_in_general(opaque: int) -> None:
    command = request(RequestCode.ACK_MESSAGE)
    command.opaque = opaque
    data = encode_done(command)
    (frame,) = FrameReader().feed(data)
    assert decode_done(data) == decode_reply(frame)


def answer(code: int = 0, remark: str | None = None, **ext: str) -> bytes:
    return encode_answer(reply(request(RequestCode.ACK_MESSAGE), code, remark, ext))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        answer(1),
        answer(0, "OK"),
        answer(0, None, a="1"),
        answer() + answer(),
        answer()[:-1],
        answer().replace(b'"opaque":0', b'"opaque":x'),
        answer().replace(b'"opaque":0', b'"opaque":-'),
        encode_answer(reply(request(RequestCode.ACK_MESSAGE), body=b"body")),
    ],
)
def test_any_other_frame_is_left_to_the_general_way(frame: bytes) -> None:
    assert decode_done(frame) is None
