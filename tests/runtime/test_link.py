"""Connections: replies find their waiters, whatever the peer does."""

import asyncio
from typing import Any

import pytest
from tests.runtime.link_world import LONG_SECONDS, Peer, World, play, silent
from tests.waiting import eventually

from reliable_mq.errors import ConnectionLost, RequestTimeout
from reliable_mq.runtime.link import Link
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply, request
from reliable_mq.wire.frame import JSON, LENGTH_MAX, ROCKETMQ

NOTIFY = 40


def test_replies_find_their_waiters_in_any_order() -> None:
    async def backwards(peer: Peer) -> None:
        for command in reversed(await peer.receive(10)):
            peer.send(reply(command, body=command.body))

    async def scene(it: World) -> None:
        calls = [
            it.links.call(it.address, request(1, body=bytes([at])), LONG_SECONDS)
            for at in range(10)
        ]
        answers = await asyncio.gather(*calls)
        assert [answer.body for answer in answers] == [bytes([at]) for at in range(10)]

    play(backwards, scene)


def test_many_calls_share_one_connection_which_is_greeted_once_and_first() -> None:
    async def echo(peer: Peer) -> None:
        for command in await peer.receive(5):
            peer.send(reply(command))
        await silent(peer)

    async def scene(it: World) -> None:
        await asyncio.gather(
            *(it.links.call(it.address, request(1), LONG_SECONDS) for _ in range(5))
        )
        assert it.greeted == [it.address]
        assert len(it.links.open_links()) == 1

    play(echo, scene)


def test_a_call_without_reply_times_out_and_a_late_reply_harms_nobody() -> None:
    released = asyncio.Event()

    async def late(peer: Peer) -> None:
        (opening,) = await peer.receive(1)
        peer.send(reply(opening))
        (first,) = await peer.receive(1)
        await released.wait()
        peer.send(reply(first, body=b"late"))
        (second,) = await peer.receive(1)
        peer.send(reply(second, body=b"second"))

    async def scene(it: World) -> None:
        await it.links.call(it.address, request(1), LONG_SECONDS)  # connecting takes what it takes
        with pytest.raises(RequestTimeout, match="did not answer request 77"):
            await it.links.call(it.address, request(77), 0.02)
        released.set()
        answer = await it.links.call(it.address, request(1), LONG_SECONDS)
        assert answer.body == b"second"

    play(late, scene)


