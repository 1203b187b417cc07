"""Half messages: unseen until they are committed, and settled once."""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, connection, pull_header
from tests.broker_core.half_world import (
    COMMIT,
    INTERVAL_MS,
    PRODUCERS,
    ROLLBACK,
    UNKNOWN,
    bodies,
    end,
    ending,
    half_header,
    prepare,
    produce,
    questions,
    restarted,
    settled,
)

from reliable_mq.broker_core.names import HALF_TOPIC
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    decode_record,
)


@pytest.fixture
def world(world: BrokerWorld) -> BrokerWorld:
    world.create_topic(queues=4)
    return world


def test_a_half_message_waits_under_its_real_name_until_it_is_committed(world: BrokerWorld) -> None:
    sent = prepare(world)
    assert bodies(world) == []
    (half,) = world.records(HALF_TOPIC)
    named = half.property_map()
    assert (named["REAL_TOPIC"], named["REAL_QID"]) == (TOPIC, "3")
    assert named["__transactionId__"] == sent.ext_fields["transactionId"] == "AB12"
    assert half.sys_flag & TRANSACTION_MASK == 0
    assert sent.ext_fields["queueId"] == "3"
    assert end(world, ending(sent, COMMIT)).code == 0
    (message,) = world.records(TOPIC, 3)
    assert (message.body, message.flag) == (b"half", 7)
    named.pop("REAL_TOPIC"), named.pop("REAL_QID")
    assert message.property_map() == named
    assert message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == half.commit_log_offset
    assert settled(world) == [b"0,"]
    world.state.halves.invariants()


def test_a_message_that_is_rolled_back_is_never_seen(world: BrokerWorld) -> None:
    assert end(world, ending(prepare(world), ROLLBACK)).code == 0
    produce(world)
    world.pass_time(3 * INTERVAL_MS)
    assert (bodies(world), settled(world), questions(world)) == ([], [b"0,"], [])


@pytest.mark.parametrize("again", [COMMIT, ROLLBACK])
def test_a_transaction_is_ended_once_however_often_it_is_said(
    world: BrokerWorld, again: int
) -> None:
    sent = prepare(world)
    end(world, ending(sent, COMMIT))
    assert end(world, ending(sent, again)).code == 0
    world.pass_time(INTERVAL_MS)
    world = restarted(world)
    assert end(world, ending(sent, again)).code == 0
    assert (bodies(world), settled(world)) == ([b"half"], [b"0,"])


def test_halves_of_one_turn_are_settled_by_one_record(world: BrokerWorld) -> None:
    sent = [prepare(world, UNIQ_KEY=f"K{n}") for n in range(3)]
    world.is_writing = False
    for n, half in enumerate(sent):
        command = Command(
            code=RequestCode.END_TRANSACTION,
            opaque=900 + n,
            ext_fields={name: str(value) for name, value in ending(half, ROLLBACK).items()},
        )
        world.core.receive(connection(1), command, world.now_ms)
    world.finish_turn()
    assert world.reply_to(900) is None
    world.is_writing = True
    world.finish_turn()
    assert [world.reply_to(900 + n).code for n in range(3)] == [0, 0, 0]  # type: ignore[union-attr]
    assert settled(world) == [b"0,1,2,"]


def test_an_end_must_say_how(world: BrokerWorld) -> None:
    answer = end(world, ending(prepare(world), TRANSACTION_PREPARED))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "commitOrRollback field wrong",
    )


def test_a_batch_is_no_half(world: BrokerWorld) -> None:
    header = {**half_header(), "m": "true"}
    answer = world.ask(RequestCode.SEND_BATCH_MESSAGE, header, b"x" * 40)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_an_end_that_says_nothing_gets_no_answer(world: BrokerWorld) -> None:
    sent = prepare(world)
    assert world.begin(RequestCode.END_TRANSACTION, ending(sent, UNKNOWN)) is None
    assert len(world.state.halves) == 1


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producerGroup": "others"}, "The producer group wrong"),
        ({"tranStateTableOffset": 5}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
    ],
)
def test_an_end_must_name_its_half(
    world: BrokerWorld, changes: dict[str, object], remark: str
) -> None:
    answer = end(world, ending(prepare(world), COMMIT, **changes))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert (bodies(world), settled(world)) == ([], [])


def test_a_normal_message_is_no_half(world: BrokerWorld) -> None:
    sent = world.send(PGROUP=PRODUCERS)
    assert end(world, ending(sent, COMMIT)).code == ResponseCode.SYSTEM_ERROR


def test_a_broker_may_take_no_halves() -> None:
    world = BrokerWorld(rejectTransactionMessage="true")
    answer = world.ask(RequestCode.SEND_MESSAGE_V2, half_header(), b"x")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "sending transaction message is forbidden" in str(answer.remark)


def test_a_half_cannot_be_delayed(world: BrokerWorld) -> None:
    answer = world.ask(RequestCode.SEND_MESSAGE_V2, half_header(DELAY="3"), b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert world.records(HALF_TOPIC) == []


def test_a_retry_of_an_old_client_is_no_half(world: BrokerWorld) -> None:
    header = {**half_header(DELAY="1"), "j": 1, "f": 0}
    assert world.ask(RequestCode.SEND_MESSAGE_V2, header, b"again").code == 0
    assert world.records(HALF_TOPIC) == []
    world.pass_time(1_100)
    assert bodies(world) == [b"again"]


def test_consumers_pull_a_committed_message_by_its_tag(world: BrokerWorld) -> None:
    end(world, ending(prepare(world), COMMIT))
    answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(0, queueId=3, subscription="paid"))
    assert answer.code == 0
    assert decode_record(answer.body).body == b"half"


def test_a_full_disk_settles_nothing_and_asks_nobody(world: BrokerWorld) -> None:
    produce(world)
    sent = prepare(world)
    world.state.pressure.note_disk(0.99, is_full=True)
    assert end(world, ending(sent, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    world.pass_time(INTERVAL_MS, step=1_000)
    assert len(world.records(HALF_TOPIC)) == 1
    world.state.pressure.note_disk(0.5, is_full=False)
    assert end(world, ending(sent, COMMIT)).code == 0
    assert bodies(world) == [b"half"]


def test_whoever_repeats_an_end_is_not_answered_before_the_first_is_stored(
    world: BrokerWorld,
) -> None:
    header = ending(prepare(world), COMMIT)
    world.is_writing = False

    assert world.begin(RequestCode.END_TRANSACTION, header) is None
    assert world.begin(RequestCode.END_TRANSACTION, header) is None
    world.is_writing = True
    world.write()
    world.finish_turn()

    answers = [world.reply_to(world.last_opaque - 1), world.reply_to(world.last_opaque)]
    assert [answer and answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
    assert bodies(world) == [b"half"]
    assert end(world, header).code == ResponseCode.SUCCESS
