"""Answers that wait for the log."""

from tests.broker_core.broker_world import TOPIC, BrokerWorld, send_header

from reliable_mq.broker_core.answers import Answer, Answers
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.wire.codes import RequestCode


def test_an_older_end_that_becomes_durable_lets_no_later_answer_wait_again() -> None:
    answers = Answers()
    answers.when_stored(1, 100, b"A")
    assert answers.end_turn(100) == []
    answers.when_stored(2, 200, b"B")
    assert answers.end_turn(200) == []
    assert answers.release(200) == 2  # written
    assert answers.take_ready() == [(1, b"A"), (2, b"B")]

    answers.release(100)  # a sync that began before ends

    assert answers.released == 200
    answers.when_stored(3, 150, b"of a new topic, whose file is there")
    assert answers.end_turn(200) == [(3, b"of a new topic, whose file is there")]
    assert answers.waiting == 0


def test_a_send_is_answered_before_its_message_is_put_into_its_queue(world: BrokerWorld) -> None:
    world.create_topic()
    world.is_writing = False
    assert world.begin(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, 0), b"x") is None
    batch = world.waiting[-1].batch
    assert batch is not None
    CommitLog.write_batch(batch)
    CommitLog.sync(batch)
    store, seen = world.state.store, list[tuple[int, bool, bool]]()

    def answer(answers: list[Answer]) -> None:
        is_durable, is_dispatched = store.log.durable == batch.end, store.dispatched == batch.end
        seen.append((len(answers), is_durable, is_dispatched))

    world.core.stored(batch.end, durable=True, answer=answer)

    assert seen == [(1, True, False)]
    assert store.dispatched == batch.end
    assert world.state.answers.take_ready() == []
