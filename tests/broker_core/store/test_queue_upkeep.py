"""Many consume queues at once: written and synced a few at a time, and none forgotten."""

from tests.broker_core.broker_world import BrokerWorld

QUEUES = 100


def test_queues_are_written_and_synced_in_slices_and_a_checkpoint_does_the_rest(
    world: BrokerWorld,
) -> None:
    store, upkeep = world.state.store, world.state.store.upkeep
    store.begin_checkpoint()()
    for number in range(QUEUES):
        world.send(topic=f"topic-{number}")
    assert (upkeep.unwritten, upkeep.unsynced) == (QUEUES, 0)

    upkeep.flush_some(30)
    assert (upkeep.unwritten, upkeep.unsynced) == (QUEUES - 30, 30)
    assert len(upkeep.take_unsynced(20)) == 20
    assert upkeep.unsynced == 10
    operations = len(world.disk.operations)
    store.begin_checkpoint()()

    assert (upkeep.unwritten, upkeep.unsynced) == (0, 0)
    synced = [one.path for one in world.disk.operations[operations:] if one.verb == "sync"]
    assert sum(path.startswith("consumequeue/") for path in synced) == QUEUES - 20
