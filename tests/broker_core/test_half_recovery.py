"""Half messages found again by the queues and the log, whoever wrote them."""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, connection, send_header
from tests.broker_core.half_world import (
    COMMIT,
    INTERVAL_MS,
    ROLLBACK,
    bodies,
    end,
    ending,
    offsets,
    prepare,
    restarted,
    settled,
)

from reliable_mq.broker_core.names import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
)
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record


@pytest.fixture
def world(world: BrokerWorld) -> BrokerWorld:
    world.create_topic(queues=4)
    return world


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


def test_pending_halves_are_counted_by_topic_where_apaches_broker_looks(world: BrokerWorld) -> None:
    sent = [prepare(world, UNIQ_KEY=f"K{n}") for n in range(4)]
    end(world, ending(sent[0], COMMIT))
    end(world, ending(sent[0], COMMIT))
    end(world, ending(sent[1], ROLLBACK))
    world.pass_time(INTERVAL_MS)  # the others are asked for: their copies stand for them
    for there in (world, restarted(world)):
        there.stop()
        counts = there.file("config/transactionMetrics")["transactionCount"]
        assert {topic: count["count"] for topic, count in counts.items()} == {TOPIC: 2}


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


def given_up(world: BrokerWorld) -> tuple[Command, Record]:
    """Return the reply to a half, and its copy in the next file of the log; it is given up."""
    sent = prepare(world)
    for _ in range(5):
        world.ask(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, 0), bytes(60_000))
    world.pass_time(3 * INTERVAL_MS, step=INTERVAL_MS)
    (copy,) = world.records(HALF_TOPIC)[1:]
    assert copy.commit_log_offset >= world.state.store.log.segment_size
    assert world.records(GIVEN_UP_TOPIC)
    return sent, copy


def naming(sent: Command, copy: Record) -> dict[str, object]:
    """Return the header of a commit that names the copy of a half."""
    places = (copy.queue_offset, copy.commit_log_offset)
    return ending(sent, COMMIT, tranStateTableOffset=places[0], commitLogOffset=places[1])


def test_what_was_committed_late_is_not_stored_again_after_the_file_of_its_half_has_expired(
    world: BrokerWorld,
) -> None:
    world = restarted(world, transactionCheckMax="1")
    sent, copy = given_up(world)
    assert end(world, ending(sent, COMMIT)).code == 0
    world.disk.remove(f"commitlog/{0:020}")
    for _ in range(2):
        world = restarted(world)
        assert end(world, ending(sent, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        assert end(world, naming(sent, copy)).code == 0
        assert bodies(world) == [b"half"]


def test_what_was_resumed_and_committed_is_not_stored_again_by_the_next_life(
    world: BrokerWorld,
) -> None:
    world = restarted(world, transactionCheckMax="1")
    sent, copy = given_up(world)
    place = world.records(GIVEN_UP_TOPIC)[0].commit_log_offset
    name = encode_offset_message_id(bytes(4), 10911, place)
    assert world.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": name}).code == 0
    assert end(world, naming(sent, copy)).code == 0
    world.pass_time(2 * INTERVAL_MS)  # the offsets move over the halves
    world.stop()
    world = restarted(world)
    for header in (ending(sent, COMMIT), naming(sent, copy)):
        assert end(world, header).code == 0
    assert bodies(world) == [b"half"]


def test_what_was_resumed_and_given_up_again_may_still_be_committed(world: BrokerWorld) -> None:
    world = restarted(world, transactionCheckMax="1")
    sent, _copy = given_up(world)
    place = world.records(GIVEN_UP_TOPIC)[0].commit_log_offset
    name = encode_offset_message_id(bytes(4), 10911, place)
    assert world.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": name}).code == 0
    world.pass_time(3 * INTERVAL_MS, step=INTERVAL_MS)
    assert len(world.records(GIVEN_UP_TOPIC)) == 2
    world = restarted(world)
    for _ in range(2):
        assert end(world, ending(sent, COMMIT)).code == 0
    assert bodies(world) == [b"half"]
