"""Answers and requests that take long, at a real broker: in pieces and steps, others in between."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.broker_core.broker_world import TOPIC, send_header
from tests.runtime.test_broker_server import Peer, Watch, serving
from tests.waiting import eventually

from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.runtime import server_connection
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.server_connection import ServerConnection
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.properties import KEYS, UNIQ_KEY, encode_properties
from reliable_mq.wire.record import iter_records

LARGE = bytes(range(256)) * 4 * 1024 * 3  # 3 MiB
KEYED_COUNT, KEYED_SIZE = 12, 100_000


async def stored(peer: Peer, body: bytes, key: str) -> None:
    properties = encode_properties({UNIQ_KEY: f"{key}-id", KEYS: key}).decode()
    header = {**send_header(TOPIC), "i": properties, "e": 0}
    assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, header, body)).code == ResponseCode.SUCCESS


def pull_of(offset: int) -> dict[str, Any]:
    return {
        "consumerGroup": "readers",
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
    }


def query_of(key: str) -> dict[str, Any]:
    times = {"beginTimestamp": 0, "endTimestamp": 2**62}
    return {"topic": TOPIC, "key": key, "maxNum": 64, **times}


def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each turn of the loop do as little as it may."""
    for name in ("_LONG_TURN", "_SHORT_TURN"):
        shares = getattr(server_connection, name)._replace(works=0.000001, written=1)
        monkeypatch.setattr(server_connection, name, shares)


async def other_of(server: BrokerServer) -> Peer:
    return Peer(*await asyncio.open_connection(*server.address.split(":")))


def test_a_large_message_comes_whole_and_others_are_answered_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen pulls of 3 MiB are asked for before a single small request of another peer."""

    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (server, peer):
            await stored(peer, LARGE, "large")
            short_turns(monkeypatch)
            other = await other_of(server)
            opaques = [peer.put(RequestCode.PULL_MESSAGE, pull_of(0)) for _ in range(16)]
            (connection, *_) = server._listener.connections.values()
            assert isinstance(connection, ServerConnection)
            await eventually(lambda: connection._outbox.frames)
            asked = await other.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
            assert asked.ext_fields["offset"] == "1"
            assert connection._has_more
            for opaque in opaques:
                answer = await peer.answer_to(opaque)
                (record,) = iter_records(answer.body)
                assert record.body == LARGE
            other.writer.close()
        assert not watch.causes

    uvloop.run(scenario())


def test_a_message_of_any_size_comes_whole(tmp_path: Path) -> None:
    """Also around the size from which answers are written in pieces."""

    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (_server, peer):
            for number, size in enumerate(range(200_000, 400_000, 12_500)):
                body = bytes([number]) * size
                await stored(peer, body, f"key-{number}")
                pulled = await peer.ask(RequestCode.PULL_MESSAGE, pull_of(number))
                found = await peer.ask(RequestCode.QUERY_MESSAGE, query_of(f"key-{number}"))
                (record,) = iter_records(pulled.body)
                place = {"offset": str(record.commit_log_offset)}
                viewed = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, place)
                assert [record.body] == [each.body for each in iter_records(found.body)] == [body]
                assert [record] == list(iter_records(viewed.body))
        assert not watch.causes

    uvloop.run(scenario())


def test_a_peer_that_reads_a_large_message_slowly_holds_little_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (server, peer):
            await stored(peer, LARGE, "large")
            known = set(server._listener.connections)
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
            slow.setblocking(False)
            await eventually(lambda: set(server._listener.connections) - known)
            (number,) = set(server._listener.connections) - known
            connection = server._listener.connections[number]
            assert isinstance(connection, ServerConnection)
            reader, writer = await asyncio.open_connection(sock=slow, limit=1_024)
            late = Peer(reader, writer)
            opaques = [late.put(RequestCode.PULL_MESSAGE, pull_of(0)) for _ in range(4)]
            await eventually(lambda: connection._is_unread)
            assert connection.unsent_size <= 512 * 1024
            for opaque in opaques:
                (record,) = iter_records((await late.answer_to(opaque)).body)
                assert record.body == LARGE
            writer.close()
        assert not watch.causes

    uvloop.run(scenario())


def test_a_query_by_key_is_answered_in_steps_with_all_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        watch, turns = Watch(), list[int]()
        async with serving(tmp_path, watch) as (server, peer):
            for number in range(KEYED_COUNT):
                await stored(peer, bytes([number]) * KEYED_SIZE, "key")
            await stored(peer, b"short", "other")
            short_turns(monkeypatch)
            run = server._core.state.works.run

            def counted(cost_max: float) -> None:
                turns.append(1)
                run(cost_max)

            monkeypatch.setattr(server._core.state.works, "run", counted)
            many = peer.put(RequestCode.QUERY_MESSAGE, query_of("key"))
            one = peer.put(RequestCode.QUERY_MESSAGE, query_of("other"))
            none = peer.put(RequestCode.QUERY_MESSAGE, query_of("unknown"))
            small = peer.put(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
            found = list(iter_records((await peer.answer_to(many)).body))
            assert [each.body[:1] for each in found] == [bytes([n]) for n in range(KEYED_COUNT)]
            assert len(turns) > KEYED_COUNT
            (short,) = iter_records((await peer.answer_to(one)).body)
            assert short.body == b"short"
            assert (await peer.answer_to(none)).code == ResponseCode.QUERY_NOT_FOUND
            assert (await peer.answer_to(small)).code == ResponseCode.SUCCESS
        assert not watch.causes

    uvloop.run(scenario())


def listed(count: int, **faulty: object) -> bytes:
    rows: list[dict[str, object]] = [{"topicName": f"listed-{n}"} for n in range(count)]
    rows[-1] |= faulty
    return json.dumps({"topicConfigList": rows}).encode()


def when_half_made(
    state: BrokerState, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Call `act` after each step while a part of the topics is there."""
    run = state.works.run

    def watched(cost_max: float) -> None:
        run(cost_max)
        if 0 < len(names_of(state)) < 500:
            act()

    monkeypatch.setattr(state.works, "run", watched)


