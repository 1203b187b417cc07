"""The replies of a synchronous master wait for its slaves, but not for ever."""

import pytest

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, decode_command, reply
from reliable_mq.wire.frame import FrameReader


def stored_reply(opaque: int) -> bytes:
    return encode_answer(reply(Command(code=310, opaque=opaque), ext={"msgId": "A"}))


def other_reply(opaque: int) -> bytes:
    return encode_answer(reply(Command(code=37, opaque=opaque)))


def codes(answers: list[Answer]) -> dict[int, int]:
    found = {}
    for _connection, frame in answers:
        (cut,) = FrameReader().feed(bytes(frame))
        command = decode_command(cut)
        found[command.opaque] = command.code
    return found


def waiting() -> ReplicatedAnswers:
    """Return replies 1 and 2 to messages, and reply 3 to something else, up to offset 300."""
    answers = ReplicatedAnswers(timeout_ms=3_000)
    answers.acknowledge(0, has_slaves=True)
    for number, frame in ((1, stored_reply(1)), (2, stored_reply(2)), (3, other_reply(3))):
        answers.when_stored(number, number * 100, frame)
        assert answers.end_turn(number * 100) == []
        answers.invariants()
    return answers


def test_a_reply_waits_for_the_disk_and_for_the_slaves() -> None:
    answers = waiting()
    answers.release(200)
    assert answers.take_ready() == []
    answers.acknowledge(100, has_slaves=True)
    assert codes(answers.take_ready()) == {1: 0}
    answers.acknowledge(300, has_slaves=True)
    assert codes(answers.take_ready()) == {2: 0}
    answers.release(300)
    assert codes(answers.take_ready()) == {3: 0}
    assert answers.waiting == 0


def test_a_reply_that_waits_too_long_says_so_and_the_message_is_stored() -> None:
    answers = waiting()
    answers.release(200)
    for now_ms in (10_000, 11_000, 12_990):
        answers.expire(now_ms)
        assert answers.take_ready() == []
    answers.acknowledge(100, has_slaves=True)
    answers.expire(13_000)
    assert codes(answers.take_ready()) == {1: 0, 2: ResponseCode.FLUSH_SLAVE_TIMEOUT}
    answers.release(300)
    answers.expire(13_010)
    assert answers.take_ready() == []
    answers.expire(16_010)
    assert codes(answers.take_ready()) == {3: 0}, "its code says nothing of slaves"


def test_a_clock_that_was_set_back_ends_the_wait() -> None:
    answers = waiting()
    answers.release(100)
    answers.expire(10_000)
    answers.expire(9_000)
    assert codes(answers.take_ready()) == {1: ResponseCode.FLUSH_SLAVE_TIMEOUT}


def test_a_reply_that_waited_for_a_new_topic_says_that_no_slave_has_the_message() -> None:
    """The others of its turn have left by then."""
    answers = waiting()
    answers.acknowledge(100, has_slaves=False)
    answers.release(300)
    answers.take_ready()
    answers.late(4, 90, stored_reply(4))
    answers.late(5, 250, stored_reply(5))
    answers.has_slaves = True
    answers.late(6, 250, stored_reply(6))
    assert codes(answers.take_ready()) == {
        4: 0,
        5: ResponseCode.SLAVE_NOT_AVAILABLE,
        6: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }


def test_a_reply_whose_record_is_given_up_before_its_turn_ends_says_so() -> None:
    answers = waiting()
    answers.late(4, 400, stored_reply(4))
    answers.acknowledge(0, has_slaves=False)
    answers.release(400)
    answers.take_ready()
    assert codes(answers.end_turn(400)) == {4: ResponseCode.SLAVE_NOT_AVAILABLE}


def test_without_slaves_nothing_waits() -> None:
    answers = waiting()
    answers.release(100)
    answers.acknowledge(0, has_slaves=False)
    assert codes(answers.take_ready()) == {1: ResponseCode.SLAVE_NOT_AVAILABLE}
    answers.release(200)
    assert codes(answers.take_ready()) == {2: ResponseCode.SLAVE_NOT_AVAILABLE}


def test_the_invariants_find_replies_out_of_order() -> None:
    answers = waiting()
    answers.invariants()
    answers._withheld.reverse()
    with pytest.raises(InvariantBroken, match="S2"):
        answers.invariants()
    answers = waiting()
    answers.released = 50
    with pytest.raises(InvariantBroken, match="K8"):
        answers.invariants()
