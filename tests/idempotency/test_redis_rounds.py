"""Round trips to Redis, over servers in memory: what is asked together, and what a fault does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import NoScriptError, ResponseError
from tests.waiting import eventually

from reliable_mq.app.redis_late import open_leases
from reliable_mq.idempotency.claim import UNREACHABLE, Claim, LeaseAnswer
from reliable_mq.idempotency.lease_store import key_of
from reliable_mq.idempotency.redis_leases import RedisLeases, claim_of
from reliable_mq.idempotency.redis_servers import Script, ScriptCall
from reliable_mq.settings import Settings

FIRST = b"first,1,0,0"


class Servers:
    """Answers claims in their order; raises what it is given, in turn."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.calls: list[list[ScriptCall]] = []
        self.answers: dict[str, bytes] = {}
        self.faults: list[BaseException] = []
        self.is_closed = False
        self.close_fault: Exception | None = None
        self.held: asyncio.Event | None = None

    async def load(self, script: Script) -> None:
        self.loaded.append(script.digest)

    async def run(self, calls: Sequence[ScriptCall]) -> list[list[bytes]]:
        self.calls.append(list(calls))
        if self.held is not None:
            await self.held.wait()
        if self.faults:
            raise self.faults.pop(0)
        return [[self.answers.get(key, FIRST) for key in call.keys] for call in calls]

    async def close(self) -> None:
        self.is_closed = True
        if self.close_fault:
            raise self.close_fault


Scene = Callable[[RedisLeases], Awaitable[None]]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    made = Servers()
    monkeypatch.setattr(
        "reliable_mq.idempotency.redis_leases.servers_of", lambda _url, *, timeout: made
    )
    return made


def play(scene: Scene, *, closes: bool = True) -> None:
    async def main() -> None:
        leases = RedisLeases("redis://a", duplicate_window=60.0)
        await scene(leases)
        if closes:
            await leases.close()

    asyncio.run(main())


def keys(servers: Servers) -> list[list[list[str]]]:
    return [[list(call.keys) for call in calls] for calls in servers.calls]


def test_a_claim_is_one_call_with_its_window_token_and_lease(servers: Servers) -> None:
    async def scene(leases: RedisLeases) -> None:
        assert (
            await leases.claim([("k", "one"), ("l", "two")], 2.5)
            == [Claim(LeaseAnswer.FIRST, 1)] * 2
        )

    play(scene)
    ((call,),) = servers.calls
    assert (call.shared, call.keys) == ((60_000,), ["k", "l"])
    assert call.parts == [("one", 2_500), ("two", 2_500)]
    assert call.script.digest in servers.loaded


def test_ends_go_before_the_claims_of_their_round_trip(servers: Servers) -> None:
    async def scene(leases: RedisLeases) -> None:
        leases.settle("a", "one", "done")
        leases.renew("b", "two", 0.0001)
        leases.renew("c", "three", 7.25)
        await leases.claim([("k", "four")], 1.0)

    play(scene)
    ((settling, claiming),) = servers.calls
    assert (settling.shared, settling.keys) == ((60_000, 60_000), ["a", "b", "c"])
    assert settling.parts == [("one", "done", 0), ("two", "renew", 1), ("three", "renew", 7_250)]
    assert claiming.keys == ["k"]
    assert settling.script != claiming.script
    assert set(servers.loaded) == {settling.script.digest, claiming.script.digest}


def test_an_end_is_written_soon_also_without_a_claim(servers: Servers) -> None:
    async def scene(leases: RedisLeases) -> None:
        leases.settle("a", "one", "fail")
        leases.settle("b", "one", "back")
        await eventually(lambda: servers.calls)

    play(scene)
    assert keys(servers) == [[["a", "b"]]]


def test_requests_during_a_round_trip_share_the_next_one(servers: Servers) -> None:
    """Each caller gets the answers to its own claims."""
    servers.answers = {"b": b"held,0,0,1500", "c": b"done,0,0,0", "d": b"again,3,1,0"}

    async def scene(leases: RedisLeases) -> None:
        servers.held = asyncio.Event()
        first = asyncio.create_task(leases.claim([("a", "t")], 1.0))
        await eventually(lambda: servers.calls)
        second = asyncio.create_task(leases.claim([("b", "t"), ("c", "t")], 1.0))
        third = asyncio.create_task(leases.claim([("d", "t")], 2.0))
        leases.settle("e", "t", "done")
        await asyncio.sleep(0)
        servers.held.set()
        assert await first == [Claim(LeaseAnswer.FIRST, 1)]
        held, done = await second
        assert (held, done) == (Claim(LeaseAnswer.HELD, wait=1.5), Claim(LeaseAnswer.DONE))
        assert await third == [Claim(LeaseAnswer.AGAIN, 3, in_doubt=True)]

    play(scene)
    assert keys(servers) == [[["a"]], [["e"], ["b", "c", "d"]]]
    assert servers.calls[1][1].parts == [("t", 1_000), ("t", 1_000), ("t", 2_000)]


def test_scripts_are_loaded_once_and_again_when_a_server_has_lost_them(servers: Servers) -> None:
    async def scene(leases: RedisLeases) -> None:
        for _ in range(2):
            await leases.claim([("k", "t")], 1.0)
        assert len(servers.loaded) == 2
        servers.faults = [NoScriptError("restarted")]
        assert (await leases.claim([("k", "t")], 1.0))[0].lease is LeaseAnswer.FIRST
        assert len(servers.loaded) == 4

    play(scene)


