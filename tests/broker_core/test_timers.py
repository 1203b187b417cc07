"""Timed messages: to the millisecond, never early, each once, and taken back when asked."""

import base64
import errno

import pytest
from tests.broker_core.broker_world import START_MS, TOPIC, BrokerWorld, send_header, there

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.broker_core.store.timer_wheel import EMPTY, TimerWheel
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer
from reliable_mq.wire.command import Command

SMALL_FILES = {"mappedFileSizeTimerLog": "4096", "recallMessageEnable": "true"}
DAY_MS = 86_400_000
TOO_FAR = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)


@pytest.fixture
def world() -> BrokerWorld:
    return a_world()


def a_world(**properties: str) -> BrokerWorld:
    world = BrokerWorld(None, **{**SMALL_FILES, **properties})
    world.create_topic()
    return world


def send(world: BrokerWorld, body: bytes = b"late", **properties: object) -> Command:
    texts = {name: str(value) for name, value in properties.items()}
    return world.ask(Ask.SEND_MESSAGE_V2, send_header(TOPIC, 0, **texts), body)


class WorldAt(BrokerWorld):
    """A broker that starts at a time of its own."""

    def __init__(self, disk: MemoryDisk, now_ms: int, **properties: str) -> None:
        self._start_ms = now_ms
        super().__init__(disk, **{**SMALL_FILES, **properties})

    def start(self) -> None:
        self.now_ms = self._start_ms
        super().start()


def recall(world: BrokerWorld, handle: str, topic: str = TOPIC) -> Command:
    return world.ask(Ask.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})


def delivered(world: BrokerWorld) -> list[bytes]:
    return [record.body for record in world.records(TOPIC)]


