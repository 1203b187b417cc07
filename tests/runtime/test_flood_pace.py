"""Who creates topics and queues by the thousand keeps a pace while others wait for a send."""

import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from tests.runtime.echo_server import connect, is_served, run, serving, set_shares
from tests.waiting import eventually

from reliable_mq.runtime import flood_pace, server_connection
from reliable_mq.runtime.connection_roles import HeldConnection
from reliable_mq.runtime.flood_pace import FloodPace
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import encode_command, request

SEND = encode_command(request(RequestCode.SEND_MESSAGE))  # its answer is always small


@pytest.fixture
def slow_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is created fast enough to be forgotten, and a wait does not end by itself."""
    monkeypatch.setattr(flood_pace, "CREATED_A_SECOND", 1e-3)
    monkeypatch.setattr(flood_pace, "SECONDS_MAX", 1e6)
    set_shares(monkeypatch, slice=-1.0, shared_slice=-1.0)  # a request a slice


@asynccontextmanager
async def paced(count: int) -> AsyncIterator[tuple[FloodPace, list[HeldConnection]]]:
    """Serve so many peers; give the pace of their connections, and these."""
    async with serving() as echo:
        _peers = [await connect(echo) for _ in range(count)]
        connections = echo.listener.connections
        await eventually(lambda: len(connections) == count)
        yield echo.listener.pace, list(connections.values())


MOST = flood_pace._NEW_AT_ONCE
LONG = 60.0  # seconds


@pytest.mark.usefixtures("slow_pace")
def test_who_has_created_much_waits_for_its_pace_and_nobody_else_does() -> None:
    """The files of many new queues would make each sync slow, and so each send of others."""

    async def test() -> None:
        async with serving() as echo:
            listener = echo.listener
            honest, (_busy, busy) = await connect(echo), await connect(echo)
            _creator, creator = await connect(echo)
            is_creating = True
            listener.pace.created = lambda: len(echo.seen) if is_creating else 0
            listener.turns.single_at = time.monotonic() + LONG
            creator.write(SEND * (MOST + 10))
            await eventually(lambda: listener.pace.held)
            assert len(echo.seen) == MOST + 1
            is_creating = False

            busy.write(SEND * 10)
            await eventually(lambda: len(echo.seen) == MOST + 11)
            assert await is_served(*honest)
            listener.invariants()
            assert listener.pace.held

            listener.pace._let_on()
            await eventually(lambda: len(echo.seen) == MOST + 13)
            assert listener.pace.held, "it has had one slice"
            listener.pace._let_on()
            await eventually(lambda: len(echo.seen) == MOST + 21)
            assert not listener.pace.held, "the slice has created nothing"

    run(test)


@pytest.mark.usefixtures("slow_pace")
def test_those_that_wait_for_their_pace_go_on_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else whoever sends meanwhile waits for all that the many of them make due."""

    async def test() -> None:
        async with serving() as echo:
            listener = echo.listener
            pace = listener.pace
            listener.turns.single_at = time.monotonic() + LONG
            pace.created = lambda: len(echo.seen)
            creators = [await connect(echo) for _ in range(3)]
            for _, creator in creators:
                creator.write(SEND * 100)
            await eventually(lambda: pace.held == 3)
            for _ in range(2):
                waiting = list(pace._held)
                for number in range(3):
                    seen = len(echo.seen)
                    pace._let_on()
                    assert list(listener._waiting) == [waiting[number]]
                    await eventually(lambda: pace.held == 3)
                    assert len(echo.seen) == seen + 1
                assert list(pace._held) == waiting
            assert not listener._waiting
            assert listener.slice_seconds == -2.0, "a short one, although nobody else waits"

    set_shares(monkeypatch, shared_slice=-2.0)
    run(test)


@pytest.mark.usefixtures("slow_pace")
def test_the_more_wait_for_their_pace_the_more_go_on_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So nobody waits for long."""

    async def test() -> None:
        async with paced(5) as (pace, creators):
            for each in creators:
                pace.note(each, MOST)
            assert pace.hold(OrderedDict.fromkeys(creators))
            pace._let_on()
            assert pace.held == 2

    monkeypatch.setattr(flood_pace, "_STEPS_MAX", 2)
    run(test)


@pytest.mark.usefixtures("slow_pace")
@pytest.mark.parametrize(("answered_at", "stands_back"), [(LONG, 3), (-LONG, 0)])
def test_a_creator_stands_back_while_somebody_was_just_answered_but_not_for_long(
    answered_at: float, stands_back: int
) -> None:
    """The client that was answered may wait for the processor of the loop."""

    async def test() -> None:
        async with serving() as echo:
            _one = await connect(echo)
            await eventually(lambda: echo.listener.connections)
            (creator,) = echo.listener.connections.values()
            pace = echo.listener.pace
            echo.listener.turns.single_at = time.monotonic() + answered_at
            for _ in range(2):
                pace.note(creator, MOST + 1)
                pace._uncollected = 0
                assert pace.hold(OrderedDict.fromkeys([creator]))
                held = []
                for _ in range(stands_back + 1):
                    pace._go_on_or_wait(0.0)
                    held.append(pace.held)
                assert held == [1] * stands_back + [0]

    run(test)


def test_a_single_request_is_noted_by_a_clock_that_is_finer_than_a_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop's clock has milliseconds. Whoever was answered half a millisecond ago counts here."""
    clock = SimpleNamespace(monotonic=lambda: 5e9, time_ns=time.time_ns)

    async def test() -> None:
        async with serving() as echo:
            assert await is_served(*await connect(echo))
            assert echo.listener.turns.single_at == 5e9

    monkeypatch.setattr(server_connection, "time", clock)
    run(test)


