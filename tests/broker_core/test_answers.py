"""Answers that wait for the log."""

from reliable_mq.broker_core.answers import Answers


def test_an_older_end_that_becomes_durable_lets_no_later_answer_wait_again() -> None:
    answers = Answers()
    answers.when_stored(1, 100, b"A")
    assert answers.take(100) == []
    answers.when_stored(2, 200, b"B")
    assert answers.take(200) == []
    assert answers.release(200) == 2  # written
    assert answers.take_ready() == [(1, b"A"), (2, b"B")]

    answers.release(100)  # a sync that began before ends

    assert answers.released == 200
    answers.when_stored(3, 150, b"of a new topic, whose file is there")
    assert answers.take(200) == [(3, b"of a new topic, whose file is there")]
    assert answers.waiting == 0
