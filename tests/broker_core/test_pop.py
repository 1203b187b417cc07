"""Pops: a message is handed out for a time, and comes back unless it is acknowledged."""

import base64
from collections.abc import Iterator

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    START_MS,
    TOPIC,
    connection,
    send_header,
)
from tests.broker_core.pop_world import (
    INVISIBLE_MS,
    RETRY,
    RETRY_V2,
    ManyQueues,
    PopWorld,
    Taken,
    ack_header,
)

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer
from reliable_mq.wire.command import request


@pytest.fixture
def world() -> Iterator[PopWorld]:
    world = PopWorld()
    yield world
    world.check()


def send_some(world: PopWorld, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        world.send(body)
    return bodies


def test_a_pop_hands_out_messages_once(world: PopWorld) -> None:
    bodies = send_some(world, 3)

    assert world.bodies() == bodies
    assert world.bodies() == []


def test_the_reply_says_how_to_build_handles(world: PopWorld) -> None:
    send_some(world, 2)

    answer = world.ask(Ask.POP_MESSAGE, world.pop_header())

    assert (answer.code, answer.remark) == (Answer.SUCCESS, "FOUND")
    assert answer.ext_fields == {
        "popTime": str(START_MS),
        "invisibleTime": str(INVISIBLE_MS),
        "reviveQid": answer.ext_fields["reviveQid"],
        "restNum": "0",
        "startOffsetInfo": "0 0 0",
        "msgOffsetInfo": "0 0 0,1",
    }
    assert int(answer.ext_fields["reviveQid"]) in range(8)


def test_a_message_that_is_not_acknowledged_comes_back_in_its_millisecond(
    world: PopWorld,
) -> None:
    world.send(b"0", TAGS="red", KEYS="k")
    world.pop()

    world.pass_time(INVISIBLE_MS - 1, step=20)
    assert world.bodies() == []
    world.pass_time(1, step=1)

    (again,) = world.pop()
    assert (again.body, again.record.topic, again.record.reconsume_times) == (b"0", TOPIC, 1)
    properties = again.record.property_map()
    assert (properties["TAGS"], properties["KEYS"]) == ("red", "k")
    assert properties["1ST_POP_TIME"] == str(START_MS)
    assert again.topic == RETRY
    assert again.record.store_time_ms == START_MS + INVISIBLE_MS


def test_an_acknowledged_message_does_not_come_back(world: PopWorld) -> None:
    send_some(world, 3)
    first, _, third = world.pop()
    assert world.ack(first).code == Answer.SUCCESS
    world.pass_time(5_000)
    assert world.ack(third).code == Answer.SUCCESS

    world.pass_time(INVISIBLE_MS)

    assert world.bodies() == [b"1"]


def test_a_message_can_come_back_again_and_again(world: PopWorld) -> None:
    send_some(world, 1)
    for times in range(4):
        (message,) = world.pop()
        assert message.record.reconsume_times == times
        world.pass_time(INVISIBLE_MS + 1_000)
    (message,) = world.pop()
    assert message.record.property_map()["1ST_POP_TIME"] == str(START_MS)
    world.ack(message)

    world.pass_time(2 * INVISIBLE_MS)
    assert world.bodies() == []


def test_an_acknowledgement_in_the_last_moment_counts(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    world.pass_time(INVISIBLE_MS - 1, step=7)
    world.ack(message)

    world.pass_time(5_000)

    assert world.bodies() == []


def test_an_acknowledgement_counts_before_it_is_stored(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    world.pass_time(INVISIBLE_MS - 10, step=20)
    world.is_writing = False
    assert world.begin(Ask.ACK_MESSAGE, ack_header(message)) is None
    world.now_ms += 50
    world.core.tick(world.now_ms)
    world.is_writing = True
    world.finish_turn()

    world.pass_time(1_000)

    assert world.bodies() == []


def test_an_acknowledgement_that_is_too_late_changes_nothing(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    world.pass_time(INVISIBLE_MS + 100)
    end = world.state.store.log.end

    assert world.ack(message).code == Answer.SUCCESS

    assert world.state.store.log.end == end
    assert world.bodies() == [b"0"]


def test_messages_of_all_queues_are_popped_and_come_back() -> None:
    world = ManyQueues()
    for number in range(8):
        world.send(b"%d" % number, queue_id=number % 4)

    first = world.pop(maxMsgNums=3)
    rest = world.pop()

    assert sorted(each.body for each in first + rest) == [b"%d" % n for n in range(8)]
    world.pass_time(INVISIBLE_MS + 100)
    assert sorted(world.bodies()) == [b"%d" % n for n in range(8)]


def test_one_queue_alone_can_be_popped() -> None:
    world = ManyQueues()
    world.send(b"a", queue_id=0)
    world.send(b"b", queue_id=1)

    assert world.bodies(queueId=1) == [b"b"]
    assert world.bodies(queueId=0) == [b"a"]


def test_only_wanted_messages_are_popped(world: PopWorld) -> None:
    for number, tag in enumerate(("red", "blue", "red", "green")):
        world.send(b"%d" % number, TAGS=tag)

    assert world.bodies(exp="red || green") == [b"0", b"2", b"3"]
    world.pass_time(INVISIBLE_MS + 100)
    assert world.bodies(exp="green") == [b"3"]


def test_sql_decides_what_is_popped() -> None:
    world = PopWorld(enablePropertyFilter="true")
    for number in range(4):
        world.send(b"%d" % number, a=str(number))

    assert world.bodies(exp="a > 1", expType="SQL92") == [b"2", b"3"]


def test_unwanted_messages_are_passed_over_for_good(world: PopWorld) -> None:
    for _ in range(3):
        world.send(b"x", TAGS="blue")

    assert world.bodies(exp="red") == []
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 3


def test_a_new_group_may_begin_at_the_end() -> None:
    world = PopWorld(accessMessageInMemoryMaxRatio="0")
    send_some(world, 3)

    assert world.bodies(initMode=1) == [b"2"]


def test_a_group_at_the_end_of_a_young_topic_gets_all_messages(world: PopWorld) -> None:
    send_some(world, 3)

    assert world.bodies(initMode=1) == [b"0", b"1", b"2"]


def test_two_groups_pop_the_same_messages(world: PopWorld) -> None:
    send_some(world, 2)

    assert world.bodies() == world.bodies(consumerGroup="others") == [b"0", b"1"]


def test_the_rest_is_told(world: PopWorld) -> None:
    send_some(world, 5)

    answer = world.ask(Ask.POP_MESSAGE, world.pop_header(maxMsgNums=2))

    assert answer.ext_fields["restNum"] == "3"


def test_a_reset_lets_messages_be_popped_again(world: PopWorld) -> None:
    send_some(world, 3)
    for message in world.pop():
        world.ack(message)
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": START_MS, "isForce": "true"}
    assert world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Answer.SUCCESS

    assert world.bodies() == [b"0", b"1", b"2"]


def test_a_batch_acknowledges_messages_of_several_pops(world: PopWorld) -> None:
    send_some(world, 4)
    first, second = world.pop(maxMsgNums=2), world.pop(maxMsgNums=2)

    answer = world.ask(
        Ask.BATCH_ACK_MESSAGE,
        {},
        b'{"acks":[%b,%b],"brokerName":"b"}' % (batch(first[0], 0b11), batch(second[0], 0b10)),
    )
    assert answer.code == Answer.SUCCESS

    world.pass_time(INVISIBLE_MS + 100)
    assert world.bodies() == [b"2"]


def batch(message: Taken, bits: int) -> bytes:
    handle = message.handle
    text = base64.b64encode(bits.to_bytes(1, "little")).decode()
    fields = (
        f'"c":"{GROUP}","t":"{TOPIC}","r":"0","so":{handle.start_offset},"q":{handle.queue_id},'
        f'"rq":{handle.revive_queue},"pt":{handle.popped_ms},"it":{handle.invisible_ms},'
        f'"b":"{text}"'
    )
    return f"{{{fields}}}".encode()


def test_acknowledgements_of_one_turn_share_a_record(world: PopWorld) -> None:
    send_some(world, 4)
    messages = world.pop()
    world.is_writing = False
    for message in messages[:3]:
        ext = {name: str(value) for name, value in ack_header(message).items()}
        world.core.receive(connection(1), request(Ask.ACK_MESSAGE, ext), world.now_ms)
    world.is_writing = True
    world.finish_turn()

    records = world.records(TIMER_TOPIC)
    assert len(records) == 2
    assert records[1].property_map()["TAGS"] == "bAck"
    world.pass_time(INVISIBLE_MS + 100)
    assert world.bodies() == [b"3"]


def test_a_fifth_of_the_pops_begins_with_what_came_back(world: PopWorld) -> None:
    send_some(world, 50)
    world.pop(maxMsgNums=10)
    world.pass_time(INVISIBLE_MS + 100)

    first = [world.pop(maxMsgNums=1, invisibleTime=60_000)[0].topic for _ in range(20)]

    assert first.count(RETRY) == 4


def test_retry_topics_of_the_second_version_are_used_if_set() -> None:
    world = PopWorld(enableRetryTopicV2="true")
    send_some(world, 1)
    world.pop()
    world.pass_time(INVISIBLE_MS + 100)

    (message,) = world.pop()

    assert (message.topic, message.handle.kind) == (RETRY_V2, "2")
    world.ack(message)
    world.pass_time(2 * INVISIBLE_MS)
    assert world.bodies() == []


def test_a_change_of_the_version_finds_messages_of_the_first_one() -> None:
    world = PopWorld()
    send_some(world, 1)
    world.pop()
    world.pass_time(INVISIBLE_MS + 100)
    world.properties["enableRetryTopicV2"] = "true"
    world.restart()

    (message,) = world.pop()

    assert message.topic == RETRY


def test_a_deleted_topic_takes_its_retries_with_it(world: PopWorld) -> None:
    send_some(world, 1)
    world.pop()
    world.pass_time(INVISIBLE_MS + 100)
    assert RETRY in world.state.topics.by_name

    world.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})

    assert RETRY not in world.state.topics.by_name


def test_nothing_comes_back_to_a_deleted_topic(world: PopWorld) -> None:
    send_some(world, 1)
    world.pop()
    world.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})

    world.pass_time(INVISIBLE_MS + 2_000)

    assert RETRY not in world.state.topics.by_name
    assert not len(world.state.timers.revival)


def test_clients_cannot_forge_acknowledgements(world: PopWorld) -> None:
    header = send_header("rmq_sys_REVIVE_LOG_DefaultCluster", 0, TAGS="ack")
    answer = world.ask(Ask.SEND_MESSAGE_V2, header, b"{}")

    assert answer.code == Answer.NO_PERMISSION


@pytest.mark.parametrize("topic", [TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_message_that_is_passed_on_has_no_handle(world: PopWorld, topic: str) -> None:
    header = send_header(POP_CK="0 1 2 3 0 b 0 0")
    if topic != TOPIC:
        header = {**send_header(POP_CK="0 1 2 3 0 b 0 0", TRAN_MSG="true", PGROUP="p"), "f": 4}
    assert world.ask(Ask.SEND_MESSAGE_V2, header, b"on").code == Answer.SUCCESS

    records = list(world.state.store.log.pieces(0, world.state.store.log.end))
    assert b"POP_CK" not in b"".join(records)
