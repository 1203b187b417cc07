"""A record that is damaged while the broker runs is skipped and named; the rest is served."""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, pull_header, there

from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.record import iter_records


def damage(world: BrokerWorld, number: int, at: int, size: int = 4) -> int:
    """Overwrite a part of a message's record; return where it is in the log."""
    offset: int = there(world.state.store.queue(TOPIC, 0)).unit(number).commit_log_offset
    _first, segment = world.state.store.log.segment_at(offset)
    segment.write(offset + at, (b"\xff" * size,))
    return offset


@pytest.mark.parametrize("at", [0, 4])  # its size, its magic
def test_a_pull_goes_around_a_damaged_record_and_the_log_names_it_once(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = BrokerWorld()
    for number in range(5):
        world.send(b"%d" % number + bytes(at))
    offset = damage(world, 2, at)
    for _ in range(2):
        answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(0))
        bodies = [record.body[:1] for record in iter_records(answer.body)]
        assert bodies == [b"0", b"1", b"3", b"4"]
        assert answer.ext_fields["nextBeginOffset"] == "5"
    named = [line for line in caplog.messages if f"(log offset {offset})" in line]
    assert len(named) == 1
    assert "commitlog/00000000000000000000" in named[0]


def test_a_pull_that_meets_nothing_but_damage_is_led_behind_it() -> None:
    world = BrokerWorld()
    for _ in range(2):
        world.send(b"x" * 2000)
    for number in range(2):
        damage(world, number, 0, 60)
    answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(0))
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext_fields["nextBeginOffset"] == "2"


def test_the_index_goes_on_behind_a_damaged_record() -> None:
    world = BrokerWorld()
    for number in range(3):
        world.send(b"x", KEYS=f"key-{number}")
    damage(world, 1, 0, 60)
    world.pass_time(100)
    assert world.state.store.is_indexed
    found = there(world.state.store.index).select(TOPIC, "key-2", 10, 0, 2**62)
    assert len(found.offsets) == 1


def test_a_pull_finds_the_message_of_a_unit_that_points_behind_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = BrokerWorld()
    for number in range(3):
        world.send(b"%d" % number)
    world.state.store.upkeep.flush()
    queue_file = world.disk.open("consumequeue/orders/0/00000000000000000000", 20_000)
    queue_file.write(20, ((2**40 + 7).to_bytes(8),))

    for _ in range(2):
        answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(0))
        assert [record.body for record in iter_records(answer.body)] == [b"0", b"1", b"2"]
        assert answer.ext_fields["nextBeginOffset"] == "3"
    (named,) = caplog.messages
    assert "the unit of message 1 was damaged" in named


def test_the_last_record_may_be_damaged_and_what_comes_behind_it_is_not_suspected() -> None:
    world = BrokerWorld()
    for number in range(3):
        world.send(b"%d" % number)
    damage(world, 2, 0, 60)
    for number in range(3, 6):
        answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(0))
        world.send(b"%d" % number)
    answer = world.ask(RequestCode.PULL_MESSAGE, pull_header(0))
    assert [record.body for record in iter_records(answer.body)] == [b"0", b"1", b"3", b"4", b"5"]
    log = world.state.store.log
    assert log.damage.is_excluded(there(world.state.store.queue(TOPIC, 0)).unit(3)[0], log.end)