def test_a_server_that_was_restarted_is_reached_in_the_same_claim(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """It has closed the connection, and lost the scripts."""

    async def scene(leases: RedisLeases) -> None:
        await leases.claim([("k", "t")], 1.0)
        servers.faults = [RedisAway("gone"), NoScriptError("restarted")]
        assert (await leases.claim([("k", "t")], 1.0))[0].lease is LeaseAnswer.FIRST
        assert len(servers.loaded) == 4

    play(scene)
    assert caplog.records == []


@pytest.mark.parametrize("fault", [RedisAway("gone"), OSError("gone"), TimeoutError("gone")])
def test_a_fault_is_tried_again_at_once_and_a_second_one_makes_redis_unreachable(
    servers: Servers, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart the kept connection is broken."""

    async def scene(leases: RedisLeases) -> None:
        servers.faults = [fault]
        assert (await leases.claim([("k", "t")], 1.0))[0].lease is LeaseAnswer.FIRST
        assert caplog.records == []
        servers.faults = [fault, fault]
        assert await leases.claim([("k", "t"), ("l", "t")], 1.0) == [UNREACHABLE] * 2
        assert len(servers.calls) == 4
        assert await leases.claim([("k", "t")], 1.0) == [UNREACHABLE], "the circuit is open"
        assert len(servers.calls) == 4

    play(scene)
    assert "RELIABLE_MQ_REDIS) cannot be used, the database decides alone: gone" in caplog.text


def test_redis_is_used_again_when_it_answers(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(leases: RedisLeases) -> None:
        servers.faults = [RedisAway("gone")] * 2
        await leases.claim([("k", "t")], 1.0)

        async def answers() -> bool:
            return await leases.claim([("k", "t")], 1.0) != [UNREACHABLE]

        await eventually(answers)
        for _ in range(2):
            await leases.claim([("k", "t")], 1.0)

    with caplog.at_level(logging.INFO, "reliable_mq.idempotency.redis_leases"):
        play(scene)
    told = [each.getMessage() for each in caplog.records]
    assert told.count("Redis answers again") == 1


def test_a_bug_reaches_who_asked_and_nobody_who_asks_later(servers: Servers) -> None:
    async def scene(leases: RedisLeases) -> None:
        servers.faults = [RuntimeError("a bug")]
        both = asyncio.gather(
            leases.claim([("k", "t")], 1.0), leases.claim([("l", "t")], 1.0), return_exceptions=True
        )
        assert [str(each) for each in await both] == ["a bug", "a bug"]

        async def answers() -> bool:
            return await leases.claim([("k", "t")], 1.0) != [UNREACHABLE]

        await eventually(answers)  # until then it counts as away

    play(scene)


def test_a_caller_that_is_gone_takes_no_answer_from_others(servers: Servers) -> None:
    servers.answers = {"b": b"again,2,0,0"}

    async def scene(leases: RedisLeases) -> None:
        servers.held = asyncio.Event()
        gone = asyncio.create_task(leases.claim([("a", "t")], 1.0))
        stays = asyncio.create_task(leases.claim([("b", "t")], 1.0))
        await eventually(lambda: servers.calls)
        gone.cancel()
        await asyncio.sleep(0)
        servers.held.set()
        assert await stays == [Claim(LeaseAnswer.AGAIN, 2)]

    play(scene)


def test_a_close_writes_the_ends_that_are_left(servers: Servers) -> None:
    servers.close_fault = OSError("gone")

    async def scene(leases: RedisLeases) -> None:
        leases.settle("a", "one", "done")
        await leases.close()
        assert keys(servers) == [[["a"]]]
        assert servers.is_closed

    play(scene, closes=False)


def test_a_close_waits_for_the_round_trip_under_way(servers: Servers) -> None:
    async def scene(leases: RedisLeases) -> None:
        servers.held = asyncio.Event()
        waiting = asyncio.create_task(leases.claim([("a", "t")], 1.0))
        await eventually(lambda: servers.calls)
        closing = asyncio.create_task(leases.close())
        await asyncio.sleep(0)
        assert not closing.done()
        assert not servers.is_closed
        servers.held.set()
        await closing
        assert waiting.done()

    play(scene, closes=False)


def test_an_answer_of_the_script_is_read() -> None:
    assert claim_of(b"again,7,1,250") == Claim(LeaseAnswer.AGAIN, 7, True, 0.25)
    assert claim_of(b"held,0,0,1") == Claim(LeaseAnswer.HELD, 0, False, 0.001)


def test_a_key_is_that_of_a_group_and_a_message() -> None:
    assert key_of("payments", "M") == "rmq:payments:M"


def test_an_application_without_redis_has_no_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def servers_of(url: str, *, timeout: float) -> Servers:
        asked.append((url, timeout))
        return Servers()

    monkeypatch.setattr("reliable_mq.idempotency.redis_leases.servers_of", servers_of)
    assert open_leases(Settings()) is None
    assert open_leases(Settings(redis="redis://a", redis_timeout_seconds=2.5)) is not None
    assert asked == [("redis://a", 2.5)]
    RedisLeases("redis://b", duplicate_window=60.0)
    assert asked[1] == ("redis://b", 1.0)


def test_an_error_of_the_script_is_a_fault(servers: Servers) -> None:
    async def scene(leases: RedisLeases) -> None:
        servers.faults = [ResponseError("OOM"), ResponseError("OOM")]
        assert await leases.claim([("k", "t")], 1.0) == [UNREACHABLE]

    play(scene)
