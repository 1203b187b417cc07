"""Delayed messages: on time, in order, none lost and none skipped over stops and crashes."""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, there, waiting_pull_header

from reliable_mq.broker_core.delivery.schedule import PATH
from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.wire.codes import RequestCode as Ask

LEVELS = "1s 5s 10s"


@pytest.fixture
def world() -> BrokerWorld:
    world = BrokerWorld(messageDelayLevel=LEVELS)
    world.create_topic()
    return world


def delivered(world: BrokerWorld) -> list[bytes]:
    return [record.body for record in world.records(TOPIC)]


def test_a_delayed_message_is_delivered_when_its_time_has_come(world: BrokerWorld) -> None:
    world.send(b"late", DELAY="2", TAGS="red")

    world.pass_time(4_900)
    assert delivered(world) == []
    world.pass_time(200)

    (record,) = world.records(TOPIC)
    assert record.body == b"late"
    assert record.queue_id == 0
    assert record.property_map().items() >= {"REAL_TOPIC": TOPIC, "REAL_QID": "0"}.items()


def test_its_delivery_wakes_who_waits_for_its_tag(world: BrokerWorld) -> None:
    world.send(b"late", DELAY="1", TAGS="red")
    assert world.begin(Ask.PULL_MESSAGE, waiting_pull_header(subscription="red")) is None

    world.pass_time(1_100)

    answer = world.reply_to(world.last_opaque)
    assert answer is not None
    assert b"late" in answer.body


def test_a_level_above_the_highest_is_the_highest(world: BrokerWorld) -> None:
    world.send(b"late", DELAY="99")

    assert [r.body for r in world.records(SCHEDULE_TOPIC, 2)] == [b"late"]
    world.pass_time(10_100)
    assert delivered(world) == [b"late"]


def test_levels_do_not_wait_for_each_other_and_keep_their_order(world: BrokerWorld) -> None:
    for number in range(3):
        world.send(b"slow %d" % number, DELAY="2")
        world.send(b"fast %d" % number, DELAY="1")

    world.pass_time(6_000)

    assert delivered(world) == [b"fast 0", b"fast 1", b"fast 2", b"slow 0", b"slow 1", b"slow 2"]


def test_a_clean_stop_in_the_middle_neither_loses_nor_repeats(world: BrokerWorld) -> None:
    for number in range(4):
        world.send(b"%d" % number, DELAY="1")
        world.pass_time(400)
    assert 0 < len(delivered(world)) < 4

    world.stop()
    again = BrokerWorld(world.disk, messageDelayLevel=LEVELS)
    again.now_ms = world.now_ms
    again.pass_time(2_000)

    assert delivered(again) == [b"0", b"1", b"2", b"3"]


def test_a_kill_repeats_at_most_what_was_delivered_since_the_last_save(
    world: BrokerWorld,
) -> None:
    for number in range(3):
        world.send(b"%d" % number, DELAY="1")
    world.pass_time(1_200)
    world.disk.kill()

    again = BrokerWorld(world.disk, messageDelayLevel=LEVELS)
    again.now_ms = world.now_ms
    again.pass_time(2_000)

    assert set(delivered(again)) == {b"0", b"1", b"2"}
    assert delivered(again)[:3] == [b"0", b"1", b"2"]


def test_an_offset_is_saved_only_when_the_delivery_is_stored(world: BrokerWorld) -> None:
    world.send(b"late", DELAY="1")
    world.is_writing = False

    world.pass_time(1_200)
    assert world.state.schedule.saved().get(1, 0) == 0
    world.is_writing = True
    world.write()

    assert world.state.schedule.saved()[1] == 1
    assert world.state.schedule.to_json()["offsetTable"] == {1: 1}


def test_the_file_is_written_when_something_was_delivered(world: BrokerWorld) -> None:
    world.pass_time(11_000)
    assert world.disk.read_text(PATH) == "", "nothing to say, nothing to write"

    world.send(b"late", DELAY="1")
    world.pass_time(12_000)

    assert world.file(PATH)["offsetTable"] == {1: 1}


def test_an_offset_beyond_the_queue_skips_nothing_that_comes_there(world: BrokerWorld) -> None:
    """A file that is ahead of the log: the log's tail was lost with the machine's power."""
    world.stop()
    world.disk.write_text(PATH, '{"offsetTable":{1:50}}')
    again = BrokerWorld(world.disk, messageDelayLevel=LEVELS)
    again.pass_time(200)

    again.send(b"late", DELAY="1")
    again.pass_time(1_200)

    assert delivered(again) == [b"late"]


def test_a_clock_that_was_set_back_does_not_hold_messages_for_hours(world: BrokerWorld) -> None:
    world.send(b"late", DELAY="1")
    world.pass_time(300)

    world.now_ms -= 3_600_000
    world.pass_time(1_200)

    assert delivered(world) == [b"late"]


def test_a_message_that_comes_after_the_clock_was_set_back_waits_its_delay(
    world: BrokerWorld,
) -> None:
    world.send(b"before")
    world.now_ms -= 3_600_000

    for number in range(3):
        world.send(b"%d" % number, DELAY="1")
        world.pass_time(300)
    assert delivered(world) == [b"before"]

    world.pass_time(2_000)
    assert delivered(world) == [b"before", b"0", b"1", b"2"]


def test_one_check_delivers_no_more_than_a_share(world: BrokerWorld) -> None:
    for number in range(1_200):
        world.send(b"%d" % number, DELAY="1")

    world.now_ms += 1_100
    world.core.tick(world.now_ms)
    assert world.core.state.store.take_batch() is not None
    assert world.state.schedule._next[1] == 1_000


def test_a_delayed_message_that_is_gone_is_passed_over(world: BrokerWorld) -> None:
    world.send(b"gone", DELAY="1")
    world.send(b"kept", DELAY="1")
    unit = there(world.state.store.queue(SCHEDULE_TOPIC, 0)).unit(0)
    _, segment = world.state.store.log.segment_at(unit.commit_log_offset)
    segment.write(unit.commit_log_offset, [bytes(unit.size)])

    world.pass_time(1_200)

    assert [r.body for r in world.records(TOPIC)] == [b"kept"]
