"""The batcher on both faces: who waits, who is told what, and that nothing is left behind."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.client.script import route_body
from tests.client.test_asyncio_client import QUICK, ROUTE, Peer
from tests.waiting import eventually, run_scene, until

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import (
    ConnectionLost,
    MessageRefused,
    NotSent,
    RemoteError,
    TooManyInFlight,
    UsageError,
)
from reliable_mq.message import Message, SendResult
from reliable_mq.wire.batch_body import decode_batch
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

BATCH = RequestCode.SEND_BATCH_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2
SETTINGS = msgspec.structs.replace(QUICK, heartbeat_seconds=5.0)
FOREVER = 3600.0


class Shelf(Peer):
    """A broker that keeps what it is sent, batch by batch; it refuses bodies that are "bad"."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[bytes]] = []

    def _answer(self, command: Command) -> Command | None:
        if command.code not in (SEND, BATCH):
            return super()._answer(command)
        bodies = [command.body]
        if command.code == BATCH:
            bodies = [item.body for item in decode_batch(command.body)]
        if b"bad" in bodies:
            return reply(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, "it says no")
        self.batches.append(bodies)
        ids = ",".join(f"{at:032X}" for at in range(len(bodies)))
        ext = {"msgId": ids, "queueId": command.ext_fields["e"], "queueOffset": "10"}
        return reply(command, ext=ext)


class Names(Peer):
    """A name server that knows one broker with four queues, once `knows` is set."""

    def __init__(self, broker: str) -> None:
        super().__init__(broker)
        self.knows = True

    def _answer(self, command: Command) -> Command | None:
        if command.code == ROUTE and not self.knows:
            return reply(command, ResponseCode.TOPIC_NOT_EXIST, "none")
        if command.code == ROUTE:
            return reply(command, body=route_body({"a": 4}, addresses={"a": self.broker}))
        return super()._answer(command)


@asynccontextmanager
async def shelf_and_names() -> AsyncIterator[tuple[Shelf, Names, str]]:
    shelf = Shelf()
    async with shelf.listening() as broker_address:
        names = Names(broker_address)
        async with names.listening() as address:
            yield shelf, names, address


Scene = Callable[[AsyncClient, Shelf], Coroutine[Any, Any, None]]


def play(scene: Scene, settings: ClientSettings = SETTINGS) -> None:
    async def run() -> None:
        async with (
            shelf_and_names() as (shelf, _, address),
            AsyncClient(address, settings=settings) as client,
        ):
            await scene(client, shelf)

    run_scene(run())


def message(body: object, key: str = "", topic: str = "t") -> Message:
    return Message(topic=topic, body=str(body).encode(), ordering_key=key)


def test_messages_that_are_sent_at_once_leave_in_few_requests_and_each_is_told_its_place() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        async with client.batcher(count=10, linger=FOREVER) as batcher:
            results = await asyncio.gather(*(batcher.send(message(at)) for at in range(30)))
        assert [len(batch) for batch in shelf.batches] == [10, 10, 10]
        assert [result.queue_offset for result in results] == [10 + at % 10 for at in range(30)]
        assert len({result.message_id for result in results}) == 30

    play(scene)


def test_a_single_message_waits_for_company_only_as_long_as_it_was_told_to() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        batcher = client.batcher(linger=0.02)
        results = await asyncio.gather(batcher.send(message(1)), batcher.send(message(2)))
        assert shelf.batches == [[b"1", b"2"]]
        assert all(isinstance(result, SendResult) for result in results)

    play(scene)


def test_a_linger_of_nothing_still_gathers_what_comes_in_one_turn_of_the_loop() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        await client.send(message("the route is known"))
        batcher = client.batcher(linger=0)
        await asyncio.gather(*(batcher.send(message(at)) for at in range(5)))
        assert shelf.batches[1:] == [[b"%d" % at for at in range(5)]]

    play(scene)


def test_flush_sends_what_waits_and_returns_when_it_is_stored() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        batcher = client.batcher(linger=FOREVER)
        await batcher.flush()
        futures = [await batcher.put(message(at)) for at in range(3)]
        assert shelf.batches == []
        await batcher.flush()
        assert [future.done() for future in futures] == [True] * 3
        assert shelf.batches == [[b"0", b"1", b"2"]]
        assert (client._engine.in_flight.count, client._engine.in_flight.size) == (0, 0)

    play(scene)


