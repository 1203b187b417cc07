"""Every reader of the log passes around a damaged record; whoever meets it first names it, once.

Each case twice: with damage that the start looks at, and with damage in the older part of the log,
which it does not read.
"""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, pull_header
from tests.broker_core.half_world import COMMIT, INTERVAL_MS, end, ending, prepare

from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from reliable_mq.broker_core.store import recovery
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer
from reliable_mq.wire.record import Record, iter_records

BODY = b"%d, and some more"
KINDS = ["all", "size", "magic", "place", "body length", "body", "topic length", "properties"]


@pytest.fixture(params=[True, False], ids=["looked at by the start", "older"], autouse=True)
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let a start read all of the log, or the last record only."""
    if not request.param:
        monkeypatch.setattr(recovery, "VERIFIED_SIZE", 0)
    return bool(request.param)


def garbage(record: Record, kind: str) -> tuple[int, bytes]:
    """Return where in a record damage of a kind is, and what is there."""
    topic_at = 88 + len(record.body)
    properties_at = topic_at + 1 + len(record.topic)
    places = {
        "all": (0, bytes(record.size)),
        "size": (2, (record.size + 400).to_bytes(2)),  # reaches into others, and is no nonsense
        "magic": (4, b"\xff"),
        "place": (34, b"\xff"),
        "body length": (86, b"\x01"),
        "body": (90, b"\xff\xff"),
        "topic length": (topic_at, b"\x70"),
        "properties": (properties_at, b"\x7f"),
    }
    return places[kind]


def damage(disk: MemoryDisk, record: Record, kind: str, size: int = 256 * 1024) -> None:
    first = record.commit_log_offset // size * size
    at, data = garbage(record, kind)
    place = record.commit_log_offset - first + at
    content = bytearray(disk.files()[f"commitlog/{first:020d}"])
    assert content[place : place + len(data)] != data
    content[place : place + len(data)] = data
    disk.place_file(f"commitlog/{first:020d}", bytes(content))


class LaterWorld(BrokerWorld):
    """A broker that starts at the time at which another one stopped."""

    def __init__(self, before: BrokerWorld) -> None:
        self._start_ms = before.now_ms
        super().__init__(before.disk, **before.properties)

    def start(self) -> None:
        self.now_ms = self._start_ms
        super().start()


def restarted(
    world: BrokerWorld, record: Record, kind: str = "body", *, is_killed: bool = False
) -> BrokerWorld:
    """Stop a broker, damage a record, start another one on the same disk."""
    if not is_killed:
        world.stop()
    damage(world.disk, record, kind)
    return LaterWorld(world)


def assert_named_once(caplog: pytest.LogCaptureFixture, record: Record) -> None:
    (named,) = [line for line in caplog.messages if "damaged" in line]
    assert f"(log offset {record.commit_log_offset}), {record.size} bytes" in named


def a_world() -> BrokerWorld:
    world = BrokerWorld(enablePropertyFilter="true", messageDelayLevel="1s 5s")
    world.create_topic(queues=4)
    return world


def send_some(world: BrokerWorld, count: int = 6) -> list[Record]:
    for number in range(count):
        world.send(BODY % number, KEYS=f"key-{number}", TAGS="red", price=str(number))
        world.now_ms += 1_000
    return world.records(TOPIC)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "selection",
    [
        {},
        {"subscription": "red"},
        {"subscription": "price >= 0", "expressionType": "SQL92"},
        {"maxMsgNums": 2},
    ],
    ids=["all", "by tag", "by property", "in pieces"],
)
def test_a_pull_goes_around_it(
    selection: dict[str, object], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world()
    records = send_some(world)

    again = restarted(world, records[3], kind)

    for _ in range(2):
        bodies, offset = [], 0
        while offset < len(records):
            answer = again.ask(Ask.PULL_MESSAGE, pull_header(offset, **selection))
            bodies += [record.body for record in iter_records(answer.body)]
            offset = int(answer.ext_fields["nextBeginOffset"])
        assert bodies == [record.body for record in records if record is not records[3]]
    assert_named_once(caplog, records[3])


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_is_built_again_around_it(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    world = a_world()
    records = send_some(world)
    world.stop()
    for path in world.disk.paths():
        if path.startswith("index/"):
            world.disk.remove(path)

    again = restarted(world, records[3], kind, is_killed=True)

    for number in (0, 1, 2, 4, 5):
        header = {"topic": TOPIC, "key": f"key-{number}", "maxNum": 9}
        times = {"beginTimestamp": 0, "endTimestamp": 2**62}
        answer = again.ask(Ask.QUERY_MESSAGE, {**header, **times})
        assert [record.body for record in iter_records(answer.body)] == [BODY % number]
    header = {"topic": TOPIC, "key": "key-3", "maxNum": 9}
    assert again.ask(Ask.QUERY_MESSAGE, {**header, **times}).code == Answer.QUERY_NOT_FOUND
    answer = again.ask(Ask.VIEW_MESSAGE_BY_ID, {"offset": records[3].commit_log_offset})
    assert answer.code == Answer.SYSTEM_ERROR
    assert_named_once(caplog, records[3])


@pytest.mark.parametrize("number", range(6))
def test_a_search_by_time_is_not_led_astray(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged message counts as stored with the next one, the last one as later than all."""
    world = a_world()
    records = send_some(world)
    if number == 5:
        world.send(b"in another queue", queue_id=1)

    again = restarted(world, records[number])

    for wanted, record in enumerate(records):
        for asked_ms in (record.store_time_ms, record.store_time_ms - 500):
            header = {"topic": TOPIC, "queueId": 0, "timestamp": asked_ms}
            found = int(again.ask(Ask.SEARCH_OFFSET_BY_TIMESTAMP, header).ext_fields["offset"])
            # Both are right where the damaged one is next: nothing that can be read is left out.
            assert found in ({wanted, wanted + 1} if wanted == number else {wanted, number})
            assert found == wanted or wanted - 1 <= number <= wanted
    assert_named_once(caplog, records[number])


