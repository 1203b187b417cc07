"""Registrations of many connections at once: they share one slice of time, and a bounded memory."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.name_server.test_routes import broker, compressed

from reliable_mq.limits import REGISTRATIONS_SIZE_MAX, SMALL_REGISTRATION_SIZE_MAX
from reliable_mq.name_server.registration_queue import RegistrationQueue
from reliable_mq.name_server.steps import Steps
from reliable_mq.runtime import server_connection
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, decode_command, encode_command, reply, request
from reliable_mq.wire.frame import FrameReader

STEPS = 3


class World:
    """A queue whose registrations take some steps each, and what was begun and done."""

    def __init__(self) -> None:
        self.queue = RegistrationQueue(self._begin)
        self.seen: list[tuple[int, str]] = []
        self.unfinished = 0

    def _begin(self, connection: int, command: Command) -> Steps[Command]:
        self.unfinished += 1
        assert self.unfinished <= 2  # a large one, and a small one that comes between its steps
        for _ in range(STEPS):
            self.seen.append((connection, "step"))
            yield
        self.unfinished -= 1
        return reply(command)

    def slice(self, is_over: Callable[[], bool] = lambda: True) -> list[int]:
        """Work for one slice, by default the shortest; return whose registrations are done."""
        return [connection for connection, _, _ in self.queue.work(is_over)]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.queue.invariants()


def small(size: int = 10) -> Command:
    return request(Ask.REGISTER_BROKER, {"compressed": "false"}, b"x" * size)


def large(size: int = 10) -> Command:
    return request(Ask.REGISTER_BROKER, {"compressed": "true"}, b"x" * size)


def test_large_registrations_are_done_one_after_another_and_a_slice_is_for_all(
    world: World,
) -> None:
    for connection in range(5):
        assert world.queue.add(connection, large())
    world.slice()
    assert world.seen == [(0, "step")]
    assert world.slice(lambda: False) == [0, 1, 2, 3, 4]
    assert [connection for connection, _ in world.seen] == sorted([*range(5)] * STEPS)
    assert not world.queue


def test_small_registrations_do_not_wait_for_a_large_one_nor_keep_it_from_going_on(
    world: World,
) -> None:
    world.queue.add(0, large())
    for connection in range(1, 9):
        world.queue.add(connection, small())
    done = world.slice(lambda: False)
    assert done.index(1) < done.index(0) < done.index(8)


@pytest.mark.parametrize(
    "command",
    [
        small(SMALL_REGISTRATION_SIZE_MAX),
        small(SMALL_REGISTRATION_SIZE_MAX + 1),
        large(1),
        large(0),
    ],
)
def test_each_registration_is_done_in_steps(world: World, command: Command) -> None:
    world.queue.add(0, command)
    world.slice()
    assert len(world.seen) == 1


def test_registrations_that_wait_take_so_much_memory_and_no_more(world: World) -> None:
    half = REGISTRATIONS_SIZE_MAX // 2
    assert world.queue.add(0, large(half))
    assert world.queue.add(1, small(half))
    assert not world.queue.add(2, small(1))
    world.queue.drop(0)
    assert world.queue.add(2, small(1))
    assert world.slice(lambda: False) == [2, 1]


def test_who_goes_while_its_registration_is_under_way_is_forgotten(world: World) -> None:
    world.queue.add(0, large())
    world.queue.add(1, large())
    world.slice()
    world.queue.drop(0)
    world.unfinished -= 1
    world.queue.drop(7)
    assert 0 not in world.queue
    assert world.slice(lambda: False) == [1]


class Watched(NameServer):
    """The real one; it notes how many registrations are under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = 0
        begin = self._core.begin

        def begun(connection: int, command: Command, now_ms: int) -> Steps[Command]:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            answer = yield from begin(connection, command, now_ms)
            self.under_way -= 1
            return answer

        self._core.begin = begun  # type: ignore[method-assign]


def registration(number: int) -> bytes:
    lines = (b"t-%d-%05d 4 3 6 SINGLE_TAG" % (number, topic) for topic in range(5_000))
    header = {**broker(f"b-{number}", f"10.0.0.1:{number}"), "compressed": "true"}
    ext = {name: str(value) for name, value in header.items()}
    return encode_command(request(Ask.REGISTER_BROKER, ext, compressed(*lines)))


def test_connections_that_register_at_once_do_so_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_LONG_TURN", "_SHORT_TURN"):
        shares = getattr(server_connection, name)._replace(works=0.0)
        monkeypatch.setattr(server_connection, name, shares)

    async def register(server: Watched, number: int) -> Command:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(registration(number))
        frames, answers = FrameReader(), list[Command]()
        while not answers:
            answers += map(decode_command, frames.feed(await reader.read(1 << 16)))
        assert len(server._core.routes.route(f"t-{number}-04999") or {}) == 3
        writer.close()
        return answers[0]

    async def scene() -> None:
        server = Watched()
        await server.start("127.0.0.1", 0)
        answers = await asyncio.gather(*(register(server, number) for number in range(8)))
        assert [answer.code for answer in answers] == [Code.SUCCESS] * 8
        assert server.most == 1
        await server.close()

    asyncio.run(scene())
