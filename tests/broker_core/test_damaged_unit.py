"""A unit of a consume queue that is damaged: the log has the message, so every reader gets it."""

from collections.abc import Callable

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, pull_header

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.record import iter_records

COUNT = 12
QUEUE_FILE = f"consumequeue/{TOPIC}/0/{0:020d}"
BODIES = [b"%05d" % number for number in range(COUNT)]


def inverted(unit: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in unit)


def one_off(unit: bytes) -> bytes:
    return unit[:7] + bytes([unit[7] ^ 1]) + unit[8:]


def behind_the_log(unit: bytes) -> bytes:
    return b"\0\x01" + unit[2:]


def within_the_first_record(unit: bytes) -> bytes:
    return (1).to_bytes(8) + unit[8:]


def zeros(_unit: bytes) -> bytes:
    return bytes(20)


def another_size(unit: bytes) -> bytes:
    return unit[:8] + (int.from_bytes(unit[8:12]) + 90).to_bytes(4) + unit[12:]


CHANGES = [inverted, one_off, behind_the_log, within_the_first_record, zeros, another_size]


def damage(world: BrokerWorld, number: int, change: Callable[[bytes], bytes], path: str) -> None:
    """Change a unit under a running broker, as a medium may: its start does not see it."""
    file = world.disk.open(path, 20_000)
    unit = file.copy(number * 20, 20)
    assert change(unit) != unit
    file.write(number * 20, (change(unit),))


def a_world() -> BrokerWorld:
    world = BrokerWorld(enablePropertyFilter="true", messageDelayLevel="1s 5s")
    world.create_topic(queues=4)
    for number in range(COUNT):
        world.send(BODIES[number], TAGS="red", price=str(number))
        world.send(b"other", queue_id=1, TAGS="red", price="1")
        world.now_ms += 1_000
    world.state.store.upkeep.flush()
    return world


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("number", [0, 5, COUNT - 1])
@pytest.mark.parametrize(
    "selection",
    [
        {},
        {"subscription": "red"},
        {"subscription": "price >= 0", "expressionType": "SQL92"},
        {"maxMsgNums": 1},
    ],
    ids=["all", "by tag", "by property", "one by one"],
)
def test_a_pull_gets_the_message_whose_unit_is_damaged(
    selection: dict[str, object],
    number: int,
    change: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = a_world()
    damage(world, number, change, QUEUE_FILE)

    for _ in range(2):
        bodies, offset = [], 0
        while offset < COUNT:
            answer = world.ask(Ask.PULL_MESSAGE, pull_header(offset, **selection))
            bodies += [record.body for record in iter_records(answer.body)]
            offset = int(answer.ext_fields["nextBeginOffset"])
        assert bodies == BODIES
    (named,) = caplog.messages
    assert named.startswith(f"{QUEUE_FILE}: the unit of message {number} was damaged")


def test_a_search_by_time_gets_around_a_damaged_unit() -> None:
    world = a_world()
    times = [record.store_time_ms for record in world.records(TOPIC)]
    for number in range(COUNT):
        damage(world, number, inverted, QUEUE_FILE)
        header = {"topic": TOPIC, "queueId": 0, "timestamp": times[number]}
        answer = world.ask(Ask.SEARCH_OFFSET_BY_TIMESTAMP, header)
        assert answer.ext_fields["offset"] == str(number)


def test_a_delayed_message_whose_unit_is_damaged_is_delivered() -> None:
    world = a_world()
    for body in BODIES[:3]:
        world.send(body, DELAY="2", queue_id=2)
    world.state.store.upkeep.flush()
    path = f"consumequeue/{SCHEDULE_TOPIC}/1/{0:020d}"
    damage(world, 1, behind_the_log, path)

    world.pass_time(6_000)

    assert [record.body for record in world.records(TOPIC, 2)] == BODIES[:3]


def test_a_unit_without_a_message_in_the_log_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = a_world()
    record = world.records(TOPIC)[5]
    file = world.disk.open(f"commitlog/{0:020d}", 256 * 1024)
    file.write(record.commit_log_offset, (bytes(record.size),))
    damage(world, 5, behind_the_log, QUEUE_FILE)

    for _ in range(2):
        answer = world.ask(Ask.PULL_MESSAGE, pull_header(0))
        bodies = [one.body for one in iter_records(answer.body)]
        assert bodies == BODIES[:5] + BODIES[6:]
    (named,) = caplog.messages
    assert "the unit of message 5 is damaged" in named
    assert "the log has no such message" in named
