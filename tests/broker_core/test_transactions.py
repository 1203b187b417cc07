"""Half messages: unseen until they are committed, settled once, asked for, and found again."""

import pytest
from tests.broker_core.broker_world import (
    TOPIC,
    BrokerWorld,
    connection,
    pull_header,
    send_header,
)

from reliable_mq.broker_core.names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from reliable_mq.broker_core.store.message_store import StoredMessage
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Record,
    decode_record,
)

COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0
PRODUCERS = "order_producers"
INTERVAL_MS = 30_000


@pytest.fixture
def world() -> BrokerWorld:
    world = BrokerWorld()
    world.create_topic(queues=4)
    return world


def half_header(**properties: str) -> dict[str, object]:
    named = {"TRAN_MSG": "true", "PGROUP": PRODUCERS, "UNIQ_KEY": "AB12", "TAGS": "paid"}
    header = send_header(TOPIC, 3, **{**named, **properties})
    return {**header, "a": PRODUCERS, "f": TRANSACTION_PREPARED, "g": header["g"], "h": 7}


def prepare(world: BrokerWorld, body: bytes = b"half", **properties: str) -> Command:
    """Send a half; its born time is now."""
    header = {**half_header(**properties), "g": world.now_ms}
    answer = world.ask(RequestCode.SEND_MESSAGE_V2, header, body)
    assert answer.code == 0, answer.remark
    return answer


def ending(sent: Command, decision: int, **changes: object) -> dict[str, object]:
    """Return the header with which the producer of a half ends its transaction."""
    return {
        "producerGroup": PRODUCERS,
        "tranStateTableOffset": sent.ext_fields["queueOffset"],
        "commitLogOffset": decode_offset_message_id(sent.ext_fields["msgId"]).commit_log_offset,
        "commitOrRollback": decision,
        "fromTransactionCheck": "false",
        "msgId": "AB12",
        **changes,
    }


def answering(question: Command, decision: int) -> dict[str, object]:
    """Return the header with which a producer answers a check-back."""
    ext = question.ext_fields
    return {
        "producerGroup": PRODUCERS,
        "tranStateTableOffset": ext["tranStateTableOffset"],
        "commitLogOffset": ext["commitLogOffset"],
        "commitOrRollback": decision,
        "fromTransactionCheck": "true",
        "msgId": ext["msgId"],
    }


def end(world: BrokerWorld, header: dict[str, object]) -> Command:
    return world.ask(RequestCode.END_TRANSACTION, header)


def produce(world: BrokerWorld, of: int = 1, group: str = PRODUCERS) -> None:
    """Let a connection register as a producer."""
    beat = {"clientID": f"client-{of}", "producerDataSet": [{"groupName": group}]}
    assert world.ask(RequestCode.HEART_BEAT, {}, fastjson.dumps(beat), of=of).code == 0


def questions(world: BrokerWorld, of: int = 1) -> list[Command]:
    return [
        notice for notice in world.notices(of) if notice.code == RequestCode.CHECK_TRANSACTION_STATE
    ]


def bodies(world: BrokerWorld, topic: str = TOPIC, queue_id: int = 3) -> list[bytes]:
    return [record.body for record in world.records(topic, queue_id)]


def settled(world: BrokerWorld) -> list[bytes]:
    return bodies(world, OP_TOPIC, 0)


def offsets(world: BrokerWorld) -> tuple[int | None, int | None]:
    table = world.state.offsets
    half, op = (table.get(TRANSACTION_GROUP, topic, 0) for topic in (HALF_TOPIC, OP_TOPIC))
    return half, op


def restarted(world: BrokerWorld, **properties: str) -> BrokerWorld:
    """Open what a broker left that was killed: nothing was closed."""
    return BrokerWorld(world.disk, **{**world.properties, **properties})


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
    assert (message.body, message.flag, message.properties) == (b"half", 7, half.properties)
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


def test_a_silent_transaction_is_asked_for_and_its_answer_counts(world: BrokerWorld) -> None:
    produce(world)
    sent = prepare(world)
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    half = decode_record(question.body)
    assert (half.topic, half.queue_id, half.body, half.flag) == (TOPIC, 3, b"half", 7)
    assert half.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
    assert question.ext_fields["transactionId"] == "AB12"
    assert question.ext_fields["tranStateTableOffset"] == "1"  # a copy at the end of the queue
    named = decode_offset_message_id(question.ext_fields["offsetMsgId"])
    assert str(named.commit_log_offset) == question.ext_fields["commitLogOffset"]
    assert end(world, answering(question, COMMIT)).code == 0
    assert end(world, ending(sent, COMMIT)).code == 0
    world.pass_time(2 * INTERVAL_MS)
    assert (bodies(world), settled(world), questions(world)) == ([b"half"], [b"1,"], [])