@pytest.mark.usefixtures("slow_pace")
def test_while_some_wait_for_their_pace_who_creates_little_waits_too() -> None:
    """So each has one slice, and the turn ends."""

    async def test() -> None:
        async with paced(1) as (pace, (creator,)):
            pace.note(creator, MOST + 1)
            assert pace.hold(OrderedDict.fromkeys([creator]))
            pace._let_on()
            assert not pace.held
            pace._ahead = 0.0
            pace.note(creator, 1)
            waiting = OrderedDict.fromkeys([creator])
            assert pace.hold(waiting)
            assert (pace.held, len(waiting)) == (1, 0)

    run(test)


@pytest.mark.usefixtures("slow_pace")
def test_while_creators_wait_what_is_new_is_collected_in_a_turn_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with paced(1) as (pace, (creator,)):
            pace.note(creator, MOST + 1)
            assert pace.hold(OrderedDict.fromkeys([creator]))
            assert not collected
            pace._go_on_or_wait(0.0)
            assert (len(collected), pace.held) == (1, 1)
            pace._go_on_or_wait(0.0)
            assert (len(collected), pace.held) == (1, 0)

    collected: list[None] = []
    monkeypatch.setattr(flood_pace, "collect_new", lambda: collected.append(None))
    run(test)


@pytest.mark.usefixtures("slow_pace")
def test_much_that_is_created_is_a_flood_only_while_somebody_sends_single_requests() -> None:
    async def test() -> None:
        async with serving() as echo:
            listener = echo.listener
            listener.pace.created = lambda: len(echo.seen)
            _creator, creator = await connect(echo)
            creator.write(SEND * (MOST + 10))
            await eventually(lambda: len(echo.seen) == MOST + 10)
            assert not listener.pace.creators, "what was created before does not count later"

            listener.turns.single_at = time.monotonic() + LONG
            creator.write(SEND * (MOST + 10))
            await eventually(lambda: listener.pace.held)
            assert len(echo.seen) == 2 * MOST + 11

    run(test)


@pytest.mark.usefixtures("slow_pace")
def test_who_has_created_something_long_ago_does_not_wait_with_a_flood() -> None:
    async def test() -> None:
        async with paced(2) as (pace, (early, late)):
            pace.note(early, MOST)
            pace._ahead_at -= 1e6
            pace.note(late, MOST)
            assert not pace.hold(OrderedDict()), "the pace allows so much in so long a time"
            pace.note(late, 1)
            assert pace.hold(OrderedDict())
            assert not pace.takes(early)
            assert pace.takes(late)

    run(test)


@pytest.mark.usefixtures("slow_pace")
def test_a_request_that_goes_on_creating_makes_the_wait_longer_but_not_endless() -> None:
    async def test() -> None:
        async with paced(1) as (pace, (creator,)):
            pace.note(creator, MOST + 1)
            assert pace.hold(OrderedDict())
            assert pace.takes(creator)
            for _ in range(3):
                pace._go_on_or_wait(1.0)
                assert pace.held
            pace._go_on_or_wait(0.0)
            assert not pace.held

    run(test)


@pytest.mark.usefixtures("slow_pace")
def test_a_connection_that_closes_while_it_waits_for_its_pace_is_forgotten() -> None:
    async def test() -> None:
        async with serving() as echo:
            listener = echo.listener
            _, creator = await connect(echo)
            await eventually(lambda: listener.connections)
            (held,) = listener.connections.values()
            listener.turns.single_at = time.monotonic() + LONG
            listener.pace.created = lambda: len(echo.seen)
            creator.write(SEND * (MOST + 10))
            await eventually(lambda: listener.pace.held)
            held.cut_off("the test wants it")
            await eventually(lambda: held not in listener.connections.values())
            assert not listener.pace.held

    run(test)
