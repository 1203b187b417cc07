"""Rounds of scripts keep a connection, and no round gets the answer of another one."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoScriptError
from tests.waiting import eventually

from reliable_mq.idempotency.claim import UNREACHABLE
from reliable_mq.idempotency.redis_leases import RedisLeases
from reliable_mq.idempotency.redis_servers import FAULTS, ScriptCall, script_of, servers_of
from reliable_mq.testing.local_servers import LocalValkey

NAMES = script_of("return table.concat(KEYS, ' ')")
LONG = 30.0
Scene = Callable[[Any], Awaitable[None]]


def call(*keys: str) -> ScriptCall:
    return ScriptCall(NAMES, (), keys, [()] * len(keys))


def play(url: str, scene: Scene, timeout: float = LONG) -> None:
    with Redis.from_url(url) as client:
        client.script_load(NAMES.text)

    async def main() -> None:
        servers = servers_of(url, timeout=timeout)
        try:
            await scene(servers)
        finally:
            await servers.close()

    asyncio.run(main())


@contextmanager
def standing_still(server: LocalValkey) -> Iterator[None]:
    """Let a server take no processor time; what it is sent waits."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def connections_made(observer: Redis) -> int:
    told: Any = observer.info("stats")
    return int(told["total_connections_received"])


def test_rounds_one_after_another_share_a_connection(redis_url: str) -> None:
    with Redis.from_url(redis_url) as observer:

        async def scene(servers: Any) -> None:
            assert await servers.run([call("a")]) == [[b"a"]]
            before = connections_made(observer)
            for number in range(20):
                both = await servers.run([call(f"x{number}", "y"), call("z")])
                assert both == [[f"x{number}".encode(), b"y"], [b"z"]]
            assert connections_made(observer) == before

        play(redis_url, scene)


def test_rounds_at_the_same_time_get_their_own_answers(redis_url: str) -> None:
    async def scene(servers: Any) -> None:
        for _ in "ab":
            rounds = [servers.run([call(f"k{number}"), call("l")]) for number in range(8)]
            found = await asyncio.gather(*rounds)
            assert found == [[[f"k{number}".encode()], [b"l"]] for number in range(8)]

    play(redis_url, scene)


def test_a_wrong_password_names_the_setting_and_is_not_shown(
    valkey_server: LocalValkey, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        url = f"redis://:s3cret@127.0.0.1:{valkey_server.port}/0"
        leases = RedisLeases(url, duplicate_window=60)
        assert (await leases.claim([("k", "t")], 1.0)) == [UNREACHABLE]
        await leases.close()

    asyncio.run(scene())

    assert "Redis (setting redis, RELIABLE_MQ_REDIS) cannot be used, the database d" in caplog.text
    assert "password" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_round_that_was_cut_off_leaves_its_answer_to_nobody(
    redis_url: str, valkey_server: LocalValkey
) -> None:
    async def scene(servers: Any) -> None:
        await servers.run([call("a")])
        with standing_still(valkey_server):
            cut_off = asyncio.create_task(servers.run([call("b")]))
            await eventually(lambda: servers._kept is None)
            cut_off.cancel()
            await asyncio.wait([cut_off])
        assert cut_off.cancelled()
        assert await servers.run([call("c")]) == [[b"c"]]

    play(redis_url, scene)


def test_a_round_without_an_answer_in_time_is_a_fault_and_leaves_nothing(
    redis_url: str, valkey_server: LocalValkey
) -> None:
    found: list[Any] = []

    async def scene(servers: Any) -> None:
        async def is_answered() -> bool:
            try:
                found[:] = await servers.run([call("c")])
            except FAULTS:
                return False
            return True

        await eventually(is_answered)
        with standing_still(valkey_server), pytest.raises(TimeoutError):
            await servers.run([call("b")])
        found.clear()
        await eventually(is_answered)
        assert found == [[b"c"]]

    play(redis_url, scene, timeout=0.2)


def test_an_error_of_the_first_script_takes_no_answer_of_the_second(redis_url: str) -> None:
    unknown = ScriptCall(script_of("return 'never loaded'"), (), ["a"], [()])

    async def scene(servers: Any) -> None:
        with pytest.raises(NoScriptError):
            await servers.run([unknown, call("b")])
        assert await servers.run([call("c")]) == [[b"c"]]

    play(redis_url, scene)


def test_a_server_that_was_restarted_costs_one_round(
    redis_url: str, valkey_server: LocalValkey
) -> None:
    async def scene(servers: Any) -> None:
        await servers.run([call("a")])
        valkey_server.kill()
        valkey_server.start()
        with pytest.raises(FAULTS):
            await servers.run([call("b")])
        await servers.load(NAMES)
        assert await servers.run([call("c")]) == [[b"c"]]

    play(redis_url, scene)


def test_after_the_end_no_connection_is_open(redis_url: str) -> None:
    with Redis.from_url(redis_url) as observer:
        before = len(observer.client_list())

        async def scene(servers: Any) -> None:
            await servers.run([call("a")])
            assert len(observer.client_list()) > before

        play(redis_url, scene)

        async def is_gone() -> bool:
            return len(observer.client_list()) == before

        asyncio.run(eventually(is_gone))
