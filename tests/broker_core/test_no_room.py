"""No room for a file or a write: nothing is half done, and all goes on when there is room."""

import errno
from typing import Any

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, send_header
from tests.broker_core.cleaning import begin_cleaning
from tests.broker_core.half_world import COMMIT, bodies, end, ending, prepare

from reliable_mq.broker_core.delivery.topic_counts import TIMERS_PATH
from reliable_mq.broker_core.store.message_store import ABORT_PATH
from reliable_mq.broker_core.store.progress import PATH as NOTE_PATH
from reliable_mq.broker_core.store.retention import DiskSurvey
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.errors import StoreError
from reliable_mq.testing.memory_disk import MemoryDisk, MemoryFile, Operation, _Content
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode, ResponseCode

SIZE = 128 * 1024


class FullDisk(MemoryDisk):
    """A disk that has room in its files and for none more of the log."""

    is_full = False

    def open(self, path: str, size: int) -> MemoryFile:
        if self.is_full and path.startswith("commitlog/") and self.size_of(path) < 0:
            raise StoreError(path) from OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, size)


@pytest.fixture
def world() -> BrokerWorld:
    """Return a broker whose log's only file is full but for some bytes."""
    world = BrokerWorld(FullDisk(), mappedFileSizeCommitLog=str(SIZE), messageDelayLevel="1s")
    world.create_topic(queues=4)
    return world


def disk_of(world: BrokerWorld) -> FullDisk:
    assert isinstance(world.disk, FullDisk)
    return world.disk


def fill(world: BrokerWorld) -> None:
    log = world.state.store.log
    while log.capacity_end - log.end > 700:
        world.send(b"x" * 100)
    disk_of(world).is_full = True


def make_room(world: BrokerWorld) -> None:
    disk_of(world).is_full = False
    world.pass_time(600, step=20)


def test_a_send_is_refused_and_the_next_one_is_taken_when_there_is_room(world: BrokerWorld) -> None:
    fill(world)
    answer = world.ask(RequestCode.SEND_MESSAGE_V2, send_header(), b"x" * 1_000)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE

    make_room(world)

    world.send(b"x" * 1_000)


def test_of_a_batch_nothing_is_stored(world: BrokerWorld) -> None:
    fill(world)
    count = len(bodies(world, TOPIC, 0))
    batch = encode_batch([BatchItem(0, b"y" * 100, b"")] * 8)
    header = {**send_header(), "m": "true"}

    answer = world.ask(RequestCode.SEND_BATCH_MESSAGE, header, batch)

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(bodies(world, TOPIC, 0)) == count
    make_room(world)
    assert world.ask(RequestCode.SEND_BATCH_MESSAGE, header, batch).code == 0
    assert len(bodies(world, TOPIC, 0)) == count + 8


