"""Records of checkpoints that are acknowledged as a whole are not read; all others are."""

from typing import NamedTuple

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, there
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, PopWorld, Taken
from tests.broker_core.test_pop_restarts import note_timers, send_some

from reliable_mq.broker_core.delivery import settled_records
from reliable_mq.broker_core.delivery.revival import Revival
from reliable_mq.broker_core.delivery.settled_records import SettledRecords
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.pop_records import CheckpointKey, PopCheckpoint
from reliable_mq.wire.record import Record

KEY = CheckpointKey(TOPIC, GROUP, 0, 100, 5_000, "b")


class Watched(NamedTuple):
    """A world with timers, and the tags of the records that they hand over."""

    world: PopWorld
    tags: list[str]

    def came_back(self) -> list[bytes]:
        return [record.body for record in self.world.records(RETRY)]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    tags: list[str] = []
    take = Revival.take

    def taken(revival: Revival, record: Record, tag: str, position: int = -1) -> None:
        tags.append(tag)
        take(revival, record, tag, position)

    world = PopWorld()
    world.send(b"opens the timers")
    (first,) = world.pop()
    world.ack(first)
    world.pass_time(2 * INVISIBLE_MS)
    monkeypatch.setattr(Revival, "take", taken)
    return Watched(world, tags)


def popped(world: PopWorld, count: int, **changes: object) -> list[Taken]:
    """Send some messages, pop them, and let the timers take their checkpoint up."""
    send_some(world, count)
    messages = world.pop(**changes)
    assert len(messages) == count
    world.pass_time(200)
    return messages


def test_records_of_an_acknowledged_checkpoint_are_not_read(watched: Watched) -> None:
    world, tags = watched.world, watched.tags
    for message in popped(world, 5):
        world.ack(message)

    world.pass_time(3 * INVISIBLE_MS)

    assert not tags
    assert not watched.came_back()
    assert world.state.timers.checkpoint(world.now_ms).read_ms > world.now_ms - 2_000


def test_acknowledgements_at_once_with_the_pop_are_not_read_either(watched: Watched) -> None:
    world = watched.world
    send_some(world, 3)
    for message in world.pop():
        world.ack(message)

    world.pass_time(2 * INVISIBLE_MS)

    assert not watched.tags


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("passed_ms", [INVISIBLE_MS - 2_100, INVISIBLE_MS - 600])
def test_without_the_last_acknowledgement_all_are_read_and_the_message_comes_back(
    watched: Watched, passed_ms: int, *, is_killed: bool
) -> None:
    world = watched.world
    *others, _ = popped(world, 3)
    for message in others:
        world.ack(message)
    if is_killed:
        world.pass_time(passed_ms, step=20)
        note_timers(world)
        world.restart(is_killed=True)

    world.pass_time(2 * INVISIBLE_MS)

    assert watched.came_back() == [b"2"]
    assert set(watched.tags) == {"ack", "ck"}


@pytest.mark.parametrize("left_ms", [3_500, 2_500, 1_500, 900, 500, 100])
def test_an_acknowledgement_shortly_before_the_end_counts_for_all(
    watched: Watched, left_ms: int
) -> None:
    world = watched.world
    first, *others = popped(world, 3)
    for message in others:
        world.ack(message)
    world.pass_time(INVISIBLE_MS - 200 - left_ms, step=20)
    world.ack(first)

    world.pass_time(2 * INVISIBLE_MS, step=50)

    assert not watched.came_back()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("passed_ms", [*range(6_600, 10_400, 400)])
def test_nothing_comes_back_if_the_broker_ends_between_the_slots(
    watched: Watched, passed_ms: int, *, is_killed: bool
) -> None:
    world = watched.world
    for message in popped(world, 3):
        world.ack(message)
    world.pass_time(passed_ms, step=20)
    note_timers(world)
    world.restart(is_killed=is_killed)

    world.pass_time(3 * INVISIBLE_MS)

    assert not watched.came_back()


def test_what_is_popped_again_in_the_same_millisecond_comes_back(watched: Watched) -> None:
    world = watched.world
    send_some(world, 2)
    first = world.pop()
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": START_MS + 2_000, "isForce": "true"}
    assert world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == 0
    again = world.pop()
    assert again[0].handle.popped_ms == first[0].handle.popped_ms
    world.ack(first[0])

    world.pass_time(2 * INVISIBLE_MS)

    assert watched.came_back() == [b"1"]


def test_an_extension_counts_as_an_acknowledgement_of_its_checkpoint(watched: Watched) -> None:
    world = watched.world
    first, second = popped(world, 2)
    assert world.extend(first, 3 * INVISIBLE_MS).code == 0
    world.ack(second)

    world.pass_time(2 * INVISIBLE_MS)
    assert not watched.tags
    assert not watched.came_back()
    world.pass_time(2 * INVISIBLE_MS)

    assert watched.came_back() == [b"0"]


