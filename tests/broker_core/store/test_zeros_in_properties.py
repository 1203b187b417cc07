"""Zero bytes among properties: the client's own stay, those of a lost sector end the log."""

from random import Random

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld

from reliable_mq.testing.memory_disk import SECTOR
from reliable_mq.wire.codes import ResponseCode

SEGMENT = "commitlog/" + "0" * 20
KEY = "K" * 32


def bodies(world: BrokerWorld) -> list[bytes]:
    return [record.body for record in world.records(TOPIC)]


@pytest.mark.parametrize("note", ["a\0b", "\0", "a\0" * 300])
@pytest.mark.parametrize("seed", range(3))
def test_a_zero_byte_that_a_client_sent_costs_no_message_behind_it(note: str, seed: int) -> None:
    world = BrokerWorld()
    world.create_topic()
    world.state.store.checkpoint()
    for body, text in ((b"one", ""), (b"two", note), (b"three", "")):
        assert world.send(body, UNIQ_KEY=KEY, note=text).code == ResponseCode.SUCCESS
    world.disk.lose_power(Random(seed))
    assert bodies(BrokerWorld(world.disk)) == [b"one", b"two", b"three"]


def test_zeros_of_a_body_say_nothing_about_the_properties_behind_them() -> None:
    """The checksum of a record covers its body."""
    for more in range(0, SECTOR, 101):
        world = BrokerWorld()
        world.create_topic()
        world.state.store.checkpoint()
        body = bytes(3 * SECTOR + more)
        world.send(body, UNIQ_KEY=KEY, note="a\0b")
        world.disk.lose_power(Random(1))
        assert bodies(BrokerWorld(world.disk)) == [body]


@pytest.mark.parametrize("lost", [SECTOR, 8 * SECTOR])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_lost_sector_or_page_among_properties_ends_the_log(lost: int, is_last: bool) -> None:
    for shift in range(0, SECTOR, 57):
        world = BrokerWorld()
        world.create_topic()
        world.state.store.checkpoint()
        world.send(b"one", UNIQ_KEY=KEY)
        begin = world.state.store.log.end
        world.send(b"two" + b"b" * shift, UNIQ_KEY=KEY, note="n" * 12_000)
        end = world.state.store.log.end
        world.send(b"three", UNIQ_KEY=KEY)
        first = -(-(begin + 200 + shift) // lost) * lost
        file = world.disk.open(SEGMENT, world.disk.size_of(SEGMENT))
        file.write(end // lost * lost if is_last else first, (bytes(lost),))
        file.sync()
        world.disk.lose_power(Random(1))
        assert bodies(BrokerWorld(world.disk)) == [b"one"], (shift, begin, end)


def world_with_zeros_up_to_a_sector_end(zeros: int) -> BrokerWorld:
    """Return a world whose second message has so many zeros there, after a loss of power."""
    world = BrokerWorld()
    world.create_topic()
    world.state.store.checkpoint()
    world.send(b"one", UNIQ_KEY=KEY)
    begin = world.state.store.log.end
    world.send(b"two", UNIQ_KEY=KEY, note="n" * 2_000)
    file = world.disk.open(SEGMENT, world.disk.size_of(SEGMENT))
    sector_end = -(-(begin + 1_000) // SECTOR) * SECTOR
    file.write(sector_end - zeros, (bytes(zeros),))
    file.sync()
    world.disk.lose_power(Random(1))
    return world


def test_a_sector_that_the_medium_took_half_written_ends_the_log() -> None:
    """The medium takes a sector while a record is written into it, and the next one later."""
    for zeros in range(16, SECTOR):
        world = world_with_zeros_up_to_a_sector_end(zeros)
        assert bodies(BrokerWorld(world.disk)) == [b"one"], zeros


def test_a_few_zeros_at_the_end_of_a_sector_are_the_client_s() -> None:
    for zeros in range(1, 16):
        world = world_with_zeros_up_to_a_sector_end(zeros)
        assert bodies(BrokerWorld(world.disk)) == [b"one", b"two"], zeros


def test_a_write_that_ended_among_properties_ends_the_log() -> None:
    for missing in range(1, 1100, 7):
        world = BrokerWorld()
        world.create_topic()
        world.state.store.checkpoint()
        world.send(b"one", UNIQ_KEY=KEY)
        world.send(b"two", UNIQ_KEY=KEY, note="n" * 2_000)
        file = world.disk.open(SEGMENT, world.disk.size_of(SEGMENT))
        file.write(world.state.store.log.end - missing, (bytes(missing),))
        file.sync()
        world.disk.lose_power(Random(1))
        assert bodies(BrokerWorld(world.disk)) == [b"one"], missing
