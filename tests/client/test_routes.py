"""Routes: read from either kind of JSON, kept while nobody answers, invented for a new topic."""

import pytest
from tests.client.script import (
    NAME_SERVER,
    World,
    in_turn,
    queue_ids,
    route_body,
    route_table,
    routes_answer,
    says,
)

from reliable_mq.client.connecting.name_servers import NameServers, parse_addresses
from reliable_mq.client.connecting.routes import (
    IDLE_ROUNDS,
    ROUTES_KEPT,
    RouteCache,
    decode_cluster,
    decode_route,
    masters,
)
from reliable_mq.client.flow import Call
from reliable_mq.errors import (
    ConfigurationError,
    ConnectionLost,
    NoRoute,
    ProtocolError,
    RemoteError,
    WrongPeer,
)
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
CLUSTER = RequestCode.GET_BROKER_CLUSTER_INFO


def test_a_route_in_fastjsons_form_reads_like_one_in_standard_form() -> None:
    bare = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"a","cluster":"c"}],"queueDatas":[{"brokerName":"a","perm":6,'
        b'"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":1}]}'
    )
    route = decode_route("t", bare)
    quoted = bare.replace(b'{0:"', b'{"0":"').replace(b',1:"', b',"1":"')
    assert route == decode_route("t", quoted)
    assert route.brokers["a"].master == "10.0.0.1:10911"
    assert route.brokers["a"].to_read_from(1) == "10.0.0.2:10911"
    assert queue_ids(route.writable) == [("a", 0)]
    assert queue_ids(route.readable) == [("a", 0), ("a", 1)]


@pytest.mark.parametrize(("permission", "readable", "writable"), [(4, 2, 0), (2, 0, 2), (6, 2, 2)])
def test_queues_follow_the_permission(permission: int, readable: int, writable: int) -> None:
    route = decode_route("t", route_body({"a": 2}, permission=permission))
    assert (len(route.readable), len(route.writable)) == (readable, writable)


def test_a_broker_without_a_master_is_read_from_but_not_written_to() -> None:
    body = route_body({"a": 2}).replace(b'"0":', b'"1":')
    route = decode_route("t", body)
    assert len(route.readable) == 2
    assert route.writable == ()
    assert route.brokers["a"].to_read_from(0) == "a:10911"


def test_an_ordered_topic_names_its_queues_itself() -> None:
    body = route_body({"a": 8, "b": 8})[:-1] + b',"orderTopicConf":"a:2;b:1"}'
    route = decode_route("t", body)
    assert queue_ids(route.writable) == [("a", 0), ("a", 1), ("b", 0)]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"brokerDatas":[{}]}', b"no json at all"])
def test_what_is_no_route_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_route("t", body)


def test_a_fresh_route_is_not_asked_for_twice_and_a_stale_one_is() -> None:
    world = World({ROUTE: routes_answer({"t": {"a": 1}})})
    routes = route_table()
    world.play(routes.of("t"))
    world.play(routes.of("t"))
    assert len(world.calls) == 1
    world.seconds += 31
    world.play(routes.of("t"))
    assert len(world.calls) == 2


def test_a_broker_that_no_route_names_any_more_is_forgotten_and_a_moved_one_is_followed() -> None:
    moved = route_body({"a": 1}, addresses={"a": "elsewhere:1"})
    world = World({ROUTE: in_turn(says(body=route_body({"a": 1, "b": 1})), says(body=moved))})
    routes = route_table()
    world.play(routes.look_up("t"))
    assert {broker.name for broker in routes.brokers()} == {"a", "b"}
    world.play(routes.look_up("t"))
    assert [broker.master for broker in routes.brokers()] == ["elsewhere:1"]


def test_a_doubted_route_is_asked_for_again() -> None:
    world = World({ROUTE: routes_answer({"t": {"a": 1}})})
    routes = route_table()
    world.play(routes.of("t"))
    routes.mark_stale("t")
    world.play(routes.of("t"))
    assert len(world.calls) == 2


