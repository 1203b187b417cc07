"""What a connection writes: requests of one turn together, a lone one at once."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.runtime.link_world import LONG_SECONDS, Peer, World, play

from reliable_mq.errors import ConnectionLost
from reliable_mq.runtime.busy_wait import BusyWait
from reliable_mq.runtime.link import Link
from reliable_mq.wire.command import Command, decode_command, encode_command, reply, request
from reliable_mq.wire.frame import FrameReader


class Recorder:
    """A transport that remembers what was written in one go."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self._transport.write(data)

    def counts(self) -> list[int]:
        return [len(FrameReader().feed(data)) for data in self.written]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def recorded(it: World) -> tuple[Link, Recorder]:
    """Open the link, and return it with what is written on it from now on."""
    await it.links.call(it.address, request(1), LONG_SECONDS)
    (link,) = it.links.open_links()
    assert link._transport is not None
    recorder = Recorder(link._transport)
    link._transport = recorder  # type: ignore[assignment]
    return link, recorder


async def echo_for_ever(peer: Peer) -> None:
    while commands := await peer.receive(1):
        for command in commands:
            if not command.is_oneway:
                peer.send(reply(command, body=command.body))


def rendered(body: bytes, opaque: int) -> bytes:
    command = request(1, body=body)
    command.opaque = opaque
    return encode_command(command)


def test_requests_of_one_turn_leave_in_one_write_in_their_order() -> None:
    async def scene(it: World) -> None:
        link, recorder = await recorded(it)
        asked = [link.ask(partial(rendered, bytes([at])), 1, LONG_SECONDS) for at in range(10)]
        await link.post(request(2, body=b"post", oneway=True), LONG_SECONDS)
        called = await asyncio.gather(
            *(link.call(request(3, body=b"c"), LONG_SECONDS) for _ in range(5))
        )
        assert [answer.body for answer in await asyncio.gather(*asked)] == [
            bytes([at]) for at in range(10)
        ]
        assert [answer.body for answer in called] == [b"c"] * 5
        assert recorder.counts() == [1, 10, 5], "the first was alone, the tasks begin a turn later"
        frames = FrameReader().feed(b"".join(recorder.written))
        assert [decode_command(frame).code for frame in frames] == [1] * 10 + [2] + [3] * 5
        link.invariants()

    play(echo_for_ever, scene)


def test_a_request_that_is_alone_leaves_at_once() -> None:
    async def scene(it: World) -> None:
        link, recorder = await recorded(it)
        future = link.ask(partial(rendered, b"x"), 1, LONG_SECONDS)
        assert recorder.counts() == [1]
        assert (await future).body == b"x"

    play(echo_for_ever, scene)


def test_much_does_not_wait_for_the_end_of_the_turn() -> None:
    async def scene(it: World) -> None:
        link, recorder = await recorded(it)
        large = bytes(20_000)
        asked = [link.ask(partial(rendered, large), 1, LONG_SECONDS) for _ in range(4)]
        assert recorder.counts() == [1, 2]
        assert [(await each).body for each in asked] == [large] * 4

    play(echo_for_ever, scene)


class Seen(BusyWait):
    """A busy wait that always looks, and counts what it is asked and told."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.begun = self.looks = self.answers = 0

    def begin(self) -> bool:
        self.begun += 1
        return True

    def should_continue(self) -> bool:
        self.looks += 1
        return True

    def note_answer(self) -> None:
        self.answers += 1


def test_the_loop_looks_for_the_answer_to_a_lone_request_and_then_no_more() -> None:
    async def scene(it: World) -> None:
        link, _ = await recorded(it)
        seen = link._busy_wait = Seen()
        for at in range(3):
            answer = await link.ask(partial(rendered, bytes([at])), 1, LONG_SECONDS)
            assert answer.body == bytes([at])
        await asyncio.sleep(0)
        assert (seen.begun, seen.answers) == (3, 3)
        looks = seen.looks
        for _ in range(10):
            await asyncio.sleep(0)
        assert seen.looks == looks

    play(echo_for_ever, scene)


def test_nobody_looks_for_the_answers_to_many_requests() -> None:
    async def scene(it: World) -> None:
        link, _ = await recorded(it)
        waits = asyncio.create_task(link.call(request(1, body=b"first"), LONG_SECONDS))
        await asyncio.sleep(0)
        seen = link._busy_wait = Seen()
        asked = [link.ask(partial(rendered, b"x"), 1, LONG_SECONDS) for _ in range(3)]
        await asyncio.gather(waits, *asked)
        assert seen.begun == 0

    play(echo_for_ever, scene)


def test_a_look_that_is_in_vain_ends_and_the_answer_comes_all_the_same() -> None:
    async def scene(it: World) -> None:
        link, _ = await recorded(it)
        clock = iter(range(1_000_000))
        link._busy_wait = BusyWait(1.0, lambda: next(clock) * 0.001)
        for at in range(20):
            answer = await link.ask(partial(rendered, bytes([at])), 1, LONG_SECONDS)
            assert answer.body == bytes([at])

    play(echo_for_ever, scene)


def test_what_was_asked_a_moment_before_the_end_still_leaves() -> None:
    got: list[Command] = []
    ended = asyncio.Event()

    async def note(peer: Peer) -> None:
        got.extend(await peer.receive(1_000_000))
        ended.set()

    async def scene(it: World) -> None:
        link = await it.links._opened(it.address)
        asked = [link.ask(partial(rendered, b"x"), 1, LONG_SECONDS) for _ in range(3)]
        link.close()
        await asyncio.wait_for(ended.wait(), LONG_SECONDS)
        assert len(got) == 3
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3
        with pytest.raises(ConnectionLost, match="closed it"):
            link.ask(partial(rendered, b"x"), 1, LONG_SECONDS)

    play(note, scene)


def test_a_link_is_clear_while_its_peer_reads() -> None:
    async def scene(it: World) -> None:
        assert it.links.clear(it.address) is None, "it is not open yet"
        await it.links.call(it.address, request(1), LONG_SECONDS)
        (link,) = it.links.open_links()
        assert it.links.clear(it.address) is link
        link.pause_writing()
        assert it.links.clear(it.address) is None
        link.resume_writing()
        assert it.links.clear(it.address) is link

    play(echo_for_ever, scene)
