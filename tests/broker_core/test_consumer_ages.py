"""The age of the oldest message that a group has not consumed, as a master's metrics show it."""

from unittest.mock import Mock

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, RETRY_V2, PopWorld

from reliable_mq.broker_core import consumer_ages
from reliable_mq.broker_core.consumer_ages import ConsumerAges
from reliable_mq.broker_core.names import TRANSACTION_GROUP
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.errors import StoreError
from reliable_mq.testing.memory_disk import MemoryDisk


def read(ages: ConsumerAges, now_ms: int) -> dict[tuple[str, ...], float]:
    """Return the age in seconds by group and topic."""
    return {sample.labels: sample.value for sample in ages.samples(now_ms)}


def world_of(*ages_s: int, queues: int = 1) -> BrokerWorld:
    """Return a broker with messages of these ages, of which nobody has consumed anything."""
    world = BrokerWorld()
    world.create_topic(TOPIC, queues=queues)
    begin_ms = world.now_ms
    for number, age_s in enumerate(ages_s):
        world.now_ms = begin_ms + 1000 * (ages_s[0] - age_s)
        world.send(b"m", queue_id=number % queues)
    world.now_ms = begin_ms + 1000 * ages_s[0]
    return world


def test_the_age_is_that_of_the_oldest_unconsumed_message_and_zero_without_one() -> None:
    world = world_of(50, 30, 20)
    ages = ConsumerAges(world.state)
    offsets = world.state.offsets

    assert read(ages, world.now_ms) == {}, "a group without an offset has no figure"
    for offset, age in ((0, 50.0), (1, 30.0), (2, 20.0), (3, 0.0)):
        offsets.commit(GROUP, TOPIC, 0, offset)
        assert read(ages, world.now_ms) == {(GROUP, TOPIC): age}


def test_of_several_queues_the_oldest_message_counts() -> None:
    world = world_of(50, 40, 30, 20, queues=2)
    for queue_id in range(2):
        world.state.offsets.commit(GROUP, TOPIC, queue_id, 1 - queue_id)

    assert read(ConsumerAges(world.state), world.now_ms) == {(GROUP, TOPIC): 40.0}


def test_an_age_grows_while_nothing_is_read_again() -> None:
    world = world_of(50)
    world.state.offsets.commit(GROUP, TOPIC, 0, 0)
    ages = ConsumerAges(world.state)
    read(ages, world.now_ms)

    log = world.state.store.log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(log), "read", lambda *_: pytest.fail("it reads the log again"))
        assert read(ages, world.now_ms + 7_000) == {(GROUP, TOPIC): 57.0}


def test_what_is_popped_and_not_acknowledged_is_not_consumed() -> None:
    world = PopWorld()
    world.send(b"m")
    world.pass_time(100)
    (message,) = world.pop()
    ages = ConsumerAges(world.state)
    before = read(ages, world.now_ms + 60_000)

    world.ack(message)
    world.pass_time(100)

    assert before[GROUP, TOPIC] > 60
    assert read(ages, world.now_ms)[GROUP, TOPIC] == 0


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("is_connected", [False, True])
def test_what_came_back_is_not_consumed_also_before_it_is_popped_again(
    is_connected: bool, is_v2: bool
) -> None:
    """Who pops a topic subscribes to no retry topic, and has no offset there at first."""
    world = PopWorld(enableRetryTopicV2=str(is_v2).lower())
    if is_connected:
        world.subscribe(TOPIC)
    world.send(b"m")
    world.pass_time(100)
    world.pop()
    world.pass_time(2 * INVISIBLE_MS)
    ages = ConsumerAges(world.state)
    retry = RETRY_V2 if is_v2 else RETRY
    before = read(ages, world.now_ms)

    (again,) = world.pop()
    popped = read(ages, world.now_ms)
    world.ack(again)
    world.pass_time(100)

    assert before[GROUP, TOPIC] == 0
    assert 0 < before[GROUP, retry] < 20
    assert popped[GROUP, retry] == before[GROUP, retry]
    assert read(ages, world.now_ms) == {(GROUP, TOPIC): 0, (GROUP, retry): 0}


