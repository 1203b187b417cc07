"""Sends of a known shape have short turns, and whatever else is due has its own."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker_core.broker_world import TOPIC, pull_header
from tests.runtime.test_broker_server import Peer, Watch, serving
from tests.simulation.invariants import check_invariants
from tests.waiting import eventually

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.long_works import Work
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.runtime import broker_server
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.server_connection import ServerConnection
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

SEND = {"a": "p", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000}
SEND |= {"h": 0, "i": "UNIQ_KEY\x017F000001B418251A\x02", "j": 0, "k": "false", "m": "false"}
Scene = Callable[[BrokerServer, Peer], Awaitable[None]]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the short turns that stored something, and what was stored alone, without a turn.

    No tick carries out what a turn has missed.
    """
    monkeypatch.setattr(broker_server, "_TICK_SECONDS", 3600.0)
    found: Counter[str] = Counter()
    take_sends = BrokerCore.take_sends

    def short(core: BrokerCore, began_ms: int = 0, now_ms: int = 0) -> Any:
        batch = take_sends(core, began_ms, now_ms)
        found["short"] += batch is not None
        return batch

    stored_alone = BrokerCore.stored_alone

    def alone(core: BrokerCore, *of: Any) -> None:
        found["alone"] += 1
        stored_alone(core, *of)

    monkeypatch.setattr(BrokerCore, "take_sends", short)
    monkeypatch.setattr(BrokerCore, "stored_alone", alone)
    return found


def put(peer: Peer) -> int:
    return peer.put(RequestCode.SEND_MESSAGE_V2, SEND, b"x" * 100)


def ask(peer: Peer) -> int:
    return peer.put(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})


def play(folder: Path, scene: Scene, **properties: str) -> None:
    """Run a scene with a broker that knows the shape of a peer's sends."""

    async def whole() -> None:
        async with serving(folder, Watch(), **properties) as (server, peer):
            for _ in range(3):  # for a new topic more is to be done
                assert (await peer.answer_to(put(peer))).code == ResponseCode.SUCCESS
            await scene(server, peer)

    asyncio.run(whole())


async def another(server: BrokerServer) -> Peer:
    """Return a further peer whose sends are known."""
    peer = Peer(*await asyncio.open_connection(*server.address.split(":")))
    await peer.answer_to(put(peer))
    return peer


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_send_that_comes_alone_waits_for_a_long_request_of_its_connection(
    tmp_path: Path, turns: Counter[str], flush: str
) -> None:
    """A query that waited for the index begins when nothing is being read."""

    async def scene(server: BrokerServer, peer: Peer) -> None:
        (number,) = server._listener.connections
        connection, done = server._listener.connections[number], list[bool]()
        assert isinstance(connection, ServerConnection)
        before = turns.total()

        def query() -> Work:
            while not done:
                yield 1_000_000

        server._core.state.works.add(number, query())
        server._schedule_turn(0)
        sent = put(peer)
        await eventually(lambda: connection._is_busy)
        assert turns.total() == before
        done.append(True)
        assert (await peer.answer_to(sent)).code == ResponseCode.SUCCESS
        asked = await peer.answer_to(ask(peer))
        assert asked.ext_fields["offset"] == "4"

    play(tmp_path, scene, flushDiskType=flush)