def names_of(state: BrokerState) -> set[str]:
    return {name for name in state.topics.by_name if name.startswith("listed-")}


def test_a_list_of_topics_is_created_in_steps_all_of_them_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (server, peer):
            state = server._core.state
            short_turns(monkeypatch)
            code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
            refused = await peer.ask(code, {}, listed(500, readQueueNums=-1))
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert names_of(state) == set()
            parts = list[int]()
            when_half_made(state, lambda: parts.append(len(names_of(state))), monkeypatch)
            assert (await peer.ask(code, {}, listed(500))).code == ResponseCode.SUCCESS
            assert len(names_of(state)) == 500
            assert len(set(parts)) > 10
        assert not watch.causes

    uvloop.run(scenario())


def test_steps_are_run_once_in_a_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick, or the end of a write, leaves them to the turn that is due."""

    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (server, peer):
            works, ran = server._core.state.works, list[float]()
            run = works.run
            monkeypatch.setattr(works, "run", ran.append)
            opaque = peer.put(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, listed(100))
            await eventually(lambda: works.busy and server._turn_is_due)
            ran.clear()
            server._run_turn()
            assert ran == []
            server._run_due_turn()
            assert len(ran) == 1
            monkeypatch.setattr(works, "run", run)
            assert (await peer.answer_to(opaque)).code == ResponseCode.SUCCESS
        assert not watch.causes

    uvloop.run(scenario())


def test_what_a_request_in_progress_has_sent_counts_as_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else many peers could let such requests wait, beyond the limit of their memory."""

    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (server, peer):
            works, body = server._core.state.works, listed(8_000)
            monkeypatch.setattr(works, "run", lambda _cost_max: None)
            opaque = peer.put(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
            await eventually(lambda: works.busy)
            (connection,) = (server._listener.connections[number] for number in works.busy)
            assert connection.received_size >= len(body) > 200_000
            monkeypatch.undo()
            assert (await peer.answer_to(opaque)).code == ResponseCode.SUCCESS
            await eventually(lambda: connection.received_size == 0)
        assert not watch.causes

    uvloop.run(scenario())


def test_who_leaves_while_its_list_is_created_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (server, peer):
            state = server._core.state
            short_turns(monkeypatch)
            leaver = await other_of(server)
            when_half_made(state, leaver.writer.transport.abort, monkeypatch)
            leaver.put(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, listed(500))
            await eventually(lambda: len(names_of(state)) == 500)
            await eventually(lambda: not state.files.is_under_way and not state.files.changed)
            text = (tmp_path / "config" / "topics.json").read_text()
            assert '"listed-499"' in text
            assert (await peer.send()).code == ResponseCode.SUCCESS
        assert not watch.causes

    uvloop.run(scenario())


def test_a_message_that_is_removed_while_it_is_sent_ends_the_connection_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (server, peer):
            await stored(peer, LARGE, "large")
            short_turns(monkeypatch)
            leaver = await other_of(server)
            leaver.put(RequestCode.PULL_MESSAGE, pull_of(0))
            await eventually(
                lambda: any(
                    isinstance(each, ServerConnection) and each._outbox.frames
                    for each in server._listener.connections.values()
                )
            )
            monkeypatch.setattr(CommitLog, "read", lambda *_: b"")
            await eventually(lambda: "cannot be read any more" in caplog.text)
            monkeypatch.undo()
            assert (await peer.send()).code == ResponseCode.SUCCESS
        assert not watch.causes

    uvloop.run(scenario())


@pytest.mark.parametrize("count", [1_000, 2_250, 2_500, 4_000])
def test_all_topics_come_whole_however_long_their_table_is(tmp_path: Path, count: int) -> None:
    async def scenario() -> None:
        watch = Watch()
        async with serving(tmp_path, watch) as (server, peer):
            code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
            assert (await peer.ask(code, {}, listed(count))).code == ResponseCode.SUCCESS
            topics = server._core.state.topics
            answer: Command = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {})
            assert answer.body == topics.wrapped()
            assert len(answer.body) > 100 * count
        assert not watch.causes

    uvloop.run(scenario())