def test_the_retry_topic_of_another_group_is_not_taken_for_one_of_popped_messages() -> None:
    """Group `payments_orders` has the retry topic that `payments` would have after a pop."""
    world = world_of(50)
    world.subscribe(TOPIC, group=f"{GROUP}_{TOPIC}")
    assert RETRY in world.state.topics.by_name
    world.send(b"failed", topic=RETRY)
    world.state.offsets.commit(GROUP, TOPIC, 0, 1)

    assert read(ConsumerAges(world.state), world.now_ms) == {(GROUP, TOPIC): 0}


def test_a_topic_that_a_connected_group_does_not_subscribe_to_has_no_figure() -> None:
    world = PopWorld()
    world.send(b"m")
    world.pass_time(100)
    world.pop()
    world.pass_time(2 * INVISIBLE_MS)
    world.pop()
    ages = ConsumerAges(world.state)
    assert read(ages, world.now_ms).keys() == {(GROUP, TOPIC), (GROUP, RETRY)}

    world.subscribe("another")

    assert read(ages, world.now_ms) == {}


def test_groups_of_the_broker_itself_have_no_figure_and_a_removed_group_loses_it() -> None:
    world = world_of(50)
    offsets = world.state.offsets
    offsets.commit(GROUP, TOPIC, 0, 0)
    offsets.commit(TRANSACTION_GROUP, TOPIC, 0, 0)
    ages = ConsumerAges(world.state)
    assert read(ages, world.now_ms).keys() == {(GROUP, TOPIC)}

    offsets.remove_group(GROUP)

    assert read(ages, world.now_ms) == {}


def test_a_slave_has_no_figures() -> None:
    world = BrokerWorld(MemoryDisk(), brokerRole="SLAVE", brokerId="1")
    world.state.offsets.commit(GROUP, TOPIC, 0, 0)

    assert read(ConsumerAges(world.state), world.now_ms) == {}


def test_a_turn_looks_at_few_queues_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_ages, "READS_A_TURN", 2)
    world = world_of(50)
    groups = [f"g{number}" for number in range(5)]
    for group in groups:
        world.state.offsets.commit(group, TOPIC, 0, 0)
    ages = ConsumerAges(world.state)

    seen = [len(read(ages, world.now_ms)) for _ in range(4)]

    assert seen[0] < 5
    assert seen[-1] == 5


def test_a_turn_ends_after_a_slow_read_and_the_next_one_goes_on() -> None:
    """The first queues that are read after a start may be on a slow disk."""
    world = world_of(50)
    for number in range(5):
        world.state.offsets.commit(f"g{number}", TOPIC, 0, 0)
    now = [0.0]
    read_at = world.state.store.log.read

    def slowly(offset: int, size: int) -> bytes:
        now[0] += 0.008
        return read_at(offset, size)

    world.state.store.log.read = slowly  # type: ignore[method-assign]
    ages = ConsumerAges(world.state, lambda: now[0])

    for turn in range(1, 6):
        read(ages, world.now_ms)
        assert now[0] == pytest.approx(0.008 * turn), "one read in a turn"
    assert len(read(ages, world.now_ms)) == 5


def test_a_file_that_cannot_be_read_takes_no_other_figure_and_is_tried_again() -> None:
    """A process without a free descriptor cannot open it. All figures of a broker fail together."""
    world = world_of(50, 40, 30, queues=2)
    for group in ("early", GROUP):
        for queue_id in range(2):
            world.state.offsets.commit(group, TOPIC, queue_id, 0)
    ages = ConsumerAges(world.state)
    read(ages, world.now_ms)
    world.state.offsets.commit(GROUP, TOPIC, 0, 1)
    world.state.offsets.commit("late", TOPIC, 0, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConsumeQueue, "unit", Mock(side_effect=StoreError("too many open files")))
        meanwhile = read(ages, world.now_ms)

    assert meanwhile == {("early", TOPIC): 50, (GROUP, TOPIC): 50, ("late", TOPIC): 0}
    assert read(ages, world.now_ms) == {
        ("early", TOPIC): 50,
        (GROUP, TOPIC): 40,
        ("late", TOPIC): 30,
    }


def test_only_so_many_pairs_of_group_and_topic_have_a_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_ages, "PAIRS_MAX", 3)
    world = world_of(50)
    for number in range(5):
        world.state.offsets.commit(f"g{number}", TOPIC, 0, 0)

    assert len(read(ConsumerAges(world.state), world.now_ms)) == 3