def test_a_known_route_serves_while_no_name_server_answers() -> None:
    world = World({ROUTE: routes_answer({"t": {"a": 1}})})
    routes = route_table()
    known = world.play(routes.of("t"))
    world.seconds += 31
    world.dead.add(NAME_SERVER)
    assert world.play(routes.of("t")) == known


def test_a_topic_that_was_deleted_has_no_route_any_more() -> None:
    world = World({ROUTE: in_turn(says(body=route_body({"a": 1})), says(17))})
    routes = route_table()
    world.play(routes.of("t"))
    with pytest.raises(NoRoute):
        world.play(routes.look_up("t"))
    assert routes.find("t") is None


def test_a_new_topic_is_sent_to_four_queues_of_the_template_topic() -> None:
    world = World({ROUTE: routes_answer({"TBW102": {"a": 8}})})
    routes = route_table()
    route = world.play(routes.to_send("new"))
    assert [queue.topic for queue in route.writable] == ["new"] * 4
    assert routes.find("new") is None, "a guess must not be taken for a route"


def test_a_new_topic_without_a_broker_that_creates_topics_has_no_route() -> None:
    world = World({ROUTE: routes_answer({})})
    with pytest.raises(NoRoute, match="create it first"):
        world.play(route_table().to_send("new"))


def test_a_template_that_no_broker_has_is_asked_for_once_a_second() -> None:
    world = World({ROUTE: routes_answer({})})
    routes = route_table()
    for _ in range(3):
        with pytest.raises(NoRoute, match="create it first"):
            world.play(routes.to_send("new"))
    assert [call.command.ext_fields["topic"] for call in world.calls].count("TBW102") == 1
    world.answers[ROUTE] = routes_answer({"TBW102": {"a": 8}})
    world.seconds += 1.0
    assert world.play(routes.to_send("new")).writable


def test_a_known_route_serves_while_a_name_server_answers_nonsense() -> None:
    world = World({ROUTE: in_turn(says(body=route_body({"a": 1})), says(body=b"nonsense"))})
    routes = route_table()
    known = world.play(routes.of("t"))
    world.seconds += 31
    assert world.play(routes.of("t")) == known
    with pytest.raises(ProtocolError, match="topic other"):
        world.play(routes.of("other"))


def test_a_topic_that_nobody_may_write_to_has_no_route_to_send() -> None:
    world = World({ROUTE: says(body=route_body({"a": 1}, permission=4))})
    with pytest.raises(NoRoute, match="may be written"):
        world.play(route_table().to_send("t"))


def test_the_next_name_server_is_asked_when_one_is_silent_and_stays_the_favourite() -> None:
    world = World({ROUTE: routes_answer({"t": {"a": 1}})})
    world.dead.add("one:1")
    servers = NameServers(parse_addresses("one:1; two:2"), 3.0)
    routes = RouteCache(servers, 4, 0.0)
    world.play(routes.look_up("t"))
    world.play(routes.look_up("t"))
    assert [call.address for call in world.calls] == ["one:1", "two:2", "two:2"]


def test_all_silent_name_servers_are_named_in_the_error() -> None:
    world = World()
    world.dead |= {"one:1", "two:2"}
    servers = NameServers(("one:1", "two:2"), 3.0)
    with pytest.raises(ConnectionLost, match=r"one:1.*two:2"):
        world.play(RouteCache(servers, 4, 30.0).look_up("t"))


@pytest.mark.parametrize(
    "text", ["", ";", "host", "host:", "host:0", "host:99999", ":9876", "h:x", "h:²"]
)
def test_what_is_no_address_is_refused_at_once(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_addresses(text)


def test_the_list_of_brokers_reads_in_fastjsons_form() -> None:
    body = (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"h:1"},"brokerName":"a","cluster":"c"}},'
        b'"clusterAddrTable":{"c":["a"]}}'
    )
    assert [broker.master for broker in decode_cluster(body)] == ["h:1"]


