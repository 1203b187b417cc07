"""Settings at the name server, and the ordered topics that it tells clients and brokers of."""

import asyncio
from pathlib import Path

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld
from tests.name_server.test_routes import World

from reliable_mq.broker_core.registration import take_order_topics
from reliable_mq.errors import StoreCorrupt
from reliable_mq.limits import SETTINGS_SIZE_MAX
from reliable_mq.name_server.settings_table import ORDER_TOPICS, SettingsTable
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, decode_command, encode_command, request
from reliable_mq.wire.frame import FrameReader

ORDER = {"namespace": ORDER_TOPICS, "key": "orders"}


@pytest.fixture
def world() -> World:
    return World()


def test_what_was_put_is_there_until_it_is_deleted(world: World) -> None:
    assert world.ask(Ask.PUT_KV_CONFIG, {**ORDER, "value": "b:2"}).code == Code.SUCCESS
    assert world.ask(Ask.GET_KV_CONFIG, ORDER).ext_fields["value"] == "b:2"
    listed = world.ask(Ask.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER_TOPICS})
    assert fastjson.loads(listed.body) == {"table": {"orders": "b:2"}}

    assert world.ask(Ask.DELETE_KV_CONFIG, ORDER).code == Code.SUCCESS
    missing = world.ask(Ask.GET_KV_CONFIG, ORDER)
    assert missing.code == Code.QUERY_NOT_FOUND
    assert missing.remark == "No config item, Namespace: ORDER_TOPIC_CONFIG Key: orders"
    nothing = world.ask(Ask.GET_KVLIST_BY_NAMESPACE, {"namespace": "none"})
    assert (nothing.code, nothing.remark) == (22, "No config item, Namespace: none")
    refused = world.ask(Ask.PUT_KV_CONFIG, {"key": "k", "value": "v"})
    assert (refused.code, refused.remark) == (1, "namespace or key is null")


def test_a_route_names_an_ordered_topics_queues_when_that_is_switched_on(world: World) -> None:
    world.register("orders")
    world.ask(Ask.PUT_KV_CONFIG, {**ORDER, "value": "b:2"})
    ask = (Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert "orderTopicConf" not in fastjson.loads(world.ask(*ask).body)
    world.ask(Ask.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true")
    assert fastjson.loads(world.ask(*ask).body)["orderTopicConf"] == "b:2"


def test_brokers_are_told_of_ordered_topics_and_mark_them(world: World) -> None:
    assert world.register(TOPIC).body == b""
    world.ask(Ask.PUT_KV_CONFIG, {"namespace": ORDER_TOPICS, "key": TOPIC, "value": "b:2"})
    told = world.register(TOPIC).body

    broker = BrokerWorld()
    broker.create_topic()
    take_order_topics(broker.state, told, broker.now_ms)
    take_order_topics(broker.state, b"{garbage", broker.now_ms)
    broker.finish_turn()
    topics = broker.file("config/topics.json")["topicConfigTable"]
    assert topics[TOPIC]["order"] is True

    world.ask(Ask.UPDATE_NAMESRV_CONFIG, {}, b"returnOrderTopicConfigToBroker=false")
    assert world.register(TOPIC).body == b""


def test_settings_survive_a_restart_and_a_file_that_does_not_read_is_told(tmp_path: Path) -> None:
    table = SettingsTable()
    table.put("n", "k", "v")
    path = tmp_path / "kvConfig.json"
    path.write_text(table.dump())
    again = SettingsTable()
    again.load(path.read_text())
    assert again.get("n", "k") == "v"
    assert not table.is_dirty

    path.write_text("{")
    with pytest.raises(StoreCorrupt, match=r"kvConfig\.json"):
        asyncio.run(NameServer(path).start("127.0.0.1", 0))


def test_settings_have_room_for_so_much_and_no_more(world: World) -> None:
    large = {**ORDER, "value": "x" * (SETTINGS_SIZE_MAX // 2)}
    assert world.ask(Ask.PUT_KV_CONFIG, large).code == Code.SUCCESS
    assert world.ask(Ask.PUT_KV_CONFIG, large).code == Code.SUCCESS, "it replaces the other"
    refused = world.ask(Ask.PUT_KV_CONFIG, {**large, "key": "others"})
    assert refused.code == Code.SYSTEM_ERROR
    assert "remove some first" in str(refused.remark)
    world.ask(Ask.DELETE_KV_CONFIG, ORDER)
    assert world.ask(Ask.PUT_KV_CONFIG, {**large, "key": "others"}).code == Code.SUCCESS


class CountingServer(NameServer):
    """The real one; it notes what it writes, and may find no room."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.written: list[str] = []
        self.has_room = True

    def _write(self, text: str) -> None:
        if not self.has_room:
            raise OSError(28, "No space left on device")
        super()._write(text)
        self.written.append(text)


def test_the_settings_name_the_port_on_which_it_listens() -> None:
    async def scene() -> None:
        server = NameServer()
        await server.start("127.0.0.1", 0)
        port = server.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_command(request(Ask.GET_NAMESRV_CONFIG)))
        frames, answers = FrameReader(), list[Command]()
        while not answers:
            answers += map(decode_command, frames.feed(await reader.read(1 << 16)))
        writer.close()
        await server.close()
        assert f"listenPort={port}".encode() in answers[0].body.splitlines()

    asyncio.run(scene())


async def put(server: NameServer, count: int) -> list[Command]:
    """Put many settings in one go, and return the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for number in range(count):
        ext = {"namespace": "n", "key": f"k{number}", "value": "v"}
        writer.write(encode_command(request(Ask.PUT_KV_CONFIG, ext)))
    frames, answers = FrameReader(), list[Command]()
    while len(answers) < count:
        answers += map(decode_command, frames.feed(await reader.read(1 << 16)))
    writer.close()
    return answers


def test_many_changes_share_one_write_and_are_answered_when_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "config" / "kvConfig.json"

    async def scene() -> None:
        server = CountingServer(path)
        await server.start("127.0.0.1", 0)
        answers = await put(server, 200)
        assert {answer.code for answer in answers} == {Code.SUCCESS}
        assert len(server.written) <= 20
        saved = SettingsTable()
        saved.load(path.read_text())
        assert len(saved.all_of("n") or {}) == 200

        server.has_room = False
        (failed,) = await put(server, 1)
        assert failed.code == Code.SYSTEM_ERROR
        assert "cannot be saved: No space left on device" in str(failed.remark)
        await server.close()

    asyncio.run(scene())
