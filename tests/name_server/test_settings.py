"""Settings at the name server, and the ordered topics that it tells clients and brokers of."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld
from tests.name_server.test_routes import World
from tests.waiting import Budget, allowed_seconds, eventually, looks

from reliable_mq.broker_core.registration import take_order_topics
from reliable_mq.errors import StoreCorrupt
from reliable_mq.limits import NAMESPACE_COST, SETTING_COST, SETTINGS_SIZE_MAX
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
    table.set_value("n", "k", "v")
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
    assert "remove some settings first" in str(refused.remark)
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


def test_a_value_that_cannot_be_saved_fails_for_its_sender_and_nobody_else(tmp_path: Path) -> None:
    """A thread may not begin, and whatever else: each change is answered, and the next is saved."""

    class Unlucky(CountingServer):
        faults = 2

        def _write(self, text: str) -> None:
            if self.faults:
                self.faults -= 1
                raise RuntimeError("can't start new thread")
            super()._write(text)

    async def scene() -> None:
        server = Unlucky(tmp_path / "kvConfig.json")
        await server.start("127.0.0.1", 0)
        for _ in range(2):
            (failed,) = await put(server, 1)
            assert failed.code == Code.SYSTEM_ERROR
            assert "can't start new thread" in str(failed.remark)
        (saved,) = await put(server, 1)
        assert saved.code == Code.SUCCESS
        await server.close()

    asyncio.run(asyncio.wait_for(scene(), allowed_seconds(30)))


def test_a_name_server_ends_while_a_peer_changes_settings_all_the_time(tmp_path: Path) -> None:
    class Slow(CountingServer):
        def _write(self, text: str) -> None:
            super()._write(text)
            # A slow disk: meanwhile there comes one more change, or none.
            slow = Budget(0.2, 0.2)
            for _ in looks(lambda: not self._unsaved and slow.is_left(), 0.001):
                pass

    async def change(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        ext = {"namespace": "n", "key": "k", "value": "v"}
        frame = encode_command(request(Ask.PUT_KV_CONFIG, ext))
        reading = asyncio.create_task(reader.read())
        with suppress(OSError):
            while not reading.done():
                writer.write(frame)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    async def scene() -> None:
        server = Slow(tmp_path / "kvConfig.json")
        await server.start("127.0.0.1", 0)
        peer = asyncio.create_task(change(server.port))
        await eventually(lambda: len(server.written) >= 3)
        await asyncio.wait_for(server.close(), allowed_seconds(10))
        await peer

    asyncio.run(scene())


_OTHER_ENCODING = """
import asyncio, locale, pathlib, sys
from reliable_mq.runtime.name_server import NameServer
assert locale.getencoding().upper().replace("-", "") != "UTF8", locale.getencoding()
server = NameServer(pathlib.Path(sys.argv[1]))
server._load()
settings = server._core.settings
settings.set_value("n", "euro", "\\u20ac" + (settings.get("n", "euro") or ""))
server._write(settings.dump())
"""


def test_settings_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for _ in range(2):
        words = [sys.executable, "-c", _OTHER_ENCODING, str(path)]
        subprocess.run(words, env=variables, check=True)
    again = SettingsTable()
    again.load(path.read_text("utf-8"))
    assert again.get("n", "euro") == "€€"


def test_a_value_that_is_no_text_is_refused_and_others_are_kept(world: World) -> None:
    for name in ("namespace", "key", "value"):
        ext = {**ORDER, "value": "v", name: "\ud800"}
        assert world.ask(Ask.PUT_KV_CONFIG, ext).code == Code.SYSTEM_ERROR
    world.core.settings.dump()


def test_many_small_values_and_namespaces_count_for_what_they_take(world: World) -> None:
    def put_until_full(ext: Callable[[int], dict[str, str]]) -> int:
        number = 0
        while world.ask(Ask.PUT_KV_CONFIG, ext(number)).code == Code.SUCCESS:
            number += 1
        return number

    namespaces = put_until_full(lambda number: {"namespace": str(number), "key": "k", "value": ""})
    assert namespaces <= SETTINGS_SIZE_MAX // NAMESPACE_COST
    for number in range(namespaces):
        world.ask(Ask.DELETE_KV_CONFIG, {"namespace": str(number), "key": "k"})
    values = put_until_full(lambda number: {"namespace": "n", "key": str(number), "value": ""})
    assert SETTINGS_SIZE_MAX // SETTING_COST // 2 < values <= SETTINGS_SIZE_MAX // SETTING_COST
