"""Offsets while the master is away: committed at a slave, and at the master when it is back."""

from tests.client.test_assignment import UPDATE, only_a_slave, world_and_group

from reliable_mq.client.consuming.assignment import keep_ready, rebalance
from reliable_mq.client.consuming.offsets import commit


def test_offsets_are_committed_at_a_slave_and_at_the_master_again_when_it_is_back() -> None:
    """The slave tells its master, too; but the slave may be gone by then."""
    world, group = world_and_group(ordered=False)
    world.play(rebalance(group))
    master = group.master_of("a")
    only_a_slave(group)
    assert world.play(keep_ready(group))
    world.play(commit(group, group.assigned))
    committed = len(world.calls_of(UPDATE))
    assert {call.address for call in world.calls_of(UPDATE)} == {"slave:10911"}
    world.play(commit(group, group.assigned))
    assert len(world.calls_of(UPDATE)) == committed == len(list(group.assigned))

    group.routes.broker("a").addresses[0] = master  # type: ignore[union-attr, assignment]
    world.play(commit(group, group.assigned))
    world.play(commit(group, group.assigned))

    assert [call.address for call in world.calls_of(UPDATE)[committed:]] == [master] * committed
