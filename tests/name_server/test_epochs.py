"""One master of a name: the one with the newest epoch, and without epochs as Apache does it."""

from typing import Any

import pytest
from tests.name_server.test_routes import ONE, TWO, World, world

from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.headers import SECOND_MASTER

__all__ = ["world"]


def test_a_promoted_master_replaces_the_former_one_which_stays_out(world: World) -> None:
    world.register("orders", address=ONE, brokerEpoch=0)
    world.register("orders", address=TWO, of=2, brokerEpoch=1)
    assert world.addresses("orders") == {"b": {"0": TWO}}

    refused = world.register("orders", address=ONE, brokerEpoch=0)

    assert refused.code == Code.SYSTEM_ERROR
    assert refused.ext_fields == {SECOND_MASTER: "true"}
    assert refused.remark == (
        f"{ONE} is a former master of b: it has epoch 0, and epoch 1 of {TWO} is known"
    )
    assert world.addresses("orders") == {"b": {"0": TWO}}


def test_a_former_master_stays_out_also_while_the_promoted_one_is_away(world: World) -> None:
    world.register("orders", address=TWO, of=2, brokerEpoch=1)
    world.core.routes.disconnected(2)

    assert world.register("orders", address=ONE, brokerEpoch=0).code == Code.SYSTEM_ERROR
    assert world.addresses("orders") == {}
    assert world.register("orders", address=TWO, of=2, brokerEpoch=1).code == Code.SUCCESS


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, None), (None, 0)])
@pytest.mark.parametrize("number", [0, 1])
def test_with_an_epoch_on_one_side_a_second_broker_of_one_id_is_refused(
    world: World, number: int, first: int | None, second: int | None
) -> None:
    epochs: list[dict[str, Any]] = [
        {} if each is None else {"brokerEpoch": each} for each in (first, second)
    ]
    world.register("orders", address=ONE, number=number, **epochs[0])
    refused = world.register("orders", address=TWO, number=number, of=2, **epochs[1])
    assert refused.code == Code.SYSTEM_ERROR
    assert f"broker id {number} of b is taken by {ONE}" in (refused.remark or "")

    world.core.routes.disconnected(1)
    again = world.register("orders", address=TWO, number=number, of=2, **epochs[1])
    assert again.code == Code.SUCCESS


def test_without_epochs_the_newer_registration_replaces_the_older_one(world: World) -> None:
    world.register("orders", address=ONE)
    world.register("orders", address=TWO, of=2)
    assert world.addresses("orders") == {"b": {"0": TWO}}


def test_a_broker_that_registers_again_is_no_second_one(world: World) -> None:
    for _ in range(2):
        assert world.register("orders", brokerEpoch=1).code == Code.SUCCESS
    assert world.register("orders", brokerEpoch=2, of=3).code == Code.SUCCESS


def test_names_and_their_epochs_are_bounded(world: World) -> None:
    epochs = world.core.routes._epochs
    epochs._most = 3
    for number in range(10):
        world.register(name=f"n{number}", address=f"10.0.0.1:{number}", of=number, brokerEpoch=1)
    assert len(epochs._newest) == 3