def test_after_a_checkpoint_that_is_taken_up_late_all_are_read(watched: Watched) -> None:
    world = watched.world
    for message in popped(world, 2):
        world.ack(message)
    world.pass_time(200)
    (late,) = popped(world, 1, invisibleTime=500)  # the timers have passed its time

    world.pass_time(2 * INVISIBLE_MS)

    assert sorted(watched.tags) == ["ack", "ack", "ck", "ck"]
    assert watched.came_back() == [late.body]


def test_acknowledgements_with_another_time_are_read(watched: Watched) -> None:
    world = watched.world
    first, second = popped(world, 2)
    world.ack(first)
    world.ack(second._replace(handle=second.handle._replace(invisible_ms=INVISIBLE_MS - 1_000)))

    world.pass_time(2 * INVISIBLE_MS)

    assert "ck" in watched.tags


@pytest.mark.parametrize("limit", ["_OPEN_MAX", "_PLACES_MAX", "_RECORDS_MAX"])
def test_what_has_no_room_is_read(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(settled_records, limit, 2)
    world = watched.world
    messages = [message for _ in range(3) for message in popped(world, 3)]
    for message in messages:
        world.ack(message)

    world.pass_time(2 * INVISIBLE_MS)

    assert "ck" in watched.tags
    assert not watched.came_back()


def settled_at(place: int, *, slot_ms: int, settled: SettledRecords) -> None:
    """Let a checkpoint of one message be settled whose record is due in a slot."""
    key = KEY._replace(start_offset=place, popped_ms=slot_ms + 1)
    settled.popped(PopCheckpoint(key, 1_000, (place,)), 7, place)
    settled.acknowledged(key, key.popped_ms + 1_000, (place,), place + 1)
    settled.add(8, 0)
    settled.invariants()


def test_places_are_told_once_by_slot() -> None:
    settled = SettledRecords(1_000)
    settled_at(500, slot_ms=4_000, settled=settled)
    settled_at(700, slot_ms=5_000, settled=settled)

    assert settled.take(4_000) == {500}
    assert settled.take(5_000) == {501, 700}
    assert settled.take(6_000) == {701}
    assert not settled.take(6_000)
    settled.invariants()


def test_slots_that_were_passed_give_their_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_records, "_PLACES_MAX", 4)
    settled = SettledRecords(1_000)
    for place, slot_ms in ((100, 4_000), (200, 4_000), (300, 9_000)):
        settled_at(place, slot_ms=slot_ms, settled=settled)
    assert not settled.take(9_000)

    key = KEY._replace(popped_ms=11_001)
    settled.popped(PopCheckpoint(key, 1_000, (100,)), 7, 900)
    settled.acknowledged(key, 12_001, (100,), 901)
    settled.add(8, 6_000)

    assert settled.take(11_000) == {900}
    assert settled.take(12_000) == {901}
    settled.invariants()


@pytest.mark.parametrize(
    ("offsets", "acked"), [((100, 100 + 5_000), (100,)), ((100, 101), (100, 2**62, -5, 99))]
)
def test_offsets_far_away_settle_nothing(offsets: tuple[int, ...], acked: tuple[int, ...]) -> None:
    settled = SettledRecords(1_000)
    settled.popped(PopCheckpoint(KEY, 1_000, offsets), 7, 500)
    settled.acknowledged(KEY, 6_000, acked, 600)
    settled.add(8, 0)

    assert not settled.take(4_000)
    assert not settled.take(5_000)


def test_with_slots_longer_than_the_time_between_both_nothing_is_followed() -> None:
    settled = SettledRecords(2_000)
    settled_at(500, slot_ms=4_000, settled=settled)

    assert not settled.take(4_000)


def test_a_settled_checkpoint_waits_until_the_timers_have_taken_it_up() -> None:
    settled = SettledRecords(1_000)
    settled.popped(PopCheckpoint(KEY, 1_000, (100,)), 7, 500)
    settled.acknowledged(KEY, 6_000, (100,), 600)
    settled.add(7, 0)
    assert not settled.take(4_000)

    settled.add(8, 4_000)
    assert not settled.take(4_000)  # its slot was loaded before
    assert not settled.take(5_000)


def test_few_settled_checkpoints_wait_for_timers_that_take_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settled_records, "_OPEN_MAX", 2)
    settled = SettledRecords(1_000)
    for number, place in enumerate((100, 200, 300)):
        key = KEY._replace(start_offset=place)
        settled.popped(PopCheckpoint(key, 1_000, (place,)), number, place)
        settled.acknowledged(key, 6_000, (place,), place + 1)
    settled.add(3, 0)

    assert settled.take(4_000) == {100, 200}
    assert settled.take(5_000) == {101, 201}


def test_a_wrong_count_of_places_is_noticed() -> None:
    settled = SettledRecords(1_000)
    settled_at(500, slot_ms=4_000, settled=settled)
    there(settled._places[4_000]).append(1)

    with pytest.raises(InvariantBroken, match="Y4: 3 places, 2 are counted"):
        settled.invariants()