def test_a_lost_connection_ends_every_call_and_is_told_once() -> None:
    async def hangs_up(peer: Peer) -> None:
        await peer.receive(3)

    async def scene(it: World) -> None:
        calls = [it.links.call(it.address, request(1), LONG_SECONDS) for _ in range(3)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3
        assert it.lost == [it.address]
        assert it.links.open_links() == []

    play(hangs_up, scene)


def test_the_next_call_opens_a_new_connection() -> None:
    async def one_answer(peer: Peer) -> None:
        for command in await peer.receive(1):
            peer.send(reply(command))
        await peer.writer.drain()

    async def scene(it: World) -> None:
        await it.links.call(it.address, request(1), LONG_SECONDS)
        await eventually(lambda: not it.links.open_links())
        await it.links.call(it.address, request(1), LONG_SECONDS)
        assert len(it.greeted) == 2

    play(one_answer, scene)


def test_bytes_that_are_no_frames_end_the_connection() -> None:
    async def garbage(peer: Peer) -> None:
        await peer.receive(1)
        peer.writer.write(b"\xff\xff\xff\xff\0\0\0\0")
        await peer.receive(1)

    async def scene(it: World) -> None:
        with pytest.raises(ConnectionLost, match="an invalid command"):
            await it.links.call(it.address, request(1), LONG_SECONDS)

    play(garbage, scene)


def test_requests_of_the_peer_are_heard_and_those_that_want_a_reply_get_one() -> None:
    answers: list[Command] = []

    async def asks(peer: Peer) -> None:
        (command,) = await peer.receive(1)
        peer.send(request(NOTIFY, {"consumerGroup": "g"}, oneway=True))
        question = request(307)
        question.opaque = 4711
        peer.send(question)
        answers.extend(await peer.receive(1))
        peer.send(reply(command))

    async def scene(it: World) -> None:
        await it.links.call(it.address, request(1), LONG_SECONDS)
        assert [command.code for command in it.requests] == [NOTIFY, 307]
        assert [(a.opaque, a.code, a.is_reply) for a in answers] == [(4711, 3, True)]

    play(asks, scene)


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
@pytest.mark.parametrize(
    ("too_much", "why"),
    [
        ({"body": bytes(LENGTH_MAX)}, "frame length 16777"),
        ({"remark": "the file \udcff is not there"}, "half a surrogate pair"),
    ],
)
def test_a_reply_of_ours_that_cannot_be_sent_is_no_fault_of_the_peer_which_is_told(
    too_much: dict[str, Any], why: str, serialize_type: int, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Command] = []

    async def asks(peer: Peer) -> None:
        (command,) = await peer.receive(1)
        question = request(307)
        question.opaque, question.serialize_type = 4711, serialize_type
        peer.send(question)
        answers.extend(await peer.receive(1))
        peer.send(reply(command))

    async def scene(it: World) -> None:
        it.answer = lambda asked: reply(asked, **too_much)
        await it.links.call(it.address, request(1), LONG_SECONDS)
        (answer,) = answers
        assert (answer.opaque, answer.code) == (4711, ResponseCode.SYSTEM_ERROR)
        assert answer.is_reply
        assert answer.serialize_type == serialize_type
        assert it.lost == []

    play(asks, scene)
    assert why in caplog.text
    assert "an invalid command" not in caplog.text


def test_a_body_of_many_segments_arrives_whole() -> None:
    async def echo(peer: Peer) -> None:
        for command in await peer.receive(1):
            peer.send(reply(command, body=command.body))
            await peer.writer.drain()

    async def scene(it: World) -> None:
        body = bytes(range(256)) * 16_000
        answer = await it.links.call(it.address, request(1, body=body), LONG_SECONDS)
        assert answer.body == body

    play(echo, scene)


def test_an_address_that_cannot_be_reached_fails_at_once_for_a_while() -> None:
    async def scene(it: World) -> None:
        nobody = "127.0.0.1:1"
        with pytest.raises(ConnectionLost, match="cannot be reached"):
            await it.links.call(nobody, request(1), LONG_SECONDS)
        with pytest.raises(ConnectionLost, match="cannot be reached"):
            await it.links.call(nobody, request(1), LONG_SECONDS)

    play(silent, scene)


def test_addresses_that_could_not_be_reached_are_forgotten_some_time_later() -> None:
    """Brokers come and go by new addresses for as long as a client lives."""

    async def scene(it: World) -> None:
        it.links.BACKOFF_SECONDS = it.links.FAILURES_KEPT_SECONDS = 0.0
        for at in range(5):
            with pytest.raises(ConnectionLost):
                await it.links.call(f"127.0.0.1:no port {at}", request(1), LONG_SECONDS)
        assert list(it.links._failures) == ["127.0.0.1:no port 4"]

    play(silent, scene)


def test_clients_that_lost_a_peer_together_do_not_come_back_together() -> None:
    async def scene(it: World) -> None:
        nobody, pauses = "127.0.0.1:1", []
        for _ in range(20):
            it.links._failures.clear()
            with pytest.raises(ConnectionLost):
                await it.links.call(nobody, request(1), LONG_SECONDS)
            pauses.append(it.links._failures[nobody][1] - asyncio.get_running_loop().time())
        assert len({round(pause, 4) for pause in pauses}) > 10
        assert 0 < max(pauses) <= it.links.BACKOFF_SECONDS

    play(silent, scene)


def test_a_closed_client_calls_nobody() -> None:
    async def scene(it: World) -> None:
        pending = asyncio.ensure_future(it.links.call(it.address, request(1), LONG_SECONDS))
        await eventually(it.links.open_links)
        (link,) = it.links.open_links()
        await it.links.close()
        with pytest.raises(ConnectionLost, match="this client closed it"):
            await pending
        link.invariants()
        with pytest.raises(ConnectionLost, match="this client is closed"):
            await it.links.call(it.address, request(1), LONG_SECONDS)
        assert it.lost == [], "closing is no loss"

    play(silent, scene)


def test_a_client_that_is_closed_while_it_greets_leaves_no_connection_behind() -> None:
    greeting, ended = asyncio.Event(), asyncio.Event()

    async def until_the_end(peer: Peer) -> None:
        await peer.receive(1_000_000)
        ended.set()

    async def greet(_: str, __: Link) -> None:
        greeting.set()
        await asyncio.Event().wait()

    async def scene(it: World) -> None:
        it.links._greet = greet
        pending = asyncio.ensure_future(it.links.call(it.address, request(1), LONG_SECONDS))
        await greeting.wait()
        await it.links.close()
        await asyncio.wait_for(ended.wait(), LONG_SECONDS)
        await asyncio.wait([pending])

    play(until_the_end, scene)


async def reads_nothing(peer: Peer) -> None:
    await asyncio.Event().wait()


LARGE = bytes(1024 * 1024)


def test_a_peer_that_stops_reading_keeps_nobody_longer_than_their_time_out() -> None:
    async def scene(it: World) -> None:
        await it.links._opened(it.address)  # connecting takes what it takes
        first = [
            asyncio.create_task(it.links.call(it.address, request(1, body=body), 0.2))
            for body in (LARGE * 15, *[LARGE] * 19)  # more than the system buffers, to begin with
        ]
        await asyncio.wait(first)
        assert {type(task.exception()) for task in first} == {RequestTimeout}
        with pytest.raises(RequestTimeout, match="request 34 was not sent"):
            await asyncio.wait_for(it.links.call(it.address, request(34), 0.02), LONG_SECONDS)
        with pytest.raises(RequestTimeout, match="read nothing for"):
            await asyncio.wait_for(
                it.links.post(it.address, request(1, oneway=True), 0.02), LONG_SECONDS
            )

    play(reads_nothing, scene)


def test_a_peer_that_stops_reading_is_dropped_with_all_that_waits_for_it() -> None:
    async def scene(it: World) -> None:
        call = asyncio.create_task(
            it.links.call(it.address, request(1, body=LARGE * 12), LONG_SECONDS)
        )
        await eventually(it.links.open_links)
        (link,) = it.links.open_links()
        waiting = asyncio.create_task(it.links.call(it.address, request(34), LONG_SECONDS))
        while not call.done():
            await asyncio.sleep(0)
            it.links.drop(it.address)
        outcomes = await asyncio.gather(call, waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 2
        assert link._transport is None

    play(reads_nothing, scene)


def test_connecting_takes_no_longer_than_the_call_that_wants_it() -> None:
    """Nobody accepts here: what connects to it waits for as long as the system lets it."""

    async def scene(it: World) -> None:
        async def greets_for_ever(address: str, link: Link) -> None:
            await asyncio.Event().wait()

        it.links._greet = greets_for_ever
        with pytest.raises(ConnectionLost, match=r"no connection in 0\.02 s"):
            await asyncio.wait_for(it.links.call(it.address, request(1), 0.02), LONG_SECONDS)
        with pytest.raises(ConnectionLost, match=r"no connection in 0\.02 s"):
            await asyncio.wait_for(it.links.post(it.address, request(1), 0.02), LONG_SECONDS)

    play(silent, scene)
