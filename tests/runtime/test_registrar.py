"""Registrations over real connections: what a name server is told, and when replies leave."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import pytest
from tests.broker_core.broker_world import BrokerWorld, there
from tests.waiting import eventually

from reliable_mq.broker_core import registration
from reliable_mq.broker_core.registration import PART_SIZE_MAX
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.registrar import Registrar, Replies
from reliable_mq.wire import fastjson, frame
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.request_signature import ACCESS_KEY, SIGNATURE, RequestSigner


class WatchedNameServer(NameServer):
    """The real one; it notes which topics each registration tells."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[set[str]] = []
        self.codes: list[int] = []
        self.commands: list[Command] = []

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> bool:
        taken = list(commands)
        for command in taken:
            self.codes.append(command.code)
            self.commands.append(command)
            if command.code == Ask.REGISTER_BROKER:
                wrapper = fastjson.loads(command.body)["topicConfigSerializeWrapper"]
                self.told.append(set(wrapper["topicConfigTable"]))
        return super().received(connection, taken)

    def knows(self, topic: str) -> bool:
        command = request(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return self._core.receive(0, command, 0).code == 0


class Scene:
    """A broker's state, a name server and the registrar between them."""

    def __init__(self, **properties: str) -> None:
        self.world = BrokerWorld(None, **properties)
        self.world.state.take_unregistered()
        self.server = WatchedNameServer()
        self.sent: Replies = []
        self.registrar: Registrar

    async def start(self) -> None:
        await self.server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{self.server.port}"
        self.registrar = Registrar(self.world.state, [address], self.sent.extend)
        await self.registrar.register()

    def create(self, name: str, frame: bytes = b"done") -> None:
        """Create a topic whose maker waits for the name server."""
        self.world.state.put_topic(TopicConfig(topic_name=name), self.world.now_ms)
        self.registrar.register_changes([(1, frame)])

    async def until_sent(self, count: int) -> None:
        await eventually(lambda: len(self.sent) >= count, lambda: f"{len(self.sent)} were sent")

    async def stop(self) -> None:
        await self.registrar.unregister()
        await self.registrar.close()
        await self.server.close()


def played(act: Callable[[Scene], Awaitable[None]]) -> Scene:
    """Return a scene after `act`."""

    async def play() -> Scene:
        scene = Scene()
        await scene.start()
        try:
            await act(scene)
        finally:
            await scene.stop()
        return scene

    return asyncio.run(play())


def test_a_topic_that_is_new_is_told_alone_and_its_maker_answered_after_that() -> None:
    async def act(scene: Scene) -> None:
        scene.create("new")
        assert scene.sent == []
        await scene.until_sent(1)
        assert scene.server.knows("new")
        assert scene.server.knows("TBW102")  # what is not told again is not forgotten

    scene = played(act)
    assert len(scene.server.told[0]) > 10
    assert scene.server.told[1:] == [{"new"}]
    assert scene.sent == [(1, b"done")]


def test_topics_that_are_made_while_others_are_told_go_together() -> None:
    async def act(scene: Scene) -> None:
        scene.create("first")
        await asyncio.sleep(0)  # its registration is under way
        for number in range(50):
            scene.create(f"topic-{number}")
        await scene.until_sent(51)

    scene = played(act)
    assert scene.server.told[1:] == [{"first"}, {f"topic-{number}" for number in range(50)}]


def test_a_name_server_that_lost_its_connection_is_told_everything() -> None:
    async def act(scene: Scene) -> None:
        port = scene.server.port
        await scene.server.close()
        told = scene.server.told
        scene.server = WatchedNameServer()
        await scene.server.start("127.0.0.1", port)
        scene.create("new")
        await scene.until_sent(1)
        scene.server.told[:0] = told

    scene = played(act)
    first, *others = scene.server.told
    assert others[-1] == first | {"new"}


def test_a_topic_that_is_gone_before_it_was_told_is_left_out() -> None:
    async def act(scene: Scene) -> None:
        state = scene.world.state
        state.put_topic(TopicConfig(topic_name="stays"), scene.world.now_ms)
        state.put_topic(TopicConfig(topic_name="goes"), scene.world.now_ms)
        state.topics.remove("goes", scene.world.now_ms)
        scene.registrar.register_changes([(1, b"done")])
        await scene.until_sent(1)

    assert played(act).server.told[1:] == [{"stays"}]


def test_who_waits_for_nothing_new_is_answered_without_a_registration() -> None:
    async def act(scene: Scene) -> None:
        scene.registrar.register_changes([(1, b"done")])
        await scene.until_sent(1)

    assert len(played(act).server.told) == 1


def test_a_topic_can_be_told_without_a_registration_of_the_broker() -> None:
    async def act(scene: Scene) -> None:
        scene.world.ask(Ask.UPDATE_BROKER_CONFIG, {}, b"enableSingleTopicRegister=true")
        scene.create("new")
        await scene.until_sent(1)
        assert scene.server.knows("new")

    scene = played(act)
    assert len(scene.server.told) == 1
    assert Ask.REGISTER_TOPIC_IN_NAMESRV in scene.server.codes


def test_a_broker_that_takes_its_leave_keeps_nobodys_reply() -> None:
    async def act(scene: Scene) -> None:
        scene.create("under way", b"first")
        await asyncio.sleep(0)
        scene.create("next", b"second")
        await scene.registrar.unregister()
        scene.create("late", b"third")

    assert played(act).sent == [(1, b"first"), (1, b"second"), (1, b"third")]


def many(count: int, perm: int = 6) -> list[TopicConfig]:
    names = (f"many-{number}-{'x' * 100}" for number in range(count))
    return [TopicConfig(topic_name=name, perm=perm) for name in names]


def test_topics_that_fit_no_frame_are_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    frame_max = 2 * PART_SIZE_MAX
    monkeypatch.setattr(frame, "LENGTH_MAX", frame_max)

    async def act(scene: Scene) -> None:
        for topic in many(4_000):
            scene.world.state.topics.set_topic(topic, scene.world.now_ms)
        assert len(scene.world.state.topics.wrapped()) > frame_max
        await scene.registrar.register()
        assert scene.registrar._informed
        assert all(scene.server.knows(topic.topic_name) for topic in many(4_000))

    scene = played(act)
    told = [name for names in scene.server.told[1:] for name in names]
    assert len(told) == len(set(told)) > 4_000


def test_a_change_reaches_the_name_server_in_whichever_part_it_is() -> None:
    async def act(scene: Scene) -> None:
        state = scene.world.state
        for perm in (6, 4, 2):
            for topic in many(4_000, perm=perm):
                state.topics.set_topic(topic, scene.world.now_ms)
            await scene.registrar.register()
            for topic in many(4_000):
                queues = scene.server._core.routes.route(topic.topic_name)
                assert there(queues)["queueDatas"][0]["perm"] == perm

    assert len(played(act).server.told) > 6


def test_a_topic_that_fits_no_frame_is_named_and_the_broker_goes_on() -> None:
    async def act(scene: Scene) -> None:
        attributes = {"+note": "x" * FRAME_SIZE_MAX}
        topic = TopicConfig(topic_name="huge", attributes=attributes)
        scene.world.state.put_topic(topic, scene.world.now_ms)
        scene.registrar.register_changes([(1, b"done")])
        await scene.until_sent(1)
        assert not scene.server.knows("huge")

    assert played(act).sent == [(1, b"done")]


def test_a_broker_that_tells_topics_alone_tells_all_in_one_registration_as_far_as_they_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server may forget the topics that a registration lacks."""

    async def act(scene: Scene) -> None:
        state = scene.world.state
        state.config = msgspec.structs.replace(state.config, single_topic_register=True)
        for topic in many(4_000):
            state.topics.set_topic(topic, scene.world.now_ms)
        state.take_unregistered()
        assert len(state.topics.wrapped()) > 2 * PART_SIZE_MAX
        await scene.registrar.register()
        assert len(scene.server.told[-1]) > 4_000
        registrations = len(scene.server.told)

        monkeypatch.setattr(registration, "_WHOLE_SIZE_MAX", PART_SIZE_MAX)
        scene.server._core.routes.disconnected(1)
        await scene.registrar.register()
        assert len(scene.server.told) == registrations + 1
        assert scene.server.codes.count(Ask.REGISTER_TOPIC_IN_NAMESRV) > 1_000
        assert all(scene.server.knows(topic.topic_name) for topic in many(4_000))

    played(act)


def test_a_broker_with_an_inner_client_signs_its_registrations() -> None:
    """A name server of Apache's ignores it; a proxy before it may not."""

    async def scene() -> None:
        inner = '{"accessKey":"inner","secretKey":"a secret of inner"}'
        with_client = Scene(innerClientAuthenticationCredentials=inner)
        await with_client.start()
        await with_client.stop()
        assert {command.code for command in with_client.server.commands} >= {
            Ask.REGISTER_BROKER,
            Ask.UNREGISTER_BROKER,
        }
        signer = RequestSigner(b"a secret of inner")
        for command in with_client.server.commands:
            fields = command.ext_fields
            assert fields[ACCESS_KEY] == "inner"
            made = signer.signature(fields, command.body, command.version)
            assert fields[SIGNATURE] == made.decode()
        without = Scene()
        await without.start()
        await without.stop()
        assert not any(ACCESS_KEY in command.ext_fields for command in without.server.commands)

    asyncio.run(scene())