def test_a_delayed_message_is_not_delivered_with_what_was_destroyed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = a_world()
    for number in range(4):
        world.send(BODY % number, DELAY="2")
    broken = world.records(SCHEDULE_TOPIC, 1)[1]

    again = restarted(world, broken)
    again.pass_time(6_000)

    assert [record.body for record in again.records(TOPIC)] == [BODY % n for n in (0, 2, 3)]
    assert_named_once(caplog, broken)


@pytest.mark.parametrize("taken_up", [True, False], ids=["in the wheel", "before the wheel"])
def test_a_timed_message_is_not_delivered_with_what_was_destroyed(
    taken_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world()
    for number in range(4):
        world.send(BODY % number, TIMER_DELAY_MS="5000", UNIQ_KEY=f"U{number}")
    if taken_up:
        world.pass_time(1_500)
    broken = world.records(TIMER_TOPIC)[1]

    again = restarted(world, broken)
    again.pass_time(7_000)

    assert [record.body for record in again.records(TOPIC)] == [BODY % n for n in (0, 2, 3)]
    assert_named_once(caplog, broken)


def test_timed_messages_behind_it_do_not_come_twice_after_a_crash(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was delivered is looked up in the log, from the last checkpoint on."""
    world = a_world()
    for number in range(4):
        world.send(BODY % number, TIMER_DELAY_MS="2000", UNIQ_KEY=f"U{number}")
    world.pass_time(1_000)
    between = world.send(b"between").ext_fields["queueOffset"]
    world.pass_time(1_100)
    assert len(world.records(TOPIC)) == 5
    broken = world.records(TOPIC)[int(between)]

    again = restarted(world, broken, is_killed=True)
    again.pass_time(5_000)

    bodies = [record.body for record in again.records(TOPIC) if record]
    assert bodies == [BODY % number for number in range(4)]
    assert_named_once(caplog, broken)


def test_a_commit_behind_it_is_not_repeated() -> None:
    """Given that the record which names the settled half was destroyed, and one before it."""
    world = a_world()
    halves = [prepare(world, BODY % number, UNIQ_KEY=f"K{number}") for number in range(3)]
    world.send(b"between")
    end(world, ending(halves[1], COMMIT))
    (op,), (between,) = world.records(OP_TOPIC), world.records(TOPIC)
    end(world, ending(halves[2], COMMIT))
    world.stop()
    damage(world.disk, between, "body")

    again = restarted(world, op, is_killed=True)

    assert [offset for offset, _ in again.state.halves.oldest(9)] == [0]
    assert end(again, ending(halves[1], COMMIT)).code == Answer.SUCCESS
    assert [record.body for record in again.records(TOPIC, 3)] == [BODY % 1, BODY % 2]


def test_a_half_that_was_destroyed_is_pending_no_more(caplog: pytest.LogCaptureFixture) -> None:
    world = a_world()
    halves = [prepare(world, BODY % number, UNIQ_KEY=f"K{number}") for number in range(3)]
    broken = world.records(HALF_TOPIC)[1]

    again = restarted(world, broken)

    assert [offset for offset, _ in again.state.halves.oldest(9)] == [0, 2]
    assert end(again, ending(halves[1], COMMIT)).code == Answer.SYSTEM_ERROR
    assert end(again, ending(halves[2], COMMIT)).code == Answer.SUCCESS
    again.pass_time(INTERVAL_MS + 100)
    assert [record.body for record in again.records(TOPIC, 3)] == [BODY % 2]
    assert_named_once(caplog, broken)
