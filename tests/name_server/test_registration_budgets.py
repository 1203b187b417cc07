"""What a registration may cost: large ones are done in steps, too large ones are refused."""

import json
import zlib
from collections.abc import Iterator

import pytest
from tests.name_server.test_routes import ONE, TWO, World, broker, compressed

from reliable_mq.errors import ProtocolError
from reliable_mq.limits import REGISTERED_TOPICS_MAX, REQUEST_BODY_SIZE_MAX
from reliable_mq.name_server.name_server_limits import NameServerLimits
from reliable_mq.name_server.registration import decode_in_steps, decode_registration
from reliable_mq.name_server.routes import RouteTable
from reliable_mq.name_server.steps import Steps, finish
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, request


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.core.routes.invariants()


def registered_in_steps(world: World, count: int) -> Steps[Command]:
    """Begin a registration of many topics over connection 1."""
    body = compressed(*(b"topic-%06d 4 3 6 SINGLE_TAG" % number for number in range(count)))
    command = request(
        Ask.REGISTER_BROKER,
        {name: str(value) for name, value in {**broker("b", ONE), "compressed": "true"}.items()},
        body,
    )
    return world.core.begin(1, command, world.now_ms)


def test_a_large_registration_is_done_in_steps_between_which_others_are_answered(
    world: World,
) -> None:
    steps = registered_in_steps(world, 10_000)
    count = 0
    while next(steps, steps) is not steps:
        count += 1
        assert world.ask(Ask.GET_BROKER_CLUSTER_INFO).code == Code.SUCCESS
        world.core.routes.invariants()
    assert count >= 20
    assert world.addresses("topic-009999") == {"b": {"0": ONE}}


def plain(rows: dict[str, dict[str, object]], *, indent: int | None = None) -> bytes:
    wrapper = {"topicConfigTable": rows, "dataVersion": {"counter": 7}}
    return json.dumps({"topicConfigSerializeWrapper": wrapper}, indent=indent).encode()


def row(number: int, **more: object) -> dict[str, object]:
    """Return a row as a broker writes it: its attributes stand before its name."""
    return {"attributes": {"a": {"b": "c"}}, "topicName": f"topic-{number}", "perm": 4, **more}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("note", ["", '"},"', "}, " * 3, "x" * 200_000])
def test_a_long_plain_registration_is_read_in_steps_as_it_would_be_at_once(
    note: str, indent: int | None
) -> None:
    rows = {
        f"topic-{number}": row(number, note=note if number % 997 == 0 else "")
        for number in range(9_000)
    }
    steps = decode_in_steps(plain(rows, indent=indent), compressed=False)
    count = 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        found = end.value

    assert count >= 8
    assert found.data_version.counter == 7
    assert list(found.topic_config_table) == list(rows)
    assert {(each.topic_name, each.perm) for each in found.topic_config_table.values()} == {
        (name, 4) for name in rows
    }


@pytest.mark.parametrize(
    "wrong", [{"perm": "much"}, {"topicName": None}, {"perm": 2**31}, {"note": {"a": [1, {}]}}]
)
@pytest.mark.parametrize("at", [0, 4_500, 8_999])
def test_a_row_that_does_not_read_refuses_a_long_registration(
    wrong: dict[str, object], at: int
) -> None:
    rows = {f"topic-{number}": row(number) for number in range(9_000)}
    rows[f"topic-{at}"] |= wrong
    if "note" in wrong:
        assert len(decode_registration(plain(rows), compressed=False).topic_config_table) == 9_000
    else:
        with pytest.raises(ProtocolError, match="the body is not a registration: Expected"):
            decode_registration(plain(rows), compressed=False)


@pytest.mark.parametrize("table", ["null", "[]", "7", "{", '{"a":{}'])
def test_a_long_registration_without_a_table_is_refused(table: str) -> None:
    body = (
        f'{{"note":"{"x" * 300_000}","topicConfigSerializeWrapper":{{"topicConfigTable":{table}}}}}'
    )
    with pytest.raises(ProtocolError):
        decode_registration(body.encode(), compressed=False)


def test_a_long_registration_with_an_empty_table_names_no_topic() -> None:
    body = f'{{"note":"{"x" * 300_000}","topicConfigSerializeWrapper":{{"topicConfigTable":{{}}}}}}'
    assert decode_registration(body.encode(), compressed=False).topic_config_table == {}


@pytest.mark.parametrize("end", ["it goes", "its connection ends", "it registers again"])
def test_a_registration_that_is_overtaken_takes_no_more_topics(world: World, end: str) -> None:
    steps = registered_in_steps(world, 10_000)
    while not world.addresses("topic-000000"):
        next(steps)
    if end == "it goes":
        world.ask(
            Ask.UNREGISTER_BROKER,
            {"clusterName": "shop", "brokerName": "b", "brokerAddr": ONE},
        )
    elif end == "its connection ends":
        world.core.routes.disconnected(1)
    else:
        world.register("orders", of=2, counter=2)
    finish(steps)
    assert not world.addresses("topic-009999")
    assert bool(world.addresses("orders")) == (end == "it registers again")


def test_a_name_server_knows_so_many_topics_and_no_more(
    world: World,
) -> None:
    world.core.routes = RouteTable(NameServerLimits(topics=7))
    world.register("a", "b")
    refused = world.register("c", "d", "e", name="other", address=TWO)
    assert refused.code == Code.SYSTEM_ERROR
    assert "no room for more than 7 topics" in str(refused.remark)
    assert world.addresses("a")
    world.ask(Ask.DELETE_TOPIC_IN_NAMESRV, {"topic": "a"})
    world.ask(Ask.DELETE_TOPIC_IN_NAMESRV, {"topic": "b"})
    assert world.register("e", name="other", address=TWO).code == Code.SUCCESS
    assert world.addresses("e")


def test_a_registration_that_names_too_many_topics_is_refused_before_it_is_read() -> None:
    version = b"{}"
    count = (REGISTERED_TOPICS_MAX + 1).to_bytes(4)
    body = zlib.compress(len(version).to_bytes(4) + version + count)
    with pytest.raises(ProtocolError, match="at most"):
        decode_registration(body, compressed=True)


def test_a_plain_registration_that_names_too_many_topics_is_refused_before_it_is_read() -> None:
    row = b'"t":{"topicName":"t"}'
    table = b",".join([row] * (REGISTERED_TOPICS_MAX + 1))
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}' % table
    with pytest.raises(ProtocolError, match="at most"):
        decode_registration(body, compressed=False)


@pytest.mark.parametrize("code", [Ask.QUERY_DATA_VERSION, Ask.REGISTER_TOPIC_IN_NAMESRV])
def test_a_body_that_is_too_long_is_refused_before_it_is_read(world: World, code: int) -> None:
    ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": ONE, "brokerId": "0", "topic": "t"}
    command = request(code, ext, b"[" + b"1," * (REQUEST_BODY_SIZE_MAX // 2) + b"1]")
    answer = world.core.receive(1, command, world.now_ms)
    assert answer.code == Code.SYSTEM_ERROR
    assert "at most" in (answer.remark or "")
