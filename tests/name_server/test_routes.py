"""Routes: who registered what, who is gone, and what a client is told."""

import random
import zlib
from collections.abc import Iterator, Mapping

import pytest

from reliable_mq.errors import ProtocolError
from reliable_mq.limits import REGISTRATION_SIZE_MAX
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.name_server.registration import decode_registration
from reliable_mq.name_server.routes import EXPIRY_MS
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, request

GO_VERSION = 317


class World:
    """A name server's core, driven by hand."""

    def __init__(self) -> None:
        self.core = NameServerCore()
        self.now_ms = 1_000

    def ask(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        of: int = 1,
        version: int = 493,
    ) -> Command:
        command = request(code, {k: str(v) for k, v in (ext or {}).items()}, body)
        command.version = version
        return self.core.receive(of, command, self.now_ms)

    def register(
        self,
        *topics: str,
        name: str = "b",
        address: str = "10.0.0.1:10911",
        number: int = 0,
        of: int = 1,
        counter: int = 1,
        state_version: int = 0,
        perm: int = 6,
        **header: object,
    ) -> Command:
        """Register a broker; besides `topics` it has two that are its own."""
        ext = {**broker(name, address, number), "haServerAddr": f"{address}9", **header}
        wrapper = {
            "dataVersion": {"counter": counter, "stateVersion": state_version, "timestamp": 5},
            "topicConfigTable": {
                topic: {
                    "topicName": topic,
                    "readQueueNums": 4,
                    "writeQueueNums": 3,
                    "perm": perm,
                    "topicSysFlag": 0,
                }
                for topic in (*topics, "own", "self")
            },
        }
        body = fastjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
        return self.ask(Ask.REGISTER_BROKER, ext, body, of=of)

    def addresses(self, topic: str) -> dict[str, dict[str, str]]:
        """Return the addresses by broker name and id of a topic's route; empty without one."""
        answer = self.ask(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code != Code.SUCCESS:
            return {}
        route = fastjson.loads(answer.body)
        return {data["brokerName"]: data["brokerAddrs"] for data in route["brokerDatas"]}

    def permissions(self, topic: str) -> dict[str, int]:
        answer = self.ask(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        route = fastjson.loads(answer.body)
        return {data["brokerName"]: data["perm"] for data in route["queueDatas"]}


def broker(name: str, address: str, number: int = 0) -> dict[str, object]:
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "shop",
        "brokerId": number,
        "compressed": "false",
        "bodyCrc32": 0,
    }


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.core.routes.invariants()


ONE, TWO = "10.0.0.1:10911", "10.0.0.2:10911"


def test_a_topic_that_nobody_has_has_no_route(world: World) -> None:
    answer = world.ask(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})

    assert answer.code == Code.TOPIC_NOT_EXIST
    assert answer.remark == (
        "No topic route info in name server for the topic: orders"
        "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


def test_a_route_names_all_brokers_of_a_topic(world: World) -> None:
    world.register("orders", name="a", address=ONE)
    world.register("orders", name="b", address=TWO, of=2)
    world.register(name="c", address="10.0.0.3:1", of=3)

    assert world.addresses("orders") == {"a": {"0": ONE}, "b": {"0": TWO}}


def test_a_route_is_spelled_for_the_clients_version(world: World) -> None:
    world.register("orders")

    new = world.ask(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).body
    old = world.ask(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, version=GO_VERSION).body
    asked = world.ask(
        Ask.GET_ROUTEINFO_BY_TOPIC,
        {"topic": "orders", "acceptStandardJsonOnly": "true"},
        version=GO_VERSION,
    ).body

    assert b'{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"b"' in new
    assert b'{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b"' in old
    assert asked == new
    assert fastjson.loads(new)["queueDatas"] == [
        {
            "brokerName": "b",
            "perm": 6,
            "readQueueNums": 4,
            "topicSysFlag": 0,
            "writeQueueNums": 3,
        }
    ]


def test_a_broker_that_is_silent_is_forgotten_and_its_connection_closed(world: World) -> None:
    world.register("orders")
    world.now_ms += EXPIRY_MS
    assert world.core.routes.expire(world.now_ms) == []

    assert world.core.routes.expire(world.now_ms + 1) == [1]
    assert world.addresses("orders") == {}


@pytest.mark.parametrize("code", [Ask.BROKER_HEARTBEAT, Ask.QUERY_DATA_VERSION])
def test_a_sign_of_life_is_enough(world: World, code: int) -> None:
    world.register("orders", heartbeatTimeoutMillis=10_000)
    world.now_ms += 9_000
    world.ask(code, broker("b", ONE), b"{}")

    assert world.core.routes.expire(world.now_ms + 9_000) == []
    assert world.core.routes.expire(world.now_ms + 10_001) == [1]


def test_a_data_version_tells_whether_to_register_again(world: World) -> None:
    world.register("orders", counter=3)

    def changed(counter: int) -> Command:
        body = b'{"counter":%d,"stateVersion":0,"timestamp":5}' % counter
        return world.ask(Ask.QUERY_DATA_VERSION, broker("b", ONE), body)

    assert changed(3).ext_fields == {"changed": "false"}
    assert changed(4).ext_fields == {"changed": "true"}
    assert fastjson.loads(changed(4).body) == {"counter": 3, "stateVersion": 0, "timestamp": 5}


def test_the_close_of_an_old_connection_keeps_the_newest_registration(world: World) -> None:
    """A broker that restarts on its address registers before its old connection is closed."""
    world.register("orders", of=1)
    world.register("orders", of=2, counter=1)

    for other in (1, 3):
        world.core.routes.disconnected(other)
        assert world.addresses("orders") == {"b": {"0": ONE}}
    world.core.routes.disconnected(2)
    assert world.addresses("orders") == {}


def test_a_goodbye_takes_the_topics_with_the_last_broker_of_a_name(world: World) -> None:
    world.register("orders", address=ONE)
    world.register("orders", address=TWO, number=1, of=2)

    world.ask(Ask.UNREGISTER_BROKER, broker("b", ONE))
    assert world.addresses("orders") == {"b": {"1": TWO}}
    world.ask(Ask.UNREGISTER_BROKER, broker("b", TWO, 1))
    assert world.addresses("orders") == {}
    assert world.ask(Ask.GET_BROKER_CLUSTER_INFO).body == (
        b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    )


def test_a_slave_learns_its_master_and_brings_no_topics(world: World) -> None:
    alone = world.register("orders", address=TWO, number=1, of=2)
    assert alone.ext_fields == {}
    assert world.addresses("orders") == {}

    world.register("orders", address=ONE)
    again = world.register("orders", address=TWO, number=1, of=2)

    assert again.ext_fields == {"masterAddr": ONE, "haServerAddr": f"{ONE}9"}
    assert world.addresses("orders") == {"b": {"0": ONE, "1": TWO}}


def test_an_address_under_a_new_id_leaves_its_old_one(world: World) -> None:
    world.register("orders", address=ONE, number=1)
    world.register("orders", address=ONE, number=0)

    assert world.addresses("orders") == {"b": {"0": ONE}}


def test_a_master_with_an_older_state_does_not_replace_the_newer(world: World) -> None:
    world.register("orders", address=ONE, state_version=2)
    world.register("orders", address=TWO, state_version=1, of=2)
    assert world.addresses("orders") == {"b": {"0": ONE}}

    world.register("orders", address=TWO, state_version=3, of=2)
    assert world.addresses("orders") == {"b": {"0": TWO}}
    world.core.routes.disconnected(1)
    assert world.addresses("orders") == {"b": {"0": TWO}}


def test_a_single_topic_is_taken_only_from_a_broker_that_is_known(world: World) -> None:
    wrapper = {"topicConfigTable": {"orders": {"topicName": "orders"}}}
    body = fastjson.dumps({"topicConfigSerializeWrapper": wrapper})

    first = world.ask(Ask.REGISTER_BROKER, broker("b", ONE), body)
    assert (first.code, first.remark) == (Code.SYSTEM_ERROR, "register broker failed")
    world.register()
    assert world.ask(Ask.REGISTER_BROKER, broker("b", ONE), body).code == Code.SUCCESS
    assert world.addresses("orders") == {"b": {"0": ONE}}


def test_a_wiped_write_permission_stays_until_the_topics_change(world: World) -> None:
    world.register("orders", counter=1)
    answer = world.ask(205, {"brokerName": "b"})
    assert answer.ext_fields == {"wipeTopicCount": "3"}
    assert world.permissions("orders") == {"b": 4}

    world.register("orders", counter=1)
    assert world.permissions("orders") == {"b": 4}
    world.register("orders", counter=2)
    assert world.permissions("orders") == {"b": 6}

    world.ask(205, {"brokerName": "b"})
    assert world.ask(327, {"brokerName": "b"}).ext_fields == {"addTopicCount": "3"}
    assert world.permissions("orders") == {"b": 6}


def test_a_deleted_topic_comes_back_only_with_a_broker_that_has_it(world: World) -> None:
    world.register("orders", counter=1)

    world.ask(Ask.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "other"})
    assert world.addresses("orders")
    world.ask(Ask.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    assert world.addresses("orders") == {}
    world.register(counter=2)
    assert world.addresses("orders") == {}
    world.register("orders", counter=3)
    assert world.addresses("orders")


def test_tools_see_topics_and_clusters(world: World) -> None:
    world.register("orders", name="a", address=ONE)

    topics = world.ask(Ask.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert fastjson.loads(topics.body) == {"topicList": ["orders", "own", "self"]}
    info = world.ask(Ask.GET_BROKER_CLUSTER_INFO)
    assert info.body == (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a",'
        b'"cluster":"shop","enableActingMaster":false}},"clusterAddrTable":{"shop":["a"]}}'
    )


def compressed(*lines: bytes) -> bytes:
    version = b'{"counter":1,"stateVersion":0,"timestamp":5}'
    parts = [len(version).to_bytes(4), version, len(lines).to_bytes(4)]
    for line in lines:
        parts += [len(line).to_bytes(4), line]
    return zlib.compress(b"".join((*parts, (2).to_bytes(4), b"[]", bytes(4))))


def test_a_compressed_registration_is_read(world: World) -> None:
    body = compressed(b"orders 4 3 6 SINGLE_TAG", b'own 1 1 6 SINGLE_TAG {"message.type":"FIFO"}')
    header = {**broker("b", ONE), "compressed": "true", "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF}

    assert world.ask(Ask.REGISTER_BROKER, header, body).code == Code.SUCCESS
    assert world.addresses("orders") == {"b": {"0": ONE}}


@pytest.mark.parametrize(
    ("changes", "body"),
    [
        ({}, b"{"),
        ({}, b"[]"),
        ({}, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":"x"}}}}'),
        ({"compressed": "true"}, b"no zlib"),
        ({"compressed": "true"}, zlib.compress(b"\xff\xff\xff\xff")),
        ({"compressed": "true"}, compressed(b"orders 4")),
        ({"bodyCrc32": 1}, b"{}"),
        ({"brokerId": "x"}, b"{}"),
    ],
)
def test_a_bad_registration_changes_nothing(
    world: World, changes: dict[str, object], body: bytes
) -> None:
    answer = world.ask(Ask.REGISTER_BROKER, {**broker("b", ONE), **changes}, body)

    assert answer.code == Code.SYSTEM_ERROR
    assert world.core.routes.cluster_info()["brokerAddrTable"] == {}


def test_an_unknown_request_is_answered_as_apache_does(world: World) -> None:
    answer = world.ask(9_999)

    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")


@pytest.mark.parametrize("packed_size", [0, REGISTRATION_SIZE_MAX])
def test_a_registration_that_unpacks_beyond_all_reason_is_refused(packed_size: int) -> None:
    """That is beyond a limit, and beyond what topics can be packed to."""
    packed = zlib.compress(bytes(REGISTRATION_SIZE_MAX + 1))
    size_max = min(100 * len(packed), REGISTRATION_SIZE_MAX)
    if packed_size:
        noise = random.Random(7).randbytes(REGISTRATION_SIZE_MAX + 1)
        packed, size_max = zlib.compress(noise, 1), REGISTRATION_SIZE_MAX

    with pytest.raises(ProtocolError, match=f"more than {size_max} bytes"):
        decode_registration(packed, compressed=True)


def test_a_small_registration_may_unpack_to_a_mebibyte_whatever_it_was_packed_to() -> None:
    bomb = zlib.compress(bytes(1_000_000))

    with pytest.raises(ProtocolError, match="not a registration") as refused:
        decode_registration(bomb, compressed=True)
    assert "more than" not in str(refused.value)
