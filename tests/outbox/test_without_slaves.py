"""The relay, when a master has stored a message and too few slaves have."""

import pytest
from tests.outbox.test_relay import World

from reliable_mq.message import SendStatus
from reliable_mq.outbox.stub import Stub

WITHOUT_SLAVE = (SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE)


@pytest.fixture
def world() -> World:
    return World()


def accept(world: World, *names: str, key: str = "", groups: tuple[str, ...] = ()) -> None:
    stubs = [
        Stub(
            seq=seq,
            message_id=name,
            topic="t",
            content=b"x",
            ordering_key=key,
            required_groups=groups,
        )
        for seq, name in enumerate(names)
    ]
    world.book.there |= set(names)
    world.relay.accept(stubs, 0.0)


@pytest.mark.parametrize("status", WITHOUT_SLAVE)
def test_what_a_master_stored_without_a_slave_counts_as_sent_while_groups_are_awaited(
    world: World, status: SendStatus
) -> None:
    accept(world, "k1", "k2", key="k", groups=("payments",))
    world.broker.status_of["k1"] = status

    counts = world.relay.run_once(1.0)

    assert (counts.sent, counts.failed) == (2, 0)
    assert [each.message_id for each in world.book.outcomes if each.position] == ["k1", "k2"]


@pytest.mark.parametrize("status", WITHOUT_SLAVE)
def test_without_groups_only_a_whole_acknowledgement_confirms(
    world: World, status: SendStatus
) -> None:
    accept(world, "a")
    world.broker.status_of["a"] = status

    counts = world.relay.run_once(1.0)

    assert (counts.sent, counts.failed) == (0, 1)
    (outcome,) = world.book.outcomes
    assert f"{status.name}: the master has stored it" in (outcome.error or "")
    assert "start its slaves" in (outcome.error or "")