def test_a_name_server_that_refuses_is_an_error_and_no_missing_topic() -> None:
    world = World({ROUTE: says(ResponseCode.SYSTEM_ERROR, remark="on fire")})
    with pytest.raises(Exception, match="on fire"):
        world.play(route_table().look_up("t"))


def test_of_very_many_topics_those_are_forgotten_that_nobody_uses() -> None:
    """An application with a topic for each order, say."""
    world = World()
    used = {f"used-{at}": {"a": 1} for at in range(10)}
    idle = {f"idle-{at}": {"b": 1} for at in range(ROUTES_KEPT)}
    world.answers[ROUTE] = routes_answer(used | idle)
    routes = route_table()
    for topic in used | idle:
        world.play(routes.of(topic))
    for _ in range(IDLE_ROUNDS):
        routes.forget_idle()
        assert len(routes.topics()) == ROUTES_KEPT + len(used)
        for topic in used:
            world.play(routes.of(topic))
    routes.forget_idle()
    assert len(routes.topics()) == ROUTES_KEPT
    assert used.keys() <= set(routes.topics())
    assert {broker.name for broker in routes.brokers()} == {"a", "b"}
    assert world.play(routes.of("idle-0")).readable, "what is used again is asked for again"


def test_a_broker_that_only_forgotten_topics_name_is_forgotten_too() -> None:
    world = World()
    topics = {"gone": {"a": 1}} | {f"used-{at}": {"b": 1} for at in range(ROUTES_KEPT)}
    world.answers[ROUTE] = routes_answer(topics)
    routes = route_table()
    for topic in topics:
        world.play(routes.of(topic))
    for _ in range(IDLE_ROUNDS + 1):
        routes.forget_idle()
        for topic in topics.keys() - {"gone"}:
            routes.find(topic)
    assert [broker.name for broker in routes.brokers()] == ["b"]


def test_however_long_nobody_uses_them_few_topics_are_kept() -> None:
    world = World()
    world.answers[ROUTE] = routes_answer({"t": {"a": 1}})
    routes = route_table()
    world.play(routes.of("t"))
    for _ in range(10 * IDLE_ROUNDS):
        routes.forget_idle()
    assert routes.topics() == ["t"]


def says_unsupported(call: Call) -> Command:
    """Answer as a broker answers a question for a name server."""
    return says(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=" request type 105 not supported")(
        call
    )


def test_a_broker_in_the_place_of_a_name_server_is_named() -> None:
    world = World({ROUTE: says_unsupported})
    with pytest.raises(
        WrongPeer, match=r"^ns:9876 is a broker, not a name server: give the "
    ) as it:
        world.play(route_table().look_up("t"))
    assert it.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_the_next_name_server_is_asked_when_one_is_a_broker() -> None:
    right = routes_answer({"t": {"a": 1}})
    world = World(
        {ROUTE: lambda call: (says_unsupported if call.address == "one:1" else right)(call)}
    )
    servers = NameServers(("one:1", "two:2"), 3.0)
    assert world.play(RouteCache(servers, 4, 0.0).look_up("t")).topic == "t"

    world.dead.add("two:2")
    with pytest.raises(ConnectionLost, match=r"two:2 is dead; one:1 is a broker"):
        world.play(RouteCache(servers, 4, 0.0).look_up("t"))


def test_a_name_server_that_does_not_know_every_question_is_no_broker() -> None:
    """Given a proxy, which answers one question of a name server and not another."""
    world = World({ROUTE: routes_answer({"t": {"a": 1}}), CLUSTER: says_unsupported})
    servers = NameServers(("one:1",), 3.0)
    world.play(RouteCache(servers, 4, 0.0).look_up("t"))

    with pytest.raises(RemoteError, match=r"code 3: .*not supported"):
        world.play(masters(servers))