def test_a_send_that_comes_alone_and_takes_long_is_handled_once(
    tmp_path: Path, turns: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(server: BrokerServer, peer: Peer) -> None:
        core, receive = server._core, server._core.receive

        def received(connection: PeerConnection, command: Command, now_ms: int) -> bool:
            core.state.works.add(connection.id, (1 for _ in range(3)))
            receive(connection, command, now_ms)
            return False

        with monkeypatch.context() as patched:
            patched.setattr(core, "receive", received)
            sent = put(peer)
            assert (await peer.answer_to(sent)).code == ResponseCode.SUCCESS
        await peer.answer_to(ask(peer))
        assert core.state.store.appender.lane(TOPIC, 0).next == 4

    play(tmp_path, scene)
    assert not turns["alone"]


@pytest.mark.parametrize(("flush", "kind"), [("SYNC_FLUSH", "short"), ("ASYNC_FLUSH", "alone")])
def test_a_send_that_comes_alone_is_stored_in_a_short_turn_or_in_none(
    tmp_path: Path, turns: Counter[str], flush: str, kind: str
) -> None:
    async def scene(server: BrokerServer, peer: Peer) -> None:
        before = turns[kind]
        for _ in range(5):
            assert (await peer.answer_to(put(peer))).code == ResponseCode.SUCCESS
        assert turns[kind] == before + 5
        check_invariants(server._core)

    play(tmp_path, scene, flushDiskType=flush)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_pull_that_waits_is_answered_by_a_short_turn(
    tmp_path: Path, turns: Counter[str], flush: str
) -> None:
    async def scene(server: BrokerServer, peer: Peer) -> None:
        consumer = await another(server)
        end = int((await peer.answer_to(put(peer))).ext_fields["queueOffset"]) + 1
        waiting = consumer.put(RequestCode.PULL_MESSAGE, pull_header(end, sysFlag=6))
        await eventually(lambda: bool(server._core.state.pulls.waiting))
        before = turns["short"]
        await peer.answer_to(put(peer))
        pulled = await consumer.answer_to(waiting)
        assert (pulled.code, turns["short"]) == (ResponseCode.SUCCESS, before + 1)
        consumer.writer.close()

    play(tmp_path, scene, flushDiskType=flush)


def test_sends_of_many_peers_share_a_turn_and_questions_of_some_are_answered(
    tmp_path: Path, turns: Counter[str]
) -> None:
    async def scene(server: BrokerServer, peer: Peer) -> None:
        peers = [peer, *[await another(server) for _ in range(5)]]
        before = turns["short"]
        for sends, asks in ((True, False), (False, True), (True, True)):
            sent = [(each, put(each)) for each in peers if sends]
            sent += [(each, ask(each)) for each in peers[1:3] if asks]
            answers = [await each.answer_to(opaque) for each, opaque in sent]
            assert {each.code for each in answers} == {ResponseCode.SUCCESS}
        assert turns["short"] > before
        for each in peers[1:]:
            each.writer.close()

    play(tmp_path, scene)


def test_a_new_topic_among_known_sends_is_saved_and_a_question_after_them_answered(
    tmp_path: Path, turns: Counter[str]
) -> None:
    async def scene(_server: BrokerServer, peer: Peer) -> None:
        first, new, last = put(peer), peer.put(310, SEND | {"b": "new"}, b"x"), put(peer)
        for opaque in (first, new, last):
            assert (await peer.answer_to(opaque)).code == ResponseCode.SUCCESS
        assert (await peer.answer_to(ask(peer))).code == ResponseCode.SUCCESS
        assert turns["short"]

    play(tmp_path, scene)


def rests(server: BrokerServer) -> bool:
    """Carry out what is due, as a tick would; return whether nothing is left."""
    server._run_turn()
    state = server._core.state
    return not (state.is_turn_due or state.files.is_under_way)


@pytest.mark.parametrize(("others", "has_flood"), [(6, True), (6, False), (9, True)])
def test_a_single_request_beside_a_flood_waits_for_no_turn_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int, has_flood: bool
) -> None:
    """The shares of all others would come between its handling and its reply."""
    monkeypatch.setattr(broker_server, "_TICK_SECONDS", 3600.0)
    watch, scheduled = Watch(), Counter[str]()
    schedule = BrokerServer._schedule_turn

    def noted(server: BrokerServer, began_ms: int, *, is_plain: bool = False) -> None:
        scheduled["turns"] += 1
        schedule(server, began_ms, is_plain=is_plain)

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (server, peer):
            await peer.send(TOPIC)
            await eventually(partial(rests, server))
            server._speakers.update(range(-others, 0))
            server.listener.turns.many_from = object() if has_flood else None
            monkeypatch.setattr(BrokerServer, "_schedule_turn", noted)
            opaque = peer.put(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
            assert (await peer.answer_to(opaque)).code == ResponseCode.SUCCESS
            is_at_once = has_flood and others == 6
            assert scheduled["turns"] == (0 if is_at_once else 1)

    asyncio.run(scenario())
    assert not watch.causes