def test_flush_waits_for_what_was_flushed_before_and_not_for_what_comes_later() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        shelf.silent.add(SEND)
        batcher = client.batcher(linger=FOREVER)
        first = await batcher.put(message(1))
        flushing = asyncio.create_task(batcher.flush())
        await eventually(lambda: any(SEND in asked for asked in shelf.asked))
        again = asyncio.create_task(batcher.flush())
        await asyncio.sleep(0)
        assert not again.done(), "it was put before this flush, too"
        later = await batcher.put(message(2))
        shelf.hang_up()
        with pytest.raises(ConnectionLost):
            await first
        await asyncio.gather(flushing, again)
        assert not later.done()
        shelf.silent.clear()
        await batcher.close()
        assert later.result().queue_offset == 10

    play(scene)


@pytest.mark.parametrize("how", ["batcher", "client"])
def test_closing_sends_what_waits_and_takes_nothing_more(how: str) -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        batcher = client.batcher(linger=FOREVER)
        future = await batcher.put(message(1))
        await (batcher if how == "batcher" else client).close()
        assert future.result().queue_offset == 10
        assert shelf.batches == [[b"1"]]
        with pytest.raises(UsageError, match="closed"):
            await batcher.put(message(2))
        assert client._engine.in_flight.count == 0

    async def run() -> None:
        async with shelf_and_names() as (shelf, _, address):
            client = AsyncClient(address, settings=SETTINGS)
            await client.start()
            await scene(client, shelf)
            if how == "batcher":
                await client.close()

    run_scene(run())


def test_the_messages_of_a_key_leave_in_the_order_in_which_they_came() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        async with client.batcher(count=4, linger=0.001) as batcher:
            for at in range(200):
                await batcher.put(message(at, key=f"key-{at % 5}"))
        stored = [int(body) for batch in shelf.batches for body in batch]
        for key in range(5):
            of_key = [number for number in stored if number % 5 == key]
            assert of_key == list(range(key, 200, 5))

    play(scene)


def test_first_messages_keep_their_order_while_the_route_is_looked_up() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        async with client.batcher(count=1000, linger=FOREVER) as batcher:
            while client._engine.routes.find("t") is None or len(sent) < 10:
                sent.append(await batcher.put(message(len(sent), key="k")))
                await asyncio.sleep(0)
            for _ in range(5):
                sent.append(await batcher.put(message(len(sent), key="k")))
        assert shelf.batches == [[b"%d" % at for at in range(len(sent))]]

    sent: list[asyncio.Future[SendResult]] = []
    play(scene)


def test_behind_a_batch_that_failed_the_later_ones_of_its_queue_are_told_so() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        await client.send(message("the route is known"))
        async with client.batcher(count=2, linger=FOREVER) as batcher:
            bodies = ["1", "bad", "2", "3", "4"]
            futures = [await batcher.put(message(body, key="k")) for body in bodies]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(each) for each in outcomes] == [RemoteError, RemoteError, *[NotSent] * 3]
            again = await batcher.put(message("again", key="k"))
        assert again.result().queue_offset == 10
        assert shelf.batches[1:] == [[b"again"]]
        assert client._engine.in_flight.count == 0

    play(scene)


def test_a_message_that_is_refused_is_told_at_once_and_holds_up_nobody() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        async with client.batcher(linger=FOREVER) as batcher:
            with pytest.raises(MessageRefused, match="empty"):
                await batcher.put(message(""))
            future = await batcher.put(message(1))
        assert future.result().queue_offset == 10
        assert (client._engine.in_flight.count, client._engine.in_flight.size) == (0, 0)

    play(scene)


def test_a_topic_that_nobody_knows_fails_only_its_own_messages() -> None:
    async def run() -> None:
        async with shelf_and_names() as (_, names, address):
            names.knows = False
            async with AsyncClient(address, settings=SETTINGS) as client:
                batcher = client.batcher(linger=0.001)
                outcomes = await asyncio.gather(
                    *(batcher.send(message(at)) for at in range(3)), return_exceptions=True
                )
                assert {type(each).__name__ for each in outcomes} == {"NoRoute"}
                names.knows = True
                assert (await batcher.send(message(4))).queue_offset == 10

    run_scene(run())


