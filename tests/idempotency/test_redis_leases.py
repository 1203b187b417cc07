"""Leases in a real Redis-protocol server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import Redis
from tests.waiting import eventually

from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.claim import Claim, LeaseAnswer
from reliable_mq.idempotency.lease_store import key_of
from reliable_mq.idempotency.redis_leases import RedisLeases
from reliable_mq.testing.local_servers import LocalValkey

KEY = key_of("payments", "A" * 32)


LONG, SHORT = 600.0, 0.02
"""A lease that does not pass while a test runs, and one that is over at once."""
TIMEOUT = 30.0
"""A server that was killed refuses at once; this one may only be slow."""


def run(url: str, scenario: Callable[[RedisLeases], Awaitable[None]]) -> None:
    async def main() -> None:
        leases = RedisLeases(url, duplicate_window=2 * LONG, timeout=TIMEOUT)
        try:
            await scenario(leases)
        finally:
            await leases.close()

    asyncio.run(main())


async def claim(leases: RedisLeases, token: str, key: str = KEY, *, lease: float = LONG) -> Claim:
    return (await leases.claim([(key, token)], lease))[0]


async def claim_after(
    passes: LeaseAnswer, leases: RedisLeases, token: str, key: str = KEY
) -> Claim:
    """Claim until the answer is no longer `passes`; return the answer."""
    found: list[Claim] = []

    async def is_over() -> bool:
        found.append(await claim(leases, token, key))
        return found[-1].lease is not passes

    await eventually(is_over, lambda: found[-1])
    return found[-1]


def until(server: Redis) -> int:
    """Return the Redis time at which the lease ends, milliseconds."""
    value: Any = server.get(KEY)
    return int(value.split(b":")[1])


def test_one_of_two_owners_gets_the_lease_and_the_other_is_told_how_long(redis_url: str) -> None:
    async def scenario(leases: RedisLeases) -> None:
        assert await claim(leases, "one") == Claim(LeaseAnswer.FIRST, 1)
        second = await claim(leases, "two")
        assert second.lease is LeaseAnswer.HELD
        assert LONG / 2 < second.wait <= LONG

    run(redis_url, scenario)


def test_each_claim_of_a_round_trip_holds_for_its_own_time(redis_url: str) -> None:
    async def scenario(leases: RedisLeases) -> None:
        await asyncio.gather(
            claim(leases, "one", "slow group", lease=LONG),
            claim(leases, "one", "quick group", lease=LONG / 2),
        )
        waits = [(await claim(leases, "two", key)).wait for key in ("slow group", "quick group")]
        assert LONG / 2 < waits[0] <= LONG
        assert LONG / 4 < waits[1] <= LONG / 2

    run(redis_url, scenario)


def test_the_same_token_may_ask_again_and_that_is_no_new_attempt(redis_url: str) -> None:
    async def scenario(leases: RedisLeases) -> None:
        assert (
            await claim(leases, "one") == await claim(leases, "one") == Claim(LeaseAnswer.FIRST, 1)
        )

    run(redis_url, scenario)


def test_an_owner_that_vanished_is_followed_by_an_attempt_that_knows_of_it(redis_url: str) -> None:
    async def scenario(leases: RedisLeases) -> None:
        await claim(leases, "one", lease=SHORT)
        again = await claim_after(LeaseAnswer.HELD, leases, "two")
        assert again == Claim(LeaseAnswer.AGAIN, 2, in_doubt=True)

    run(redis_url, scenario)


@pytest.mark.parametrize(
    ("fate", "then"),
    [
        ("done", Claim(LeaseAnswer.DONE)),
        ("fail", Claim(LeaseAnswer.FIRST, 1)),  # its number is in the consume log by now
        ("back", Claim(LeaseAnswer.FIRST, 1)),
    ],
)
def test_what_became_of_a_claim_travels_before_the_next_one(
    redis_url: str, fate: str, then: Claim
) -> None:
    async def scenario(leases: RedisLeases) -> None:
        await claim(leases, "one")
        leases.settle(KEY, "one", fate)  # type: ignore[arg-type]
        assert await claim(leases, "two") == then

    run(redis_url, scenario)


def test_an_attempt_given_back_leaves_the_earlier_ones_counted(redis_url: str) -> None:
    async def scenario(leases: RedisLeases) -> None:
        await claim(leases, "one", lease=SHORT)
        await claim_after(LeaseAnswer.HELD, leases, "two")
        leases.settle(KEY, "two", "back")
        assert await claim(leases, "three") == Claim(
            LeaseAnswer.AGAIN, 2, in_doubt=True
        )  # P5: still

    run(redis_url, scenario)


@pytest.mark.parametrize("fate", ["fail", "back", "renew"])
def test_a_token_that_lost_its_lease_changes_nothing(redis_url: str, fate: str) -> None:
    async def scenario(leases: RedisLeases) -> None:
        await claim(leases, "one")
        if fate == "renew":
            leases.renew(KEY, "stale", SHORT)
        else:
            leases.settle(KEY, "stale", fate)  # type: ignore[arg-type]
        second = await claim(leases, "two")
        assert (second.lease, second.wait > LONG / 2) == (LeaseAnswer.HELD, True)

    run(redis_url, scenario)


def test_a_renewed_lease_holds_longer(redis_url: str) -> None:
    server = Redis.from_url(redis_url)

    async def scenario(leases: RedisLeases) -> None:
        await claim(leases, "one")
        before = until(server)
        leases.renew(KEY, "one", LONG + 10)
        second = await claim(leases, "two")
        assert second.lease is LeaseAnswer.HELD
        assert until(server) >= before + 10_000

    run(redis_url, scenario)


def test_concurrent_claims_share_a_round_trip(redis_url: str) -> None:
    server = Redis.from_url(redis_url)

    async def scenario(leases: RedisLeases) -> None:
        await claim(leases, "warm", "warm-up")
        before = server.info("commandstats")["cmdstat_evalsha"]["calls"]
        keys = [key_of("g", str(number)) for number in range(100)]
        answers = await asyncio.gather(*(claim(leases, f"t-{key}", key) for key in keys))
        after = server.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert {answer.lease for answer in answers} == {LeaseAnswer.FIRST}
        assert after - before <= 2

    run(redis_url, scenario)


def test_callers_who_share_a_round_trip_get_the_answers_to_their_own_claims(
    redis_url: str,
) -> None:
    async def scenario(leases: RedisLeases) -> None:
        await claim(leases, "one", "held")
        await claim(leases, "one", "done")
        leases.settle("done", "one", "done")
        await claim(leases, "gone", "doubtful", lease=SHORT)
        await claim_after(LeaseAnswer.HELD, leases, "two", "doubtful")
        leases.settle("doubtful", "two", "back")

        mine, yours, nobodys = await asyncio.gather(
            leases.claim([("new", "me"), ("held", "me"), ("done", "me")], LONG),
            leases.claim([("doubtful", "you")], LONG),
            leases.claim([], LONG),
        )

        assert [each.lease for each in mine] == [
            LeaseAnswer.FIRST,
            LeaseAnswer.HELD,
            LeaseAnswer.DONE,
        ]
        assert LONG / 2 < mine[1].wait <= LONG
        assert (yours, nobodys) == ([Claim(LeaseAnswer.AGAIN, 2, in_doubt=True)], [])

    run(redis_url, scenario)


def test_a_flush_forgets_scripts_and_leases_and_nothing_breaks(
    redis_url: str, valkey_server: LocalValkey
) -> None:
    async def scenario(leases: RedisLeases) -> None:
        await claim(leases, "one")
        valkey_server.flush()
        Redis.from_url(redis_url).script_flush()
        assert await claim(leases, "two") == Claim(LeaseAnswer.FIRST, 1)

    run(redis_url, scenario)


def test_a_server_that_is_away_is_unreachable_and_found_again(
    redis_url: str, valkey_server: LocalValkey, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(leases: RedisLeases) -> None:
        assert (await claim(leases, "one")).lease is LeaseAnswer.FIRST
        valkey_server.kill()
        try:
            assert (await claim(leases, "two")).lease is LeaseAnswer.UNREACHABLE
            leases.settle(KEY, "one", "done")  # dropped: the row says the rest
        finally:
            valkey_server.start()
        found = await claim_after(LeaseAnswer.UNREACHABLE, leases, "three")
        assert found.lease is LeaseAnswer.FIRST

    with caplog.at_level(logging.INFO):
        run(redis_url, scenario)
    assert [each.getMessage() for each in caplog.records][-1] == "Redis answers again"


def test_a_value_of_a_foreign_hand_is_no_tombstone(redis_url: str) -> None:
    Redis.from_url(redis_url).set(KEY, "1")  # somebody's SETNX

    async def scenario(leases: RedisLeases) -> None:
        assert await claim(leases, "one") == Claim(LeaseAnswer.FIRST, 1)

    run(redis_url, scenario)


def test_a_url_that_is_none_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError, match="not a Redis URL"):
        RedisLeases("localhost", duplicate_window=1)
