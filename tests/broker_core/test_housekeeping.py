"""Old messages go, the newest stay; a full disk refuses sends and nothing else."""

import errno
from datetime import datetime

import pytest
from tests.broker_core.broker_world import START_MS, TOPIC, BrokerWorld, pull_header, there
from tests.broker_core.cleaning import begin_cleaning

from reliable_mq.broker_core.store.commit_log import FOLDER as LOG_FOLDER
from reliable_mq.broker_core.store.disk import FileText
from reliable_mq.broker_core.store.progress import PATH as NOTE_PATH
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.record import iter_records

HOUR_MS = 3_600_000
SEGMENT = 64 * 1024
FOLLOWERS = (f"consumequeue/{TOPIC}/0", "index")
BODY = bytes(3_000)
MIDDAY_MS = int(datetime(2024, 1, 2, 12).timestamp() * 1000)  # noqa: DTZ001 - deleteWhen is local
FOUR_MS = int(datetime(2024, 1, 2, 4).timestamp() * 1000)  # noqa: DTZ001


def world_with(count: int, **properties: str) -> BrokerWorld:
    """Return a broker at midday with messages in several files of its log, each one hour old."""
    sizes = {
        "mappedFileSizeCommitLog": str(2 * SEGMENT),
        "mappedFileSizeConsumeQueue": "400",  # 20 units a file
        "maxMessageSize": "4096",
        "maxIndexNum": "50",
    }
    world = BrokerWorld(None, **sizes, **properties)
    world.now_ms = MIDDAY_MS
    clean(world)  # a first look at the clock
    for number in range(count):
        world.send(BODY, KEYS=f"key-{number}")
    while world.core.index_some(world.now_ms):
        pass
    for path in log_files(world):
        world.disk.modified[path] = MIDDAY_MS - HOUR_MS
    return world


def log_files(world: BrokerWorld) -> list[str]:
    """Return the files of the log without the one that was made ahead of need."""
    end = world.state.store.log.capacity_end
    return [f"{LOG_FOLDER}/{name}" for name in world.disk.names(LOG_FOLDER) if int(name) < end]


def clean(world: BrokerWorld, *, ahead_ms: int = 0) -> None:
    """Let one round of housekeeping pass, and the queues follow; the clock is ahead so much."""
    for _ in range(2):
        found = world.core.housekeeping.survey_job()()
        job = begin_cleaning(world.core, found, world.reading(ahead_ms=ahead_ms))
        if job:
            job()
        world.pass_time(100)


def age(world: BrokerWorld, count: int, hours: int) -> None:
    """Let the oldest files of the log be this old."""
    for path in log_files(world)[:count]:
        world.disk.modified[path] = world.now_ms - hours * HOUR_MS


def test_nothing_goes_outside_of_the_hours_in_which_files_go() -> None:
    world = world_with(200)
    age(world, 2, 1000)
    before = log_files(world)
    clean(world)
    assert log_files(world) == before


def test_no_queue_is_written_while_no_file_goes() -> None:
    world = world_with(200, deleteWhen="12")
    upkeep = world.state.store.upkeep
    waiting = upkeep.unwritten
    assert waiting > 0
    clean(world)
    assert upkeep.unwritten == waiting
    age(world, 1, 73)
    clean(world)
    assert upkeep.unwritten == 0


def test_old_files_go_at_four_with_queue_and_index_and_an_old_pull_is_led_on() -> None:
    world = world_with(200)
    world.now_ms = FOUR_MS + 24 * HOUR_MS
    for path in log_files(world):
        world.disk.modified[path] = world.now_ms - 71 * HOUR_MS
    age(world, 2, 73)
    world.state.store.upkeep.flush()
    before = [len(world.disk.names(folder)) for folder in FOLLOWERS]
    files = len(log_files(world))
    clean(world)
    first = there(world.state.store.queue(TOPIC, 0)).first
    for folder, count in zip(FOLLOWERS, before, strict=True):
        assert 0 < len(world.disk.names(folder)) < count
    assert len(log_files(world)) == files - 2
    assert world.state.store.log.start == 4 * SEGMENT
    assert 0 < first < 200
    answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(0))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == answer.ext_fields["minOffset"] == str(first)
    answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(first))
    assert next(iter_records(answer.body)).queue_offset == first
    assert world.ask(RequestCode.GET_MIN_OFFSET, queue_header()).ext_fields["offset"] == str(first)


def queue_header() -> dict[str, object]:
    return {"topic": TOPIC, "queueId": 0}


