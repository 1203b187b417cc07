"""A gRPC peer that sends much at once gets a share of a turn, and the rest of it waits."""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.gateway.test_grpc_connection import Scene, call, headers
from tests.gateway.test_http2 import SETTINGS

from reliable_mq.gateway.http2 import Http2Connection
from reliable_mq.gateway.http2_frames import PREFACE, frame_of
from reliable_mq.runtime.grpc_turns import FEW_SIZE, READ_AT_ONCE, READ_IN_SHORT


def play(scene: Callable[[Scene], None]) -> None:
    async def run() -> None:
        scene(Scene())

    asyncio.run(run())


def turn(scene: Scene) -> None:
    """Give each connection that wants one a turn."""
    waiting, scene.listener.later = scene.listener.later, []
    for each in waiting:
        each.handle_waiting()


def body_of(scene: Scene) -> int:
    """Return how many bytes of bodies have been taken."""
    return scene.connection._http2.body_size


def test_two_hundred_thousand_frames_of_a_byte_are_taken_in_many_turns() -> None:
    def attack(scene: Scene) -> None:
        scene.connection.data_received(headers(1, "SendMessage"))
        scene.connection.data_received(frame_of(0, 0, 1, b"x") * 200_000)
        assert body_of(scene) == READ_AT_ONCE
        assert not scene.socket.is_read
        turns = 0
        while scene.listener.later:
            assert scene.listener.later == [scene.connection]
            turns += 1
            turn(scene)
        assert turns > 10
        assert body_of(scene) == 200_000
        assert scene.socket.is_read

    play(attack)


def test_calls_that_come_together_wait_while_somebody_makes_single_calls() -> None:
    def attack(scene: Scene) -> None:
        turns = scene.listener.turns
        scene.connection.data_received(call(1))
        assert turns.single_at > 0  # the first one is single
        turns.single_at = math.inf  # on a slow machine, too
        scene.connection.data_received(b"".join(call(number) for number in range(3, 403, 2)))
        assert len(scene.calls.streams) == 1 + READ_IN_SHORT // 2
        assert turns.many_from is scene.connection
        while scene.listener.later:
            turn(scene)
        assert len(scene.calls.streams) == 201
        assert scene.calls.handed_over[-1] == 201
        scene.connection.data_received(call(403))
        assert len(scene.calls.streams) == 202

    play(attack)


def test_long_headers_count_as_many_frames() -> None:
    def attack(scene: Scene) -> None:
        long = b"".join(
            headers(number, "SendMessage", language=b"x" * 14_000) for number in range(1, 21, 2)
        )
        scene.connection.data_received(long)
        assert len(scene.connection._http2.streams) == 5
        turn(scene)
        while scene.listener.later:
            turn(scene)
        assert len(scene.connection._http2.streams) == 10

    play(attack)


def test_a_single_call_is_answered_at_once_however_much_others_have_sent() -> None:
    def attack(scene: Scene) -> None:
        scene.listener.turns.has_time = lambda: False  # type: ignore[method-assign]
        scene.connection.data_received(call(1))
        assert len(scene.calls.streams) == 1
        much = b"".join(call(number) for number in range(3, 43, 2))
        assert len(much) > FEW_SIZE
        scene.connection.data_received(much)
        assert len(scene.calls.streams) == 1
        turn(scene)
        assert len(scene.calls.streams) > 1

    play(attack)


def test_what_comes_while_frames_wait_is_taken_behind_them() -> None:
    def attack(scene: Scene) -> None:
        first = b"".join(call(number) for number in range(1, 401, 2))
        scene.connection.data_received(first)
        scene.connection.data_received(call(401))  # a cipher may still have some
        assert len(scene.listener.later) == 1
        while scene.listener.later:
            turn(scene)
        assert [each.id for each in scene.calls.streams] == list(range(1, 402, 2))

    play(attack)


@pytest.mark.parametrize("is_before", [False, True])
def test_frames_of_a_peer_that_reads_no_answers_wait_until_it_does(is_before: bool) -> None:
    def attack(scene: Scene) -> None:
        if is_before:
            scene.connection.pause_writing()
        scene.connection.data_received(b"".join(call(number) for number in range(1, 401, 2)))
        scene.connection.pause_writing()
        taken = len(scene.calls.streams)
        turn(scene)
        assert len(scene.calls.streams) == taken
        assert not scene.listener.later
        scene.connection.resume_writing()
        assert not scene.socket.is_read
        while scene.listener.later:
            turn(scene)
        assert len(scene.calls.streams) == 200
        assert scene.socket.is_read

    play(attack)


def test_a_peer_that_breaks_the_rules_behind_frames_that_wait_is_closed() -> None:
    def attack(scene: Scene) -> None:
        closed: list[bool] = []
        cast("Any", scene.socket).close = lambda: closed.append(True)
        cast("Any", scene.socket).is_closing = lambda: bool(closed)
        calls = b"".join(call(number) for number in range(1, 401, 2))
        scene.connection.data_received(calls + frame_of(6, 0, 0, b"short"))
        assert not closed
        while scene.listener.later:
            turn(scene)
        assert closed
        assert len(scene.calls.streams) == 200

    play(attack)


@pytest.mark.parametrize("seed", range(5))
def test_any_shares_of_the_frames_give_the_same(seed: int) -> None:
    rng = random.Random(seed)
    data = PREFACE + SETTINGS + b"".join(call(number, 100) for number in range(1, 41, 2))
    at_once = Http2Connection()
    expected = [(kind, stream.id) for kind, stream in at_once.feed(data, 0.0)]
    shared, found = Http2Connection(), list[tuple[int, int]]()
    while data or shared.has_more:
        size = rng.randrange(200)
        part, data = data[:size], data[size:]
        found += [(kind, each.id) for kind, each in shared.feed(part, 0.0, rng.randrange(4))]
        shared.invariants()
    assert found == expected
    assert shared.kept_size == at_once.kept_size
    assert not at_once.has_more
