"""Routes while a master is away: its slave with the smallest id stands for it, where that is on."""

from collections.abc import Iterator

import pytest
from tests.name_server.test_routes import World

from reliable_mq.wire.codes import RequestCode as Ask

MASTER, FIRST, SECOND = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.ask(Ask.UPDATE_NAMESRV_CONFIG, {}, b"supportActingMaster=true")
    yield world
    world.core.routes.invariants()


def all_three(world: World, acting: str = "true") -> None:
    world.register("t", address=MASTER, enableActingMaster=acting)
    world.register("t", address=FIRST, number=1, of=2, enableActingMaster=acting)
    world.register("t", address=SECOND, number=2, of=3, enableActingMaster=acting)


def lose(world: World, connection: int) -> None:
    world.core.routes.disconnected(connection)


def test_the_slave_with_the_smallest_id_stands_for_a_master_that_is_away(world: World) -> None:
    all_three(world)
    assert world.addresses("t") == {"b": {"0": MASTER, "1": FIRST, "2": SECOND}}

    lose(world, 1)
    assert world.addresses("t") == {"b": {"0": FIRST, "2": SECOND}}
    assert world.permissions("t") == {"b": 4}, "nobody may send"
    lose(world, 2)
    assert world.addresses("t") == {"b": {"0": SECOND}}

    world.register("t", address=MASTER, of=4, enableActingMaster="true")
    assert world.addresses("t") == {"b": {"0": MASTER, "2": SECOND}}
    assert world.permissions("t") == {"b": 6}


@pytest.mark.parametrize(("setting", "acting"), [("false", "true"), ("true", "false")])
def test_nobody_stands_for_a_master_unless_brokers_and_name_server_want_it(
    world: World, setting: str, acting: str
) -> None:
    world.ask(Ask.UPDATE_NAMESRV_CONFIG, {}, f"supportActingMaster={setting}".encode())
    all_three(world, acting)
    lose(world, 1)
    assert world.addresses("t") == {"b": {"1": FIRST, "2": SECOND}}


def test_a_topic_that_may_be_written_has_no_acting_master(world: World) -> None:
    """A client would send to a slave."""
    all_three(world)
    lose(world, 1)
    world.ask(Ask.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
    assert world.addresses("t") == {"b": {"1": FIRST, "2": SECOND}}


@pytest.mark.parametrize(("acting", "perm"), [("true", 4), ("false", 6)])
def test_a_name_server_that_starts_without_a_master_gets_the_topics_from_its_first_slave(
    world: World, acting: str, perm: int
) -> None:
    world.register("late", address=SECOND, number=2, enableActingMaster=acting)
    assert world.permissions("late") == {"b": perm}
    world.register("t", address=FIRST, number=1, of=2, enableActingMaster=acting)
    world.register("other", address=SECOND, number=2, counter=2, enableActingMaster=acting)
    assert world.permissions("t") == {"b": perm}
    assert world.addresses("other") == {}, "it is not the first slave any more"


def test_a_slave_of_rocketmq_4_brings_no_topics(world: World) -> None:
    world.register("t", address=FIRST, number=1)
    assert world.addresses("t") == {}