def test_a_transaction_that_cannot_be_committed_has_not_ended(world: BrokerWorld) -> None:
    sent = prepare(world, b"h" * 600)
    fill(world)
    assert end(world, ending(sent, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert bodies(world) == []

    make_room(world)

    assert end(world, ending(sent, COMMIT)).code == 0
    assert bodies(world) == [b"h" * 600]


def test_a_recall_is_refused_while_sends_are_and_taken_when_there_is_room() -> None:
    world = BrokerWorld(FullDisk(), mappedFileSizeCommitLog=str(SIZE), recallMessageEnable="true")
    world.create_topic(queues=4)
    header = send_header(TOPIC, TIMER_DELAY_MS="60000", UNIQ_KEY="AB12")
    sent = world.ask(RequestCode.SEND_MESSAGE_V2, header, b"later")
    wanted = {"topic": TOPIC, "recallHandle": sent.ext_fields["recallHandle"]}
    fill(world)
    refused = world.ask(RequestCode.SEND_MESSAGE_V2, send_header(), b"x" * 1_000)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    end_before = world.state.store.log.end

    answer = world.ask(RequestCode.RECALL_MESSAGE, wanted)

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert world.state.store.log.end == end_before  # though it would fit into the file
    make_room(world)
    assert world.ask(RequestCode.RECALL_MESSAGE, wanted).code == 0


def test_what_the_broker_stores_by_itself_comes_once_and_in_order(world: BrokerWorld) -> None:
    for number in range(4):
        world.send(b"%d" % number * 300, queue_id=1, DELAY="1")
        world.send(b"%d" % number * 300, queue_id=2, TIMER_DELAY_MS="900")
    fill(world)
    world.pass_time(3_000, step=20)

    make_room(world)

    wanted = [b"%d" % number * 300 for number in range(4)]
    assert (bodies(world, TOPIC, 1), bodies(world, TOPIC, 2)) == (wanted, wanted)
    world.state.files.change(TIMERS_PATH, world.state.timers.counts.dump)
    world.pass_time(20)
    assert all(each["count"] == 0 for each in world.file(TIMERS_PATH)["timingCount"].values())


@pytest.mark.parametrize("end", ["kill", "stop", "stop without room"])
def test_a_checkpoint_vouches_for_no_entry_that_found_no_room(end: str) -> None:
    world = BrokerWorld(mappedFileSizeTimerLog="4096")
    world.create_topic()
    world.disk.error = errno.ENOSPC
    world.send(b"first", TIMER_DELAY_MS="2000")
    world.pass_time(20)
    world.send(b"second", TIMER_DELAY_MS="2100")
    world.disk.fail_at = len(world.disk.operations)
    world.state.timers.run(world.now_ms)
    world.disk.fail_at = None
    assert world.core.begin_timer_checkpoint(world.now_ms) is None

    if end == "kill":
        world.disk.kill()
    else:
        world.disk.fail_at = len(world.disk.operations) if end == "stop without room" else None
        world.core.state.timers.close()
        world.disk.fail_at = None
        world.disk.kill()
    again = BrokerWorld(world.disk, mappedFileSizeTimerLog="4096")
    again.pass_time(4_000, step=20)

    assert bodies(again, TOPIC, 0) == [b"first", b"second"]


class QueuesWithoutRoom(MemoryDisk):
    """A disk that has room for everything but the units of consume queues."""

    is_full = False

    def operate(self, operation: Operation, *content: Any) -> None:
        if self.is_full and operation.path.startswith("consumequeue/"):
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)
        super().operate(operation, *content)


def test_a_checkpoint_vouches_for_no_unit_that_found_no_room_and_a_stop_is_none_then() -> None:
    disk = QueuesWithoutRoom()
    world = BrokerWorld(disk)
    world.send(b"first")
    world.state.store.checkpoint()
    noted = world.file(NOTE_PATH)
    disk.is_full = True
    for _ in range(5):
        world.send(b"later")
    world.state.store.checkpoint()
    assert world.file(NOTE_PATH) == noted
    world.stop()
    assert disk.size_of(ABORT_PATH) >= 0

    disk.is_full = False
    again = BrokerWorld(disk)
    assert bodies(again, TOPIC, 0) == [b"first"] + [b"later"] * 5
    again.stop()
    assert disk.size_of(ABORT_PATH) < 0


def test_old_files_go_although_new_units_find_no_room() -> None:
    disk = QueuesWithoutRoom()
    world = BrokerWorld(disk)
    store = world.state.store
    while len(store.log.segment_starts) < 3:
        world.send(b"x" * 30_000)
    store.checkpoint()
    while len(store.log.segment_starts) < 5:
        world.send(b"x" * 30_000)
    disk.is_full = True
    world.send(b"last")
    for expected in (4, 1):  # what was noted lies behind the log's begin, then before it
        oldest = [0] * (len(store.log.segment_starts) - expected)
        work = begin_cleaning(world.core, DiskSurvey(0.99, oldest), world.reading())
        assert work
        work()
        assert world.file(NOTE_PATH)["logStart"] == store.log.start
        assert len(store.log.segment_starts) == expected

    disk.kill()
    disk.is_full = False
    found = bodies(BrokerWorld(disk), TOPIC, 0)
    assert found[-1] == b"last"


class FullFromTheStart(MemoryDisk):
    """A disk that takes new names, and no byte of the store."""

    is_full = False

    def operate(
        self, operation: Operation, content: _Content | None = None, data: bytes = b""
    ) -> None:
        super().operate(operation, content, data)
        is_table = operation.path == TOPICS_PATH  # the writer's, who tries again
        if self.is_full and operation.verb in ("write", "text") and not is_table:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_broker_starts_on_a_full_disk_serves_reads_and_knows_a_kill_that_follows(
    was_killed: bool,
) -> None:
    disk = FullFromTheStart()
    world = BrokerWorld(disk)
    world.create_topic(queues=1)
    world.send(b"kept")
    if was_killed:  # the units of the queue must be built again
        disk.place_file("consumequeue/orders/0/" + "0" * 20, bytes(20_000))
    else:
        world.stop()
    disk.is_full = True

    world.start()

    assert bodies(world, TOPIC, 0) == [b"kept"]
    assert disk.size_of("abort") >= 0
    disk.is_full = False
    world.stop()
    assert disk.size_of("abort") == -1
    world.start()
    assert bodies(world, TOPIC, 0) == [b"kept"]


GROUP_BODY = b'{"groupName":"payments","retryMaxTimes":3}'
CHANGES: list[tuple[int, dict[str, object], bytes]] = [
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {"topic": "new", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
        b"",
    ),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, b""),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP_BODY),
    (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {},
        b'{"groupConfigList":[%s]}' % GROUP_BODY,
    ),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "old", "cleanOffset": "true"}, b""),
]


@pytest.mark.parametrize(("code", "header", "body"), CHANGES)
@pytest.mark.parametrize("is_noticed_by_a_look", [True, False])
def test_what_changes_a_table_is_refused_without_a_change_while_its_file_has_no_room(
    code: int, header: dict[str, object], body: bytes, is_noticed_by_a_look: bool
) -> None:
    world = BrokerWorld()
    world.create_topic(queues=4)
    pressure = world.state.pressure
    before = world.disk.files()
    if is_noticed_by_a_look:
        pressure.note_disk(1.0, is_full=True, free_size=4096)
    else:
        pressure.note_room(has_room=False)

    answer = world.ask(code, header, body)

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "disk is full" in (answer.remark or "")
    assert world.disk.files() == before
    pressure.note_disk(0.92, is_full=True, free_size=1 << 30)  # for tables there is room
    pressure.note_room(has_room=True)
    assert world.ask(code, header, body).code == 0


def test_an_index_file_that_lacks_room_is_built_again_when_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Apache's files have holes where ours have taken their room."""

    def full(_file: MemoryFile, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    world = BrokerWorld()
    world.send(b"kept", KEYS="key")
    while world.core.index_some(world.now_ms):
        pass
    world.stop()
    with monkeypatch.context() as patched:
        patched.setattr(MemoryFile, "reserve", full)
        world.start()
        world.core.index_some(world.now_ms)
        assert bodies(world, TOPIC, 0) == [b"kept"]
        assert world.state.is_index_stuck
    while world.core.index_some(world.now_ms):
        pass
    index = world.state.store.index
    assert index
    assert len(index.select(TOPIC, "key", 9, 0, 1 << 62).offsets) == 1
