"""The reply to the newest request is found among whatever else a connection brings."""

import pytest

from reliable_mq.errors import InvariantBroken
from reliable_mq.runtime.reply_reader import ReplyReader
from reliable_mq.wire.command import Command, encode_command, reply

OPAQUE_MAX = 2**31 - 1


def asked(opaque: int) -> Command:
    return Command(code=11, opaque=opaque)


def answer(opaque: int) -> bytes:
    return encode_command(reply(asked(opaque)))


def test_the_reply_to_the_newest_request_is_handed_back_and_what_came_before_it_is_not() -> None:
    replies = ReplyReader()
    old, new = replies.next_opaque(), replies.next_opaque()
    assert replies.feed(encode_command(asked(new)) + answer(old)) is None
    stream = answer(new)
    assert replies.feed(stream[:9]) is None
    found = replies.feed(stream[9:])
    assert found is not None
    assert (found.is_reply, found.opaque) == (True, new)


def test_the_numbers_of_requests_begin_anew_when_the_protocol_has_no_more() -> None:
    replies = ReplyReader()
    replies._opaque = OPAQUE_MAX - 1
    assert [replies.next_opaque(), replies.next_opaque()] == [OPAQUE_MAX, 0]
    replies.invariants()
    replies._opaque = OPAQUE_MAX + 1
    with pytest.raises(InvariantBroken, match="C10"):
        replies.invariants()