def test_a_store_whose_old_files_went_opens_again_after_a_stop_and_after_a_kill() -> None:
    for is_killed in (False, True):
        world = world_with(200, deleteWhen="12")
        age(world, 2, 73)
        clean(world)
        first = there(world.state.store.queue(TOPIC, 0)).first
        if is_killed:
            world.disk.kill()
        else:
            world.stop()
        world.start()
        queue = there(world.state.store.queue(TOPIC, 0))
        assert (queue.first, queue.end) == (first, 200)
        assert world.send().ext_fields["queueOffset"] == "200"


def test_a_queue_whose_messages_are_all_gone_goes_on_counting_after_a_stop_and_after_a_kill() -> (
    None
):
    for is_killed in (False, True):
        world = world_with(0, deleteWhen="12")
        world.create_topic("early")
        for _ in range(25):
            world.send(BODY, topic="early")
        for _ in range(200):
            world.send(BODY)
        world.pass_time(100)
        world.state.store.checkpoint()
        for path in log_files(world):
            world.disk.modified[path] = world.now_ms
        age(world, 3, 73)
        clean(world)
        queue = there(world.state.store.queue("early", 0))
        assert (queue.first, queue.end) == (25, 25)
        if is_killed:
            world.disk.kill()
        else:
            world.stop()
        world.start()
        assert world.send(topic="early").ext_fields["queueOffset"] == "25"


def test_a_crash_between_forgetting_and_removing_leaves_a_store_that_opens() -> None:
    steps = 0
    while True:
        world = world_with(100, deleteWhen="12")
        age(world, 1, 73)
        job = begin_cleaning(world.core, world.core.housekeeping.survey_job()(), world.reading())
        assert job
        world.disk.stop_before = len(world.disk.operations) + steps
        try:
            job()
        except BaseException:  # noqa: BLE001 - the machine stopped
            pass
        else:
            break
        world.disk.kill()
        world.start()
        assert there(world.state.store.queue(TOPIC, 0)).end == 100
        steps += 1
    assert steps > 3


def test_at_most_ten_files_go_in_a_round_and_never_the_newest() -> None:
    world = world_with(600, deleteWhen="12")
    age(world, 100, 73)
    count = len(log_files(world))
    assert count > 13
    job = begin_cleaning(world.core, world.core.housekeeping.survey_job()(), world.reading())
    assert job
    job()
    assert len(log_files(world)) == count - 10
    for _ in range(5):
        clean(world)
    assert len(log_files(world)) == 1
    assert world.send().ext_fields["queueOffset"] == "600"


def test_a_queue_whose_messages_are_all_gone_keeps_its_number() -> None:
    world = world_with(100, deleteWhen="12")
    world.send(topic="other")
    for _ in range(150):
        world.send(BODY, topic="third")
    age(world, 100, 73)
    for _ in range(3):
        clean(world)
    queue = there(world.state.store.queue("other", 0))
    assert (queue.first, queue.end) == (1, 1)
    world.stop()
    world.start()
    assert world.send(topic="other").ext_fields["queueOffset"] == "1"


@pytest.mark.parametrize("used", [0.86, 0.99])
def test_a_full_disk_removes_no_message_before_its_time(used: float) -> None:
    world = world_with(200)
    before = log_files(world)
    world.disk.used = used
    for _ in range(3):
        clean(world)
    assert log_files(world) == before
    assert there(world.state.store.queue(TOPIC, 0)).first == 0
    assert world.ask(RequestCode.PULL_MESSAGE, pull_header(0)).code == 0
    is_refused = world.ask(RequestCode.SEND_MESSAGE_V2, send_again(), b"x").code != 0
    assert is_refused == (used > 0.90)


def test_a_full_disk_lets_go_of_messages_whose_time_has_passed() -> None:
    world = world_with(200)
    age(world, 2, 73)
    count = len(log_files(world))
    world.disk.used = 0.99
    clean(world)
    assert len(log_files(world)) == count - 2


def test_above_the_second_mark_young_files_go_where_an_operator_said_so() -> None:
    world = world_with(200, cleanFileForciblyEnable="true")
    age(world, 1, 73)
    count = len(log_files(world))
    world.disk.used = 0.76
    clean(world)
    assert len(log_files(world)) == count - 1
    world.disk.used = 0.86
    clean(world)
    assert len(log_files(world)) == 1
    world.send()


def test_above_the_highest_mark_sends_are_refused_as_apache_does_and_go_on_below_it() -> None:
    world = world_with(10)
    world.disk.used = 0.91
    clean(world)
    answer = world.ask(RequestCode.SEND_MESSAGE_V2, send_again(), b"x")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == (
        "service not available now. It may be caused by one of the following reasons: the broker's "
        "disk is full [CL:  0.91 CQ:  0.91 INDEX:  0.91], messages are put to the slave, message "
        "store has been shut down, etc."
    )
    assert world.ask(RequestCode.PULL_MESSAGE, pull_header(0)).code == 0
    world.disk.used = 0.90
    clean(world)
    world.send()


