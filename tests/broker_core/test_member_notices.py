"""Members of a group learn that it has changed; a large group costs no more than a small one."""

from collections import Counter

from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld

from reliable_mq.wire.codes import RequestCode

MEMBERS = 300


def notices(world: BrokerWorld) -> Counter[int]:
    """Take the notices to each connection out of the inboxes."""
    found: Counter[int] = Counter()
    for of, inbox in world.inbox.items():
        told = [each for each in inbox if each.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
        found[of] = len([each for each in told if not each.is_reply])
    world.inbox.clear()
    return +found


def join(world: BrokerWorld, number: int) -> None:
    assert world.subscribe(TOPIC, of=number).code == 0


def test_the_members_of_a_small_group_are_told_of_each_change_at_once(world: BrokerWorld) -> None:
    world.create_topic()
    for number in range(1, 4):
        join(world, number)
    assert notices(world) == {1: 3, 2: 2, 3: 1}


def test_a_crowd_that_joins_is_told_a_few_times_and_not_of_each_other(world: BrokerWorld) -> None:
    world.create_topic()
    for number in range(1, MEMBERS + 1):
        join(world, number)
    assert notices(world).total() < 200
    world.core.tick(world.now_ms)
    world.finish_turn()
    assert 50 < notices(world).total() <= 100, "a tick tells only some"

    world.pass_time(1_000, step=20)
    first = notices(world)
    assert first.total() < 2 * MEMBERS
    world.pass_time(1_000, step=20)
    assert not notices(world)


def test_each_member_of_a_crowd_learns_of_the_last_change(world: BrokerWorld) -> None:
    world.create_topic()
    for number in range(1, MEMBERS + 1):
        join(world, number)
    world.pass_time(1_000, step=20)
    notices(world)
    world.core.tick(world.now_ms)
    join(world, MEMBERS + 1)
    world.core.tick(world.now_ms)  # some are told already
    join(world, MEMBERS + 2)
    world.pass_time(1_000, step=20)
    told = notices(world)
    assert set(told) == set(range(1, MEMBERS + 3))
    group = world.state.clients.consumer_group(GROUP)
    assert group is not None
    assert len(group.members) == MEMBERS + 2
