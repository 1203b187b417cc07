"""Messages in flight: so many and no more, first come, first served, and no place is lost."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from tests.client.test_asyncio_client import IMPATIENT, QUICK, ROUTE, Peer, is_sent
from tests.waiting import SECONDS_MAX, eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.sending.thread_in_flight import InFlight
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ConnectionLost, MessageRefused, TooManyInFlight
from reliable_mq.message import Message, SendResult


def test_places_are_limited_in_number_and_in_bytes_but_one_always_fits() -> None:
    room = InFlight(2, 100)
    assert room.take_places(1000), "a message larger than the limit goes alone"
    assert not room.take_places(1)
    room.release_places(1000)
    assert room.take_places(60)
    assert not room.take_places(41)
    assert room.take_places(40)
    assert not room.take_places(0)
    room.invariants()


def test_whoever_waits_first_is_served_first_also_when_he_wants_more() -> None:
    async def scene() -> None:
        room = InFlight(10, 100)
        assert room.take_places(60)
        order: list[int] = []

        async def want(size: int) -> None:
            await room.wait(size, 60.0)
            order.append(size)

        waiting = []
        for size in (100, 1, 2):
            waiting.append(asyncio.create_task(want(size)))
            await asyncio.sleep(0)
        assert not room.take_places(1), "nobody overtakes"
        room.release_places(60)
        await eventually(lambda: order == [100])
        room.release_places(100)
        await asyncio.gather(*waiting)
        assert order == [100, 1, 2]
        room.invariants()
        room.release_places(1)
        room.release_places(2)
        assert (room.count, room.size) == (0, 0)

    run_scene(scene())


def test_who_gives_up_or_is_cancelled_keeps_no_place_and_nobody_behind_him_waiting() -> None:
    async def scene() -> None:
        room = InFlight(2, 100)
        assert room.take_places(90)
        with pytest.raises(TooManyInFlight, match="1 messages of 90 bytes"):
            await room.wait(50, 0.01)
        large = asyncio.create_task(room.wait(50, 60.0))
        await asyncio.sleep(0)
        small = asyncio.create_task(room.wait(5, 60.0))
        await asyncio.sleep(0)
        large.cancel()
        await small
        granted = asyncio.create_task(room.wait(5, 60.0))
        await asyncio.sleep(0)
        room.release_places(90)
        granted.cancel()  # in the moment in which it has a place and does not know it yet
        await asyncio.gather(large, granted, return_exceptions=True)
        room.release_places(5)
        assert (room.count, room.size) == (0, 0)
        room.invariants()

    run_scene(scene())


def test_many_threads_never_have_more_places_than_there_are() -> None:
    room = InFlight(3, 30)
    lock, now, most = threading.Lock(), 0, 0

    def work(_: int) -> None:
        nonlocal now, most
        if not room.take_places(10):
            room.block(10, 60.0)
        with lock:
            now += 1
            most = max(most, now)
        room.invariants()
        with lock:
            now -= 1
        room.release_places(10)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(2000)))
    assert 1 <= most <= 3
    assert (room.count, room.size) == (0, 0)


def test_a_client_whose_broker_stalls_takes_no_more_messages_than_it_may_hold() -> None:
    settings = msgspec.structs.replace(QUICK, in_flight_count_max=3)

    async def scene() -> None:
        name_server = Peer()
        name_server.silent.add(ROUTE)
        async with name_server.listening() as address:
            client = await asyncio.to_thread(lambda: Client(address, settings=settings))
            await asyncio.to_thread(client.start)

            def send_many() -> None:
                for _ in range(3):
                    client.send_async(Message(topic="t", body=b"x"), timeout=60.0)
                with pytest.raises(TooManyInFlight):
                    client.send_async(Message(topic="t", body=b"x"), timeout=0.01)
                with pytest.raises(TooManyInFlight):
                    client.send(Message(topic="t", body=b"x"), timeout=0.01)

            await asyncio.to_thread(send_many)
            await eventually(lambda: any(ROUTE in asked for asked in name_server.asked))
            name_server.hang_up()
            in_flight = client._engine.in_flight
            await eventually(lambda: in_flight.count == 0)
            await asyncio.to_thread(client.close)

    run_scene(scene())


def test_a_batch_takes_a_place_for_each_of_its_messages_and_one_always_fits() -> None:
    room = InFlight(10, 100)
    assert room.take_places(1000, 50), "a batch larger than the limit goes alone"
    room.invariants()
    assert not room.take_places(1)
    room.release_places(1000, 50)
    assert room.take_places(10, 7)
    assert not room.take_places(10, 4)
    assert room.take_places(10, 3)
    room.invariants()
    room.release_places(10, 7)
    room.release_places(10, 3)
    assert (room.count, room.size) == (0, 0)


def test_batches_and_one_way_messages_wait_for_places_like_any_other() -> None:
    settings = ClientSettings(request_timeout_seconds=0.2, retries=0, in_flight_count_max=3)
    messages = [Message(topic="t", body=b"x") for _ in range(2)]

    async def scene() -> None:
        name_server = Peer()
        name_server.silent.add(ROUTE)
        async with (
            name_server.listening() as address,
            AsyncClient(address, settings=settings) as client,
        ):
            assert client._engine.in_flight.take_places(0, 2)
            with pytest.raises(TooManyInFlight):
                await client.send_batch(messages, timeout=0.01)
            assert client._engine.in_flight.take_places(0, 1)
            with pytest.raises(TooManyInFlight):
                await client.send_oneway(messages[0])
            client._engine.in_flight.release_places(0, 2)
            client._engine.in_flight.release_places(0, 1)
            with pytest.raises(ConnectionLost):
                await client.send_batch(messages)
            assert (client._engine.in_flight.count, client._engine.in_flight.size) == (0, 0)

    run_scene(scene())


def test_of_many_messages_a_batch_without_a_place_fails_and_nothing_is_raised() -> None:
    settings = msgspec.structs.replace(IMPATIENT, in_flight_count_max=3)

    async def scene() -> None:
        broker = Peer()
        async with broker.listening() as broker_address:
            name_server = Peer(broker_address)
            async with (
                name_server.listening() as address,
                AsyncClient(address, settings=settings) as client,
            ):
                await eventually(lambda: is_sent(client))  # its route is known now
                assert client._engine.in_flight.take_places(0, 3)
                (outcome,) = await client.send_many([Message(topic="t", body=b"x")])
                assert isinstance(outcome, TooManyInFlight)
                client._engine.in_flight.release_places(0, 3)

                async def is_stored() -> bool:
                    (outcome,) = await client.send_many([Message(topic="t", body=b"x")])
                    return isinstance(outcome, SendResult)

                await eventually(is_stored)
                assert client._engine.in_flight.count == 0

    run_scene(scene())


def test_a_message_that_is_refused_gives_its_place_back() -> None:
    async def scene() -> None:
        async with AsyncClient("127.0.0.1:1", settings=QUICK) as client:
            for body in (b"", "text", None, 7):
                with pytest.raises(MessageRefused):
                    await client.send(Message(topic="t", body=body))  # type: ignore[arg-type]
            assert (client._engine.in_flight.count, client._engine.in_flight.size) == (0, 0)

    run_scene(scene())


def test_a_signal_handler_may_send_while_its_thread_takes_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for the lock that its own thread had."""
    in_flight = InFlight(10, 100)
    fits = InFlight._fits
    nested: list[bool] = []

    def interrupted(self: InFlight, size: int, count: int) -> bool:
        if not nested:
            nested.append(True)
            assert self.take_places(1)
            self.release_places(1)
        return fits(self, size, count)

    monkeypatch.setattr(InFlight, "_fits", interrupted)
    thread = threading.Thread(target=in_flight.take_places, args=(1,), daemon=True)  # it may hang
    thread.start()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    assert in_flight.count == 1


def test_a_thread_that_a_signal_takes_out_of_the_line_keeps_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: threading.Event, __: float | None = None) -> bool:
        raise KeyboardInterrupt

    in_flight = InFlight(1, 100)
    assert in_flight.take_places(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            in_flight.block(1, 1.0)
    in_flight.release_places(1)
    assert in_flight.count == 0
    assert in_flight.take_places(1)