def test_who_is_cancelled_while_he_waits_leaves_his_message_to_be_sent() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        async with client.batcher(linger=FOREVER) as batcher:
            sending = asyncio.create_task(batcher.send(message(1)))
            await asyncio.sleep(0)
            future = await batcher.put(message(2))
            sending.cancel()
            future.cancel()
            await asyncio.gather(sending, future, return_exceptions=True)
        assert shelf.batches == [[b"1", b"2"]]
        assert client._engine.in_flight.count == 0

    play(scene)


def test_a_batcher_holds_no_more_messages_than_a_client_may_have_on_their_way() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        shelf.silent |= {SEND, BATCH}
        batcher = client.batcher(count=100, linger=FOREVER)
        futures = [await batcher.put(message(at)) for at in range(3)]
        assert not any(SEND in asked or BATCH in asked for asked in shelf.asked)
        with pytest.raises(TooManyInFlight):
            await batcher.put(message(4), timeout=0.05)
        # Nobody shall wait for a place of one who only waits for company.
        await eventually(lambda: any(BATCH in asked for asked in shelf.asked))
        shelf.hang_up()
        await asyncio.gather(*futures, return_exceptions=True)
        assert client._engine.in_flight.count == 0

    play(scene, msgspec.structs.replace(SETTINGS, in_flight_count_max=3))


def with_threads(
    scene: Callable[[Client, Shelf], None], settings: ClientSettings = SETTINGS
) -> None:
    """Play a scene of the synchronous face in a thread, beside the broker's loop."""

    async def run() -> None:
        async with shelf_and_names() as (shelf, _, address):

            def work() -> None:
                with Client(address, settings=settings) as client:
                    scene(client, shelf)

            await asyncio.to_thread(work)

    run_scene(run())


def test_many_threads_share_the_batches_of_one_client() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        with client.batcher(count=50, linger=0.01) as batcher, ThreadPoolExecutor(8) as pool:

            def send(at: int) -> SendResult:
                return batcher.send(message(at))

            results = list(pool.map(send, range(200)))
        assert len({result.message_id for result in results}) == 200
        stored = [int(body) for batch in shelf.batches for body in batch]
        assert sorted(stored) == list(range(200))
        assert len(shelf.batches) < 200

    with_threads(scene)


def test_the_messages_of_one_thread_are_taken_in_its_order_and_flushed() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        batcher = client.batcher(count=7, linger=FOREVER)
        futures = [batcher.put(message(at, key="k")) for at in range(20)]
        batcher.flush()
        assert [future.done() for future in futures] == [True] * 20
        assert [body for batch in shelf.batches for body in batch] == [
            b"%d" % at for at in range(20)
        ]
        with pytest.raises(MessageRefused):
            batcher.send(message(""))
        batcher.close()
        with pytest.raises(UsageError, match="closed"):
            batcher.send(message(1))
        assert client._engine.in_flight.count == 0

    with_threads(scene)


def test_a_thread_that_is_faster_than_the_broker_is_held_up() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        shelf.silent |= {SEND, BATCH}
        batcher = client.batcher(count=100, linger=FOREVER)
        futures = [batcher.put(message(at)) for at in range(3)]
        with pytest.raises(TooManyInFlight):
            batcher.put(message(4), timeout=0.05)
        until(lambda: any(BATCH in asked for asked in shelf.asked))
        shelf.hang_up()
        assert all(future.exception(60) is not None for future in futures)
        until(lambda: client._engine.in_flight.count == 0)

    with_threads(scene, msgspec.structs.replace(SETTINGS, in_flight_count_max=3))


def test_a_closed_client_closes_its_batchers_and_a_message_after_that_is_refused() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        batcher = client.batcher(linger=FOREVER)
        future = batcher.put(message(1))
        client.close()
        assert future.result().queue_offset == 10
        with pytest.raises(UsageError, match="closed"):
            batcher.put(message(2))
        assert client._engine.in_flight.count == 0

    with_threads(scene)


def test_a_future_that_is_cancelled_before_the_loop_has_its_message_sends_nothing() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        batcher = client.batcher(linger=0.001)
        gate = threading.Event()
        assert client._thread is not None
        client._thread.call_soon(gate.wait, 60)  # the loop is busy
        future = batcher.put(message(1))
        assert future.cancel()
        gate.set()
        batcher.flush()
        with pytest.raises(CancelledError):
            future.result()
        assert shelf.batches == []
        assert client._engine.in_flight.count == 0

    with_threads(scene)