def test_a_producer_that_ends_late_settles_the_copy_too(world: BrokerWorld) -> None:
    produce(world)
    sent = prepare(world)
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    world = restarted(world)
    assert end(world, ending(sent, COMMIT)).code == 0
    assert end(world, answering(question, COMMIT)).code == 0
    assert (bodies(world), settled(world)) == ([b"half"], [b"1,"])
    assert len(world.state.halves) == 0


def test_the_producers_of_a_group_are_asked_in_turn(world: BrokerWorld) -> None:
    for number in (1, 2):
        produce(world, of=number)
    produce(world, of=3, group="others")
    for n in range(4):
        prepare(world, UNIQ_KEY=f"K{n}")
    world.pass_time(INTERVAL_MS)
    assert [len(questions(world, of=number)) for number in (1, 2, 3)] == [2, 2, 0]


def test_a_young_half_is_left_in_peace(world: BrokerWorld) -> None:
    produce(world)
    world.pass_time(INTERVAL_MS - 6_000)
    prepare(world)
    world.pass_time(6_000)
    assert questions(world) == []
    world.pass_time(INTERVAL_MS)
    assert len(questions(world)) == 1


def test_a_half_may_ask_for_more_time(world: BrokerWorld) -> None:
    produce(world)
    prepare(world, CHECK_IMMUNITY_TIME_IN_SECONDS="45")
    world.pass_time(INTERVAL_MS)
    assert questions(world) == []
    copy = world.records(HALF_TOPIC)[-1].property_map()
    assert copy["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    assert end(world, answering(question, COMMIT)).code == 0
    assert bodies(world) == [b"half"]


def test_an_end_after_the_time_that_a_half_asked_for_must_come_from_a_check(
    world: BrokerWorld,
) -> None:
    sent = prepare(world, CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    world.pass_time(10_001, step=10_001)
    assert end(world, ending(sent, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
    assert end(world, ending(sent, COMMIT, fromTransactionCheck="true")).code == 0
    assert bodies(world) == [b"half"]


def test_after_fifteen_checks_a_half_is_given_up_but_a_late_word_is_heard(
    world: BrokerWorld,
) -> None:
    produce(world)
    sent = prepare(world)
    for _ in range(15):
        world.pass_time(INTERVAL_MS, step=INTERVAL_MS)
        produce(world)
    assert len(questions(world)) == 15
    world.pass_time(2 * INTERVAL_MS, step=INTERVAL_MS)
    assert questions(world) == []
    (given_up,) = world.records(GIVEN_UP_TOPIC)
    assert given_up.property_map()["TRANSACTION_CHECK_TIMES"] == "15"
    world = restarted(world)
    assert end(world, ending(sent, COMMIT)).code == 0
    assert end(world, ending(sent, COMMIT)).code == 0
    assert bodies(world) == [b"half"]


def test_a_half_of_the_distant_past_is_given_up_at_once(world: BrokerWorld) -> None:
    prepare(world)
    world.now_ms += 73 * 3_600_000
    world.pass_time(INTERVAL_MS)
    assert bodies(world, GIVEN_UP_TOPIC, 0) == [b"half"]
    assert len(world.state.halves) == 0


def test_without_a_producer_a_half_waits_for_the_next_round(world: BrokerWorld) -> None:
    prepare(world)
    world.pass_time(INTERVAL_MS)
    produce(world)
    world.pass_time(INTERVAL_MS)
    (question,) = questions(world)
    assert decode_record(question.body).property_map()["TRANSACTION_CHECK_TIMES"] == "2"


def test_more_halves_than_one_tick_takes_are_all_asked_for(world: BrokerWorld) -> None:
    produce(world)
    for n in range(450):
        prepare(world, UNIQ_KEY=f"K{n}")
    world.pass_time(INTERVAL_MS + 1_000)
    assert len({question.ext_fields["msgId"] for question in questions(world)}) == 450
    assert len(world.state.halves) == 450


def test_consumer_offsets_move_over_what_is_settled_and_stored(world: BrokerWorld) -> None:
    sent = [prepare(world, UNIQ_KEY=f"K{n}") for n in range(3)]
    for half in sent[:2]:
        end(world, ending(half, ROLLBACK))
    world.pass_time(INTERVAL_MS)
    assert offsets(world) == (3, 2)  # the third was put back as the fourth
    world.pass_time(5_000)
    saved = world.file("config/consumerOffset.json")["offsetTable"]
    assert saved == {
        f"{HALF_TOPIC}@{TRANSACTION_GROUP}": {0: 3},
        f"{OP_TOPIC}@{TRANSACTION_GROUP}": {0: 2},
    }


def test_offsets_wait_for_the_copy_of_a_half(world: BrokerWorld) -> None:
    prepare(world)
    world.pass_time(INTERVAL_MS - 100)
    world.is_writing = False
    world.pass_time(200)
    assert offsets(world) == (None, None)
    world = restarted(world)
    assert world.state.halves.oldest(9) == [(0, world.records(HALF_TOPIC)[0].commit_log_offset)]


def test_a_killed_broker_finds_its_pending_halves_again(world: BrokerWorld) -> None:
    sent = [prepare(world, b"%d" % n, UNIQ_KEY=f"K{n}") for n in range(6)]
    end(world, ending(sent[1], COMMIT))
    end(world, ending(sent[4], ROLLBACK))
    world.pass_time(INTERVAL_MS)
    end(world, ending(sent[0], COMMIT))
    before = world.state.halves.oldest(99)
    world = restarted(world)
    assert world.state.halves.oldest(99) == before
    assert len(before) == 3
    for n in (2, 3, 5):
        end(world, ending(sent[n], COMMIT))
    assert sorted(bodies(world)) == [b"0", b"1", b"2", b"3", b"5"]
    world.stop()
    world = BrokerWorld(world.disk)
    assert (len(world.state.halves), offsets(world)) == (0, (10, 6))


def test_a_commit_that_was_cut_from_its_record_is_not_repeated(world: BrokerWorld) -> None:
    """The log may end between the message and the record of the op topic."""
    sent = prepare(world)
    copy = MemoryDisk()
    end(world, ending(sent, COMMIT))
    (message,) = world.records(TOPIC, 3)
    (op,) = world.records(OP_TOPIC, 0)
    assert op.commit_log_offset == message.commit_log_offset + message.size
    _copy_log(world.disk, copy, op)
    world = BrokerWorld(copy)
    assert (bodies(world), settled(world)) == ([b"half"], [b"0,"])
    assert end(world, ending(sent, COMMIT)).code == 0
    assert bodies(world) == [b"half"]


def _copy_log(disk: MemoryDisk, copy: MemoryDisk, cut: Record) -> None:
    size = int(BrokerWorld(disk).properties["mappedFileSizeCommitLog"])
    path = f"commitlog/{0:020d}"
    text = bytearray(disk.open(path, size).read(0, size))
    text[cut.commit_log_offset :] = bytes(size - cut.commit_log_offset)
    copy.open(path, size).write(0, (bytes(text),))


def test_what_apache_calls_settled_is_settled(world: BrokerWorld) -> None:
    """Old brokers write one bare number for each half, newer ones many with commas."""
    for n in range(5):
        prepare(world, UNIQ_KEY=f"K{n}")
    for body, tag in ((b"0", "d"), (b"2,x,1,", "d"), (b"4,", "other")):
        op = StoredMessage(
            topic=OP_TOPIC,
            queue_id=0,
            body=body,
            properties=encode_properties({"TAGS": tag}),
            flag=0,
            sys_flag=0,
            born_time_ms=world.now_ms,
            born_host=connection(1).host,
        )
        world.state.append(op, world.now_ms)
    world.finish_turn()
    world = restarted(world)
    assert [offset for offset, _ in world.state.halves.oldest(9)] == [3, 4]


def test_a_retry_of_a_committed_message_settles_nothing(world: BrokerWorld) -> None:
    """Its record bears the flag of a commit, but no half's offset."""
    sent = prepare(world)
    end(world, ending(sent, COMMIT))
    (message,) = world.records(TOPIC, 3)
    pending = prepare(world, UNIQ_KEY="other")
    answer = world.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"offset": message.commit_log_offset, "group": "g", "delayLevel": 1},
    )
    assert answer.code == 0
    world = restarted(world)
    assert len(world.state.halves) == 1
    assert end(world, ending(pending, COMMIT)).code == 0


def test_consumers_pull_a_committed_message_by_its_tag(world: BrokerWorld) -> None:
    end(world, ending(prepare(world), COMMIT))
    answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(0, queueId=3, subscription="paid"))
    assert answer.code == 0
    assert decode_record(answer.body).body == b"half"
