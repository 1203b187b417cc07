"""Administration: what is asked of whom, and when it counts as done."""

import pytest
from tests.client.script import NAME_SERVER, World, in_turn, route_body, route_table, says

from reliable_mq.client.administering.cluster_reply import AdminTarget
from reliable_mq.client.administering.progress import read_progress_of
from reliable_mq.client.administering.topic_changes import give_queues
from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.flow import Call
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, NoRoute, RemoteError
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
SETTINGS = ClientSettings()
CLUSTER = (
    b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"a:1",1:"a:2"},"brokerName":"a","cluster":"c"},'
    b'"b":{"brokerAddrs":{0:"b:1"},"brokerName":"b","cluster":"c"}},"clusterAddrTable":{}}'
)


def cluster() -> AdminTarget:
    return AdminTarget(NameServers((NAME_SERVER,), 3.0), route_table(), SETTINGS)


def create(world: World, topic: str = "t", queues: int = 4) -> None:
    world.play(give_queues(cluster(), topic, queues))


def two_brokers() -> World:
    return World(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: says(body=CLUSTER),
            CREATE: says(),
            ROUTE: says(body=route_body({"a": 4, "b": 4})),
        }
    )


def test_a_topic_is_created_at_every_master() -> None:
    world = two_brokers()
    create(world)
    calls = world.calls_of(CREATE)
    assert [call.address for call in calls] == ["a:1", "b:1"]
    ext = calls[0].command.ext_fields
    assert (ext["topic"], ext["readQueueNums"], ext["writeQueueNums"], ext["perm"]) == (
        *("t", "4", "4"),
        "6",
    )


def test_a_topic_is_created_when_the_name_server_tells_of_all_its_queues() -> None:
    world = two_brokers()
    world.answers[ROUTE] = in_turn(
        says(ResponseCode.TOPIC_NOT_EXIST),
        says(body=route_body({"a": 4})),
        says(body=route_body({"a": 4, "b": 4})),
    )
    create(world)
    assert len(world.calls_of(ROUTE)) == 3


def test_brokers_that_never_tell_the_name_server_are_no_success() -> None:
    world = two_brokers()
    world.answers[ROUTE] = says(ResponseCode.TOPIC_NOT_EXIST)
    with pytest.raises(NoRoute, match="did not register it"):
        create(world)


def test_a_broker_that_refuses_a_topic_is_heard() -> None:
    world = two_brokers()
    world.answers[CREATE] = in_turn(says(), says(ResponseCode.INVALID_PARAMETER, remark="no!"))
    with pytest.raises(RemoteError, match="no!"):
        create(world)


def test_an_illegal_name_is_refused_here() -> None:
    with pytest.raises(ConfigurationError, match="not a legal name"):
        create(two_brokers(), topic="a b")


def test_no_broker_is_no_place_for_a_topic() -> None:
    world = two_brokers()
    world.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = says(body=b"{}")
    with pytest.raises(NoRoute, match="know no broker"):
        create(world)


def test_progress_is_the_committed_and_the_maximum_offset_of_each_queue() -> None:
    committed = {"0": "5"}

    def offset(call: Call) -> Command:
        known = committed.get(call.command.ext_fields["queueId"])
        assert call.command.ext_fields["setZeroIfNotFound"] == "false"
        if known is None:
            return reply(call.command, ResponseCode.QUERY_NOT_FOUND)
        return reply(call.command, ext={"offset": known})

    world = World(
        {
            ROUTE: says(body=route_body({"a": 2})),
            RequestCode.QUERY_CONSUMER_OFFSET: offset,
            RequestCode.GET_MAX_OFFSET: says(ext={"offset": "9"}),
        }
    )
    assert world.play(read_progress_of(cluster(), "g", "t")) == {
        MessageQueue("t", "a", 0): (5, 9),
        MessageQueue("t", "a", 1): (-1, 9),
    }


def test_progress_that_a_broker_does_not_tell_is_an_error_and_no_number() -> None:
    world = World(
        {
            ROUTE: says(body=route_body({"a": 1})),
            RequestCode.QUERY_CONSUMER_OFFSET: says(ResponseCode.SYSTEM_ERROR, remark="on fire"),
            RequestCode.GET_MAX_OFFSET: says(ext={"offset": "9"}),
        }
    )
    with pytest.raises(RemoteError, match="on fire"):
        world.play(read_progress_of(cluster(), "g", "t"))
