"""The connection to a master: what it hands on, when it reads no more, and how it ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.waiting import eventually, run_scene

from reliable_mq.errors import FrameError
from reliable_mq.replication.ha_frames import Transfer, encode_transfer
from reliable_mq.runtime import master_link
from reliable_mq.runtime.master_link import MasterLink

Scene = Callable[[MasterLink, asyncio.StreamWriter], Awaitable[None]]
PART = bytes(32 * 1024)
FLOOD = 1_000  # transfers, 32 MiB: more than sockets keep


def with_master(scene: Scene) -> None:
    """Play a scene with a link, and the writer of the master at its other end."""

    async def whole() -> None:
        joined: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

        async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            joined.set_result(writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        _transport, link = await asyncio.get_running_loop().create_connection(
            lambda: MasterLink(lambda _found: None), "127.0.0.1", port
        )
        writer = await joined
        try:
            await scene(link, writer)
        finally:
            link.transport.abort()
            writer.transport.abort()
            server.close()

    run_scene(whole())


def write_flood(writer: asyncio.StreamWriter) -> None:
    for number in range(FLOOD):
        writer.write(encode_transfer(number * len(PART), PART))


async def no_room_needed() -> None:
    pass


def unread(writer: asyncio.StreamWriter) -> int:
    return writer.transport.get_write_buffer_size()


def test_what_nobody_asks_for_is_not_read() -> None:
    async def scene(link: MasterLink, writer: asyncio.StreamWriter) -> None:
        write_flood(writer)
        assert (await link.transfers())[0] == Transfer(0, PART)
        await eventually(lambda: unread(writer) > 0)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert unread(writer) > FLOOD * len(PART) // 4

    with_master(scene)


def test_all_transfers_are_handed_on_in_order_and_the_end_is_told() -> None:
    async def scene(link: MasterLink, writer: asyncio.StreamWriter) -> None:
        taken: list[Transfer] = []

        def take(found: list[Transfer]) -> bool:
            taken.extend(found)
            return True

        write_flood(writer)
        await link.transfers()
        working = asyncio.ensure_future(link.forward(take, no_room_needed))
        await eventually(lambda: bool(taken) and taken[-1].offset == (FLOOD - 1) * len(PART))
        assert [each.offset for each in taken[1:]] == [
            each.offset + len(each.data) for each in taken[:-1]
        ]
        writer.close()
        await working

    with_master(scene)


def test_without_room_nothing_is_read_until_there_is_some() -> None:
    async def scene(link: MasterLink, writer: asyncio.StreamWriter) -> None:
        taken: list[Transfer] = []
        has_room = asyncio.Event()

        def take(found: list[Transfer]) -> bool:
            taken.extend(found)
            return has_room.is_set()

        async def room() -> None:
            if taken:
                await has_room.wait()

        working = asyncio.ensure_future(link.forward(take, room))
        write_flood(writer)
        await eventually(lambda: bool(taken))
        count = len(taken)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert len(taken) == count
        has_room.set()
        await eventually(lambda: len(taken) == FLOOD)
        writer.close()
        await working

    with_master(scene)


def test_what_the_taker_raises_ends_the_link_and_nothing_is_taken_after_it() -> None:
    async def scene(link: MasterLink, writer: asyncio.StreamWriter) -> None:
        taken: list[Transfer] = []

        def take(found: list[Transfer]) -> bool:
            taken.extend(found)
            raise KeyError("broken")

        writer.write(encode_transfer(0, b"x"))
        working = asyncio.ensure_future(link.forward(take, no_room_needed))
        with pytest.raises(KeyError, match="broken"):
            await working
        writer.write(encode_transfer(1, b"y"))
        await writer.drain()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(taken) == 1

    with_master(scene)


def test_bytes_that_are_no_transfers_end_both_ways_of_reading() -> None:
    async def waiting(link: MasterLink, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request")
        with pytest.raises(FrameError):
            await link.transfers()

    async def forwarding(link: MasterLink, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request")
        with pytest.raises(FrameError):
            await link.forward(lambda _found: True, no_room_needed)

    with_master(waiting)
    with_master(forwarding)


def test_a_copy_offers_the_processor_after_each_step_and_small_transfers_are_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A master that shares the processors has clients; for a copy nobody waits."""
    offers: list[int] = []
    taken: list[list[int]] = []

    def take(found: list[Transfer]) -> bool:
        taken.append([len(each.data) for each in found])
        return True

    async def scene(link: MasterLink, _writer: asyncio.StreamWriter) -> None:
        monkeypatch.setattr(master_link, "_offer_processor", lambda: offers.append(len(taken)))
        working = asyncio.ensure_future(link.forward(take, no_room_needed))
        await asyncio.sleep(0)
        sizes = [100_000, 40_000, 10, 30_000, 50_000]
        begins = [sum(sizes[:number]) for number in range(len(sizes))]
        parts = [
            encode_transfer(begin, bytes(size)) for begin, size in zip(begins, sizes, strict=True)
        ]
        link.data_received(b"".join(parts))
        assert taken == [[100_000], [40_000, 10, 30_000], [50_000]]
        assert offers == [1, 2, 3]
        link.data_received(encode_transfer(sum(sizes), b"x"))
        assert offers == [1, 2, 3], "somebody may wait for this one"
        working.cancel()

    with_master(scene)