def send_again() -> dict[str, object]:
    return {"a": "p", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": START_MS, "h": 0}


def test_a_tool_can_ask_for_old_files_to_go_at_any_hour() -> None:
    world = world_with(200)
    age(world, 2, 73)
    count = len(log_files(world))
    assert world.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    clean(world)
    assert len(log_files(world)) == count - 2


def test_queues_of_a_deleted_topic_go_when_a_tool_asks_and_their_messages_are_gone() -> None:
    world = world_with(100, deleteWhen="12")
    world.create_topic("other")
    for _ in range(100):
        world.send(BODY, topic="other")
    world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    assert world.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    clean(world)
    assert world.state.store.queue(TOPIC, 0) is not None
    age(world, 100, 73)
    clean(world)
    assert world.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    clean(world)
    assert world.state.store.queue(TOPIC, 0) is None
    assert world.disk.names(f"consumequeue/{TOPIC}/0") == []


def test_units_without_room_stay_readable_and_are_written_later() -> None:
    world = world_with(5)
    world.disk.error = errno.ENOSPC
    is_next_write = len(world.disk.operations) + 2  # the log's write, its sync, then the unit
    world.disk.fail_at = is_next_write
    world.send(b"late")
    world.state.store.upkeep.flush()
    assert world.disk.operations[is_next_write].path.startswith("consumequeue")
    assert [record.body for record in world.records(TOPIC)][-1] == b"late"
    answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(5))
    assert [record.body for record in iter_records(answer.body)] == [b"late"]
    clean(world)
    world.send(b"later")
    world.stop()
    world.start()
    assert [record.body for record in world.records(TOPIC)][-2:] == [b"late", b"later"]


def test_no_file_goes_as_long_as_nobody_can_note_that_the_log_begins_later() -> None:
    """Without the note, which needs room, a broker that finds no such file refuses to start."""
    world = world_with(200)
    age(world, 2, 73)
    world.now_ms = FOUR_MS + 24 * HOUR_MS
    before = log_files(world)
    write_text = world.disk.write_text

    def no_room(path: str, text: FileText) -> None:
        if path == NOTE_PATH:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_text(path, text)

    world.disk.write_text = no_room  # type: ignore[method-assign]
    clean(world)
    world.disk.write_text = write_text  # type: ignore[method-assign]
    assert log_files(world) == before
    world.start()
    assert log_files(world) == before

    clean(world)
    assert log_files(world) == before[2:]
    world.start()


def test_the_rules_can_be_changed_while_the_broker_runs() -> None:
    world = world_with(200)
    age(world, 2, 10)
    count = len(log_files(world))
    settings = b"fileReservedTime=9\ndeleteWhen=12\n"
    assert world.ask(RequestCode.UPDATE_BROKER_CONFIG, body=settings).code == 0
    clean(world)
    assert len(log_files(world)) == count - 2


def test_files_that_go_before_their_time_for_want_of_space_are_warned_of_and_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = world_with(200, cleanFileForciblyEnable="true")
    age(world, 2, 73)
    world.disk.used = 0.76  # the old ones go at any hour
    clean(world)
    assert not caplog.messages
    world.disk.used = 0.91
    kept, start = len(log_files(world)), world.state.store.log.start
    for _ in range(3):  # what is said is said once
        clean(world)
    world.disk.used = 0.5
    for _ in range(3):
        clean(world)

    gone, size = kept - len(log_files(world)), world.state.store.log.start - start
    assert gone > 0
    told = (
        f"the disk is 91 % full: {gone} log files are removed ({size} bytes), {gone} of them "
        "before their fileReservedTime of 72 h; consumers that have not read them lose messages"
    )
    assert caplog.messages == [
        "the disk is 91 % full, sends are refused until there is room",
        told,
        "the disk is 50 % full, sends resume",
    ]


def test_a_changed_ratio_holds_for_what_the_last_look_at_the_disk_found() -> None:
    """Whoever lets the disk be fuller need not wait for the next look until sends go on."""
    world = world_with(1)
    world.disk.used = 0.77
    clean(world)
    update = RequestCode.UPDATE_BROKER_CONFIG

    world.ask(update, {}, b"diskSpaceWarningLevelRatio=70")
    answer = world.ask(RequestCode.SEND_MESSAGE_V2, send_again(), b"x")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    world.ask(update, {}, b"diskSpaceWarningLevelRatio=90")
    world.send()
