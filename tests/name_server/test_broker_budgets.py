"""What brokers may cost a name server: how many there are, what is kept of them, how they go."""

import time
from collections.abc import Iterator

import pytest
from tests.name_server.test_routes import ONE, TWO, World, broker, compressed

from reliable_mq.limits import (
    BROKER_LIFETIME_MS_MAX,
    BROKERS_MAX,
    BROKERS_OF_CONNECTION_MAX,
    REGISTERED_NAME_LENGTH_MAX,
)
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

_TOPICS = 200_000
_SECONDS_MAX = 0.15  # of this thread; with a look at each topic for each broker: 1 s


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.core.routes.invariants()


def register_strangers(world: World, count: int, *, of: int, first: int = 0) -> list[int]:
    """Register brokers without topics over one connection; return the codes of the answers."""
    return [
        world.ask(
            Ask.REGISTER_BROKER,
            {**broker(f"stranger-{number}", f"10.1.0.1:{number}"), "heartbeatTimeoutMillis": 50},
            of=of,
        ).code
        for number in range(first, first + count)
    ]


def register_many_topics(world: World) -> None:
    lines = [b"topic-%06d 4 3 6 SINGLE_TAG" % number for number in range(_TOPICS)]
    header = {**broker("b", ONE), "compressed": "true"}
    assert world.ask(Ask.REGISTER_BROKER, header, compressed(*lines)).code == Code.SUCCESS


@pytest.mark.parametrize("end", ["its connection ends", "they are silent", "they go"])
def test_brokers_without_topics_go_at_no_cost_however_many_topics_others_have(
    world: World, end: str
) -> None:
    register_many_topics(world)
    register_strangers(world, BROKERS_OF_CONNECTION_MAX, of=2)
    begin = time.thread_time()
    if end == "its connection ends":
        world.core.routes.disconnected(2)
    elif end == "they are silent":
        world.core.routes.expire(world.now_ms + 51)
    else:
        for number in range(BROKERS_OF_CONNECTION_MAX):
            gone = broker(f"stranger-{number}", f"10.1.0.1:{number}")
            world.ask(Ask.UNREGISTER_BROKER, gone)
    assert time.thread_time() - begin < _SECONDS_MAX
    assert set(world.core.routes.cluster_info()["brokerAddrTable"]) == {"b"}
    assert world.addresses("topic-199999") == {"b": {"0": ONE}}


def test_one_connection_registers_so_many_brokers_and_no_more(world: World) -> None:
    codes = register_strangers(world, BROKERS_OF_CONNECTION_MAX + 1, of=2)
    assert codes == [Code.SUCCESS] * BROKERS_OF_CONNECTION_MAX + [Code.SYSTEM_ERROR]
    assert register_strangers(world, 1, of=2) == [Code.SUCCESS]  # it is known
    assert world.register("orders", of=3).code == Code.SUCCESS
    world.core.routes.disconnected(2)
    assert register_strangers(world, 1, of=2, first=5_000) == [Code.SUCCESS]


def test_a_name_server_knows_so_many_brokers_and_no_more(world: World) -> None:
    for connection in range(BROKERS_MAX // BROKERS_OF_CONNECTION_MAX):
        first = connection * BROKERS_OF_CONNECTION_MAX
        register_strangers(world, BROKERS_OF_CONNECTION_MAX, of=connection, first=first)
    refused = world.register("orders", of=5_000)
    assert refused.code == Code.SYSTEM_ERROR
    assert "no room for more than" in (refused.remark or "")
    assert register_strangers(world, 1, of=6_000) == [Code.SUCCESS]  # it comes again
    world.core.routes.disconnected(1)
    assert world.register("orders", of=5_000).code == Code.SUCCESS


@pytest.mark.parametrize("name", ["brokerName", "brokerAddr", "clusterName", "haServerAddr"])
def test_what_is_kept_of_a_broker_is_short(world: World, name: str) -> None:
    header = {**broker("b", ONE), name: "x" * 256}
    assert world.ask(Ask.REGISTER_BROKER, header).code == Code.SYSTEM_ERROR
    assert world.core.routes.cluster_info()["brokerAddrTable"] == {}


def test_a_topic_has_a_name_of_bounded_length(world: World) -> None:
    assert world.register("t" * REGISTERED_NAME_LENGTH_MAX).code == Code.SUCCESS
    long = "t" * (REGISTERED_NAME_LENGTH_MAX + 1)
    assert world.register(long, counter=2).code == Code.SYSTEM_ERROR
    body = b'{"queueDatas":[{"brokerName":"b"}]}'
    alone = world.ask(Ask.REGISTER_TOPIC_IN_NAMESRV, {"topic": long}, body)
    assert alone.code == Code.SYSTEM_ERROR
    assert not world.addresses(long)


def test_a_silent_broker_is_kept_for_an_hour_at_most(world: World) -> None:
    world.register("orders", heartbeatTimeoutMillis=2**63 - 1)
    assert world.core.routes.expire(world.now_ms + BROKER_LIFETIME_MS_MAX) == []
    assert world.core.routes.expire(world.now_ms + BROKER_LIFETIME_MS_MAX + 1) == [1]
    assert not world.addresses("orders")


def test_a_broker_that_has_a_new_name_leaves_nothing_under_the_old_one(world: World) -> None:
    world.register("orders", name="old")
    world.register("orders", name="new")
    assert world.addresses("orders") == {"new": {"0": ONE}}
    world.core.routes.disconnected(1)
    assert world.core.routes.cluster_info()["brokerAddrTable"] == {}


def test_a_goodbye_under_another_name_ends_nobody(world: World) -> None:
    world.register("orders", name="a")
    world.register("orders", name="b", address=TWO, of=2)
    world.ask(Ask.UNREGISTER_BROKER, broker("b", ONE))
    assert world.addresses("orders") == {"a": {"0": ONE}, "b": {"0": TWO}}


def test_an_address_that_comes_with_an_older_state_is_forgotten_under_its_other_id(
    world: World,
) -> None:
    world.register("orders", address=ONE, state_version=2)
    world.register(address=TWO, number=1, of=2)
    world.register(address=TWO, state_version=1, of=2)
    assert world.addresses("orders") == {"b": {"0": ONE}}