@pytest.mark.parametrize(
    ("wish", "value", "delay_ms"),
    [
        ("TIMER_DELIVER_MS", START_MS + 2_345, 2_345),
        ("TIMER_DELIVER_MS", START_MS + 3_000, 3_000),
        ("TIMER_DELAY_MS", 1_234, 1_234),
        ("TIMER_DELAY_MS", 7, 7),
        ("TIMER_DELAY_SEC", 4, 4_000),
    ],
)
def test_a_timed_message_comes_in_its_millisecond(
    world: BrokerWorld, wish: str, value: int, delay_ms: int
) -> None:
    answer = send(world, b"late", TAGS="red", **{wish: value})
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("0", "0")

    world.pass_time(delay_ms - 1, step=1)
    assert delivered(world) == []
    world.pass_time(1, step=1)

    (record,) = world.records(TOPIC)
    assert (record.body, record.queue_id, record.store_time_ms) == (b"late", 0, START_MS + delay_ms)
    properties = record.property_map()
    assert properties[wish] == str(value)
    assert properties["TIMER_OUT_MS"] == str((START_MS + delay_ms - 1) // 1000 * 1000)
    assert properties["TIMER_DEQUEUE_MS"] == str(START_MS + delay_ms)
    world.pass_time(5_000)
    assert delivered(world) == [b"late"]


def test_messages_of_one_second_come_each_in_its_millisecond(world: BrokerWorld) -> None:
    delays = [1_900, 1_001, 1_500, 1_002, 1_500, 2_000]
    for number, delay_ms in enumerate(delays):
        send(world, b"%d" % number, TIMER_DELIVER_MS=START_MS + delay_ms)

    world.pass_time(3_000, step=1)

    records = world.records(TOPIC)
    assert [record.body for record in records] == [b"1", b"3", b"2", b"4", b"0", b"5"]
    assert [record.store_time_ms - START_MS for record in records] == sorted(delays)


def test_a_message_for_a_second_that_has_begun_is_not_forgotten(world: BrokerWorld) -> None:
    send(world, b"first", TIMER_DELAY_MS=900)
    world.pass_time(500, step=20)
    send(world, b"second", TIMER_DELAY_MS=100)
    world.pass_time(1_000, step=20)

    assert delivered(world) == [b"second", b"first"]


@pytest.mark.parametrize("wish", [{"TIMER_DELIVER_MS": START_MS}, {"TIMER_DELAY_SEC": -1}])
def test_a_time_that_has_passed_is_now(world: BrokerWorld, wish: dict[str, int]) -> None:
    answer = send(world, b"now", **wish)

    assert delivered(world) == [b"now"]
    assert "recallHandle" not in answer.ext_fields


@pytest.mark.parametrize(
    "wish",
    [
        {"TIMER_DELIVER_MS": START_MS + 3 * DAY_MS + 1},
        {"TIMER_DELAY_SEC": 3 * 86_400 + 1},
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELIVER_MS": 2**63},
        {"TIMER_DELIVER_MS": START_MS - 1, "TIMER_DEL_UNIQKEY": "x"},
    ],
)
def test_a_time_that_cannot_be_kept_is_refused(world: BrokerWorld, wish: dict[str, object]) -> None:
    answer = send(world, b"late", **wish)

    assert (answer.code, answer.remark) == (Answer.MESSAGE_ILLEGAL, TOO_FAR)
    assert world.records(TIMER_TOPIC) == []


def test_timers_can_be_switched_off() -> None:
    answer = send(a_world(timerWheelEnable="false"), TIMER_DELAY_MS=10)

    assert answer.code == Answer.SYSTEM_ERROR
    assert answer.remark == ("accurate timer message is not enabled, timerWheelEnable is false")


def test_a_delay_level_counts_more_than_a_time(world: BrokerWorld) -> None:
    send(world, b"level", DELAY=1, TIMER_DELAY_MS=60_000)

    world.pass_time(1_100)

    (record,) = world.records(TOPIC)
    assert "TIMER_DELAY_MS" not in record.property_map()


def test_a_delivered_message_that_is_sent_on_does_not_wait_again(world: BrokerWorld) -> None:
    send(world, b"on", TIMER_DELIVER_MS=START_MS + 60_000, TIMER_OUT_MS=START_MS)

    assert delivered(world) == [b"on"]


def test_a_time_beyond_the_window_goes_round_and_keeps_its_millisecond() -> None:
    world = a_world(timerRollWindowSlot="6")
    for number, delay_ms in enumerate((20_123, 6_999, 7_500, 13_001)):
        send(world, b"%d" % number, TIMER_DELAY_MS=delay_ms)

    world.pass_time(21_000, step=1)

    records = world.records(TOPIC)
    assert [(r.body, r.store_time_ms - START_MS) for r in records] == [
        (b"1", 6_999),
        (b"2", 7_500),
        (b"3", 13_001),
        (b"0", 20_123),
    ]
    assert int(records[-1].property_map()["TIMER_ROLL_TIMES"]) >= 2


def test_a_message_can_be_taken_back_until_its_second_begins(world: BrokerWorld) -> None:
    handle = send(world, b"gone", TIMER_DELAY_MS=5_500).ext_fields["recallHandle"]
    send(world, b"stays", TIMER_DELAY_MS=5_600)
    version, topic, broker, time, key = base64.urlsafe_b64decode(handle).decode().split(" ")
    assert (version, topic, broker, time) == ("v1", TOPIC, "b", str(START_MS + 5_001))

    answer = recall(world, handle)

    assert (answer.code, answer.ext_fields["msgId"]) == (0, key)
    world.pass_time(20)
    assert world.state.timers.counts.of(TOPIC) == 1
    world.pass_time(5_100)
    assert recall(world, handle).remark == "recall failed, timestamp invalid"
    world.pass_time(2_000)
    assert delivered(world) == [b"stays"]
    assert world.state.timers.counts.of(TOPIC) == 0


def test_a_message_that_goes_round_can_be_taken_back() -> None:
    world = a_world(timerRollWindowSlot="6")
    handle = send(world, b"gone", TIMER_DELAY_MS=20_500).ext_fields["recallHandle"]
    world.pass_time(3_000)
    assert recall(world, handle).code == 0

    world.pass_time(20_000)

    assert delivered(world) == []
    assert world.state.timers.counts.of(TOPIC) == 0


def test_a_recall_holds_when_its_target_is_overdue_at_the_start(world: BrokerWorld) -> None:
    handle = send(world, b"gone", TIMER_DELAY_MS=1_500).ext_fields["recallHandle"]
    for number in range(1_100):  # more than one turn takes up
        send(world, b"%d" % number, TIMER_DELAY_MS=1_600)
    assert recall(world, handle).code == 0
    world.stop()

    again = BrokerWorld(world.disk, **SMALL_FILES)
    again.pass_time(5_000)

    assert delivered(again) == [b"%d" % number for number in range(1_100)]


def test_a_recall_holds_when_it_is_taken_up_after_its_target_is_due(world: BrokerWorld) -> None:
    handle = send(world, b"gone", TIMER_DELAY_MS=1_500).ext_fields["recallHandle"]
    world.pass_time(100)
    for number in range(1_100):  # more than one turn takes up
        send(world, b"%d" % number, TIMER_DELAY_MS=1_600)
    assert recall(world, handle).code == 0

    world.pass_time(2_500, step=2_500)
    world.pass_time(1_000)

    assert delivered(world) == [b"%d" % number for number in range(1_100)]


def test_timers_of_a_long_downtime_are_delivered(world: BrokerWorld) -> None:
    for days in (1, 2, 3):
        send(world, b"%d" % days, TIMER_DELAY_SEC=86_400 * days)
    world.pass_time(1_000)
    world.stop()

    again = WorldAt(world.disk, START_MS + 20 * DAY_MS)
    again.pass_time(60_000, step=20)

    assert delivered(again) == [b"1", b"2", b"3"]


def test_lost_timer_files_are_built_again_from_the_log(world: BrokerWorld) -> None:
    for delay_ms in (1_000, 5_000):
        send(world, b"%d" % delay_ms, TIMER_DELAY_MS=delay_ms)
    world.pass_time(3_000)
    world.stop()
    for path in ("timerwheel", "config/timercheck"):
        world.disk.remove(path)

    again = WorldAt(world.disk, world.now_ms)
    again.pass_time(5_000)

    assert delivered(again) == [b"1000", b"5000"]


@pytest.mark.parametrize("read_ms", [START_MS + 2_576, 2**62 // 1_000 * 1_000, -1_000])
def test_a_checkpoint_that_cannot_be_true_is_as_good_as_none(
    world: BrokerWorld, read_ms: int
) -> None:
    send(world, TIMER_DELAY_MS=5_000)
    world.pass_time(3_000)
    world.stop()
    world.disk.open("config/timercheck", 4096).write(0, (read_ms.to_bytes(8, signed=True),))

    again = WorldAt(world.disk, world.now_ms)
    again.pass_time(5_000)

    assert delivered(again) == [b"late"]
    again.stop()


def test_what_one_turn_delivers_around_the_end_of_a_second_comes_once_after_a_crash(
    world: BrokerWorld,
) -> None:
    for delay_ms in (3_990, 4_010):
        send(world, b"%d" % delay_ms, TIMER_DELAY_MS=delay_ms)
    world.pass_time(3_950)
    world.pass_time(100)
    work = world.core.begin_timer_checkpoint(world.now_ms)
    assert work is not None
    work()

    again = WorldAt(world.disk, world.now_ms)
    again.pass_time(3_000)

    assert delivered(again) == [b"3990", b"4010"]


def test_a_burst_in_one_millisecond_comes_whole_and_in_order(world: BrokerWorld) -> None:
    for number in range(2_500):  # more than one turn delivers, and more than one file holds
        send(world, b"%d" % number, TIMER_DELIVER_MS=START_MS + 3_000)

    world.pass_time(3_200, step=20)

    assert delivered(world) == [b"%d" % number for number in range(2_500)]


def test_timers_wait_for_room_on_the_disk_and_none_is_lost(world: BrokerWorld) -> None:
    """The disk is full at one write after the other, a new file of the timer log among them."""
    world.disk.error = errno.ENOSPC
    send(world, b"first", TIMER_DELAY_MS=400)
    world.pass_time(20)
    for number in range(100):
        send(world, b"%d" % number, TIMER_DELAY_MS=500 + number)
        world.disk.fail_at = len(world.disk.operations)
        world.state.timers.run(world.now_ms)
        world.disk.fail_at = None
        if number % 3 == 2:
            world.state.timers.run(world.now_ms)
        work = world.core.begin_timer_checkpoint(world.now_ms)
        if work:
            world.disk.fail_at = len(world.disk.operations) + number % 4 + 3
            work()
            world.disk.fail_at = None

    world.pass_time(1_000, step=20)

    assert delivered(world) == [b"first", *(b"%d" % number for number in range(100))]


def test_a_clean_stop_leaves_nothing_in_a_slot_that_was_delivered(world: BrokerWorld) -> None:
    """Apache's broker delivers a slot as a whole, from the second at which we stopped."""
    for delay_ms in (5_100, 5_300, 5_700, 5_900, 6_400):
        send(world, b"%d" % delay_ms, TIMER_DELAY_MS=delay_ms)
    world.pass_time(5_500, step=20)
    world.stop()

    files = TimerStore(world.disk, file_size=4096, precision_ms=1_000, is_sync_flush=True)
    store = BrokerWorld(world.disk, **SMALL_FILES).state.store
    files.open(store, START_MS)

    assert files.read_ms == START_MS + 5_000
    bodies = [
        there(store.read_record(entry.commit_log_offset)).body
        for _, entry in files.chain(START_MS + 5_000)
    ]
    assert bodies == [b"5900", b"5700"]
    assert files.slot(START_MS + 5_000).waiting == 2


def test_a_clean_stop_may_leave_nothing_at_all_in_a_slot(world: BrokerWorld) -> None:
    send(world, b"came", TIMER_DELAY_MS=5_500)
    send(world, b"waits", TIMER_DELAY_MS=60_000)
    world.pass_time(5_900, step=20)
    world.stop()

    wheel = TimerWheel(world.disk, 1_000)

    assert wheel.slot(START_MS + 5_000) == EMPTY
    assert wheel.slot(START_MS + 59_000).waiting == 1


def _handle(*fields: str) -> str:
    return base64.urlsafe_b64encode(" ".join(fields).encode()).decode()


@pytest.mark.parametrize(
    ("handle", "topic", "code", "remark"),
    [
        ("", TOPIC, Answer.ILLEGAL_OPERATION, "recall handle is invalid"),
        ("no base64!", TOPIC, Answer.ILLEGAL_OPERATION, "recall handle is invalid"),
        (_handle("v2", TOPIC, "b", "1", "k"), TOPIC, 604, "recall handle is invalid"),
        (_handle("v1", TOPIC, "b", "1"), TOPIC, 604, "recall handle is invalid"),
        (_handle("v1", "other", "b", "1", "k"), TOPIC, 604, "recall failed, topic not match"),
        (
            _handle("v1", TOPIC, "c", "1", "k"),
            TOPIC,
            604,
            "recall failed, broker service not available",
        ),
        (_handle("v1", TOPIC, "b", "1", "k"), TOPIC, 604, "recall failed, timestamp invalid"),
        (_handle("v1", TOPIC, "b", "x", "k"), TOPIC, 604, "recall failed, timestamp invalid"),
        (
            _handle("v1", TOPIC, "b", str(START_MS + 3 * DAY_MS), "k"),
            TOPIC,
            604,
            "recall failed, timestamp invalid",
        ),
        ("", "none", Answer.TOPIC_NOT_EXIST, "recall failed, the topic[none] not exist"),
    ],
)
def test_a_handle_that_means_nothing_is_refused(
    world: BrokerWorld, handle: str, topic: str, code: int, remark: str
) -> None:
    answer = recall(world, handle, topic)

    assert (answer.code, answer.remark) == (code, remark)
    assert answer.ext_fields == {"MSG_REGION": "DefaultRegion"}
    assert world.records(TIMER_TOPIC) == []


def test_recalls_are_refused_unless_they_are_allowed() -> None:
    answer = recall(a_world(recallMessageEnable="false"), "x")

    assert answer.code == Answer.NO_PERMISSION
    assert answer.remark == "recall failed, operation is forbidden"
