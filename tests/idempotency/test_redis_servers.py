"""Leases in a cluster, and in the primary that a Sentinel names; what a URL may say."""

import asyncio
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.cluster import RedisCluster
from redis.crc import key_slot
from tests.doctor.worlds import PATIENT, World
from tests.waiting import eventually, until

from reliable_mq.doctor.finding import Level
from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.claim import Claim, LeaseAnswer
from reliable_mq.idempotency.lease_store import key_of
from reliable_mq.idempotency.redis_leases import RedisLeases
from reliable_mq.idempotency.redis_servers import servers_of
from reliable_mq.idempotency.redis_urls import hidden
from reliable_mq.testing.local_valkey_groups import LocalValkeyCluster, LocalValkeySentinel

LONG = 600.0
TIMEOUT = 10.0
"""Servers that were killed refuse at once; the others may only be slow."""
KEYS = [key_of("payments", f"{number:032X}") for number in range(30)]


@pytest.fixture(scope="module")
def cluster(server_directory: Path) -> Iterator[LocalValkeyCluster]:
    servers = LocalValkeyCluster(server_directory / "cluster")
    servers.start()
    yield servers
    servers.stop()


@pytest.fixture
def sentinel(server_directory: Path) -> Iterator[LocalValkeySentinel]:
    servers = LocalValkeySentinel(server_directory / "sentinel")
    servers.start()
    yield servers
    servers.stop()


async def claim_all(leases: RedisLeases, token: str) -> list[Claim]:
    return await leases.claim([(key, token) for key in KEYS], LONG)


async def claim_when_reached(leases: RedisLeases, token: str) -> list[Claim]:
    """Claim until it is answered: a Sentinel takes a server for dead that stood still for 0.3 s."""
    found: list[Claim] = []

    async def is_reached() -> bool:
        found[:] = await claim_all(leases, token)
        return found[0].lease is not LeaseAnswer.UNREACHABLE

    await eventually(is_reached)
    return found


def test_a_cluster_keeps_each_claim_where_its_key_belongs(cluster: LocalValkeyCluster) -> None:
    cluster.flush()
    assert len({key_slot(key.encode()) * 3 // 16384 for key in KEYS}) == 3  # on every server

    async def scenario() -> None:
        leases = RedisLeases(cluster.url, duplicate_window=2 * LONG, timeout=TIMEOUT)
        try:
            assert await claim_all(leases, "one") == [Claim(LeaseAnswer.FIRST, 1)] * len(KEYS)
            assert {each.lease for each in await claim_all(leases, "two")} == {LeaseAnswer.HELD}
            for number, key in enumerate(KEYS):
                leases.settle(key, "one", "done" if number % 2 else "back")
            words = [each.lease for each in await claim_all(leases, "three")]
            assert words == [LeaseAnswer.FIRST, LeaseAnswer.DONE] * (len(KEYS) // 2)
        finally:
            await leases.close()

    asyncio.run(scenario())


def test_a_cluster_that_lost_a_server_is_unreachable_and_found_again(
    server_directory: Path,
) -> None:
    cluster = LocalValkeyCluster(server_directory / "cluster that loses one")
    cluster.start()

    async def scenario() -> None:
        leases = RedisLeases(cluster.url, duplicate_window=2 * LONG, timeout=TIMEOUT)
        try:
            assert {each.lease for each in await claim_all(leases, "one")} == {LeaseAnswer.FIRST}
            cluster.nodes[0].kill()
            assert {each.lease for each in await claim_all(leases, "two")} == {
                LeaseAnswer.UNREACHABLE
            }
            cluster.nodes[0].start()
            found = await claim_when_reached(leases, "three")
            assert {each.lease for each in found} <= {LeaseAnswer.FIRST, LeaseAnswer.HELD}
        finally:
            await leases.close()

    try:
        asyncio.run(scenario())
    finally:
        cluster.stop()


def test_the_doctor_finds_a_cluster_sound_and_names_none_of_its_primaries(
    cluster: LocalValkeyCluster, tmp_path: Path
) -> None:
    world = World(f"sqlite:///{tmp_path / 'application.db'}", redis=cluster.url, **PATIENT)

    (redis,) = world.findings("redis")
    (clocks,) = world.findings("clocks")

    assert (redis.level, clocks.level) == (Level.OK, Level.OK)
    assert redis.text.startswith("3 primaries of a cluster answer in ")
    world.close()


def test_the_doctor_asks_the_primary_that_a_sentinel_names_and_says_when_there_is_none(
    sentinel: LocalValkeySentinel, tmp_path: Path
) -> None:
    world = World(f"sqlite:///{tmp_path / 'application.db'}", redis=sentinel.url, **PATIENT)
    # Until then it may have taken a primary for dead that stood still for 0.3 s.
    until(lambda: [each.level for each in world.findings("redis")] == [Level.OK])
    for each in (sentinel.sentinel, sentinel.primary):
        each.kill()
    (told,) = world.findings("redis")

    assert told.level is Level.WARNING  # the database alone decides: no promise is in danger
    assert told.text.startswith("Redis cannot be reached: ")
    world.close()


def test_leases_go_on_at_the_replica_that_a_sentinel_promotes(
    sentinel: LocalValkeySentinel,
) -> None:
    """What the replica had not yet is gone, as with a flush: the database decides."""

    async def scenario() -> None:
        leases = RedisLeases(sentinel.url, duplicate_window=2 * LONG, timeout=TIMEOUT)
        try:
            found = await claim_when_reached(leases, "one")
            assert {each.lease for each in found} == {LeaseAnswer.FIRST}
            sentinel.primary.kill()
            found = await claim_when_reached(leases, "two")
            assert {each.lease for each in found} <= {LeaseAnswer.FIRST, LeaseAnswer.HELD}
        finally:
            await leases.close()

    asyncio.run(scenario())


def test_a_url_names_hosts_a_primary_a_login_and_options() -> None:
    one: Any = servers_of(
        "rediss+sentinel://shop:s%40crt@a:1,[::1]/main/3?sentinel_password=p&ssl_cert_reqs=none",
        timeout=0.5,
    )
    assert [each.connection_pool.connection_kwargs["host"] for each in one._sentinel.sentinels] == [
        "a",
        "::1",
    ]
    watched = one._sentinel.sentinels[0].connection_pool.connection_kwargs
    assert (watched["password"], watched["ssl_cert_reqs"]) == ("p", "none")
    primary = one._redis.connection_pool
    assert primary.service_name == "main"
    options = primary.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("shop", "s@crt", 3)


@pytest.mark.parametrize(
    ("hosts", "places"),
    [
        ("a,b:7001", {("a", 6379), ("b", 7001)}),
        ("[::1]:7001,a", {("::1", 7001), ("a", 6379)}),
        ("a:1,[::1],[2001:db8::7]:2", {("a", 1), ("::1", 6379), ("2001:db8::7", 2)}),
    ],
)
def test_a_cluster_url_names_its_hosts(hosts: str, places: set[tuple[str, int]]) -> None:
    async def scenario() -> None:
        made: Any = servers_of(f"rediss+cluster://:secret@{hosts}", timeout=0.5)
        cluster: RedisCluster = made._cluster
        nodes = {(n.host, n.port) for n in cluster.nodes_manager.startup_nodes.values()}
        assert nodes == places
        assert cluster.nodes_manager.connection_kwargs["password"] == "secret"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+sentinel://a:26379", "names no primary"),
        ("redis+sentinel://a/main/three", "/three is not the number of a database"),
        ("redis+sentinel://a/main/0/1", "/0/1 is not the number of a database"),
        ("redis+sentinel://a/main?db_number=3", "that redis-py does not know: 'db_number'"),
        ("redis+sentinel:///main", "names no host"),
        ("redis+cluster://a/1", "database 0 only"),
        ("redis+cluster://a:x", r"redis://user:password@host:6379/0"),
        ("redis+cluster://a?db_number=3", "that redis-py does not know: 'db_number'"),
        ("http+cluster://a", "it must begin with redis://, .*, redis\\+cluster://"),
        ("valkey://a", "it must begin with redis://"),
        ("a:6379", "it must begin with redis://"),
        ("redis://a:99999", "a port is a number from 1 to 65535"),
        ("redis://a:0", "a port is a number from 1 to 65535"),
        ("redis+sentinel://a:1,[::1]x:80/main", r"redis://user:password@host:6379/0"),
        ("redis+sentinel://a:1,x[::1]:80/main", r"redis://user:password@host:6379/0"),
        ("redis+sentinel://a:1,[::1]7000/main", r"redis://user:password@host:6379/0"),
        ("redis://a/three", "/three is not the number of a database"),
        ("redis://a/0/1", "/0/1 is not the number of a database"),
        ("redis://a,b", "several hosts need"),
        ("redis://a:1,[::1]/0", "several hosts need"),
        ("redis://a,/0", r"redis://user:password@host:6379/0"),
        ("redis+cluster://a:1,[::1/0", r"redis://user:password@host:6379/0"),
        ("redis://a?db_number=3", "that redis-py does not know: 'db_number'"),
        ("redis://a?password=secret&socket_timeout=x", "Invalid value for 'socket_timeout'"),
        ("rediss://a?ssl_cert_reqs=maybe", "SSL Certificate Requirements Flag: maybe"),
        ("redis+cluster://:secret@a/1", "redis\\+cluster://@a/1"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_showing_its_password(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        servers_of(url, timeout=0.5)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "password", [f"s3{mark}crt" for mark in ["?", "/", "#", "[", "]", "[]", "℀"]]
)
@pytest.mark.parametrize("rest", ["host:6379/0", "host:x", "host:6379/0?db_number=3", "a,b/main/x"])
@pytest.mark.parametrize("login", [":", "shop:", "shop:1", ":?a=1&"])
@pytest.mark.parametrize("scheme", ["redis://", "rediss+sentinel://", "redis+cluster://", ""])
def test_a_password_that_is_not_encoded_is_shown_by_no_refusal_and_no_traceback(
    scheme: str, login: str, password: str, rest: str
) -> None:
    """It may be read as a host, a port, a path, or the name of an option."""
    with pytest.raises(
        ConfigurationError, match=r"is not a Redis URL: (it must|write) "
    ) as refused:
        servers_of(f"{scheme}{login}{password}@{rest}", timeout=0.5)
    text = "".join(traceback.format_exception(refused.value))
    assert not re.search("s3|crt|℀", text), text


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize(
    "password", ["55123?x", "55123#x", "55123/0?x", "55123/0#x", "55@12?x=1&y"]
)
def test_a_password_that_reads_as_a_port_is_refused_and_not_told_as_who_does_not_answer(
    scheme: str, password: str
) -> None:
    """The error of a connection to shop:55123 would show a part of it."""
    with pytest.raises(ConfigurationError, match="is not a Redis URL: write") as refused:
        servers_of(f"{scheme}://shop:{password}@host:6379/0", timeout=0.5)
    text = "".join(traceback.format_exception(refused.value))
    assert not re.search("55123|55@12", text), text


def test_one_host_may_be_an_ipv6_address() -> None:
    one: Any = servers_of("redis://shop:secret@[::1]:7001/2", timeout=0.5)
    options = one._redis.connection_pool.connection_kwargs
    assert (options["host"], options["port"], options["db"]) == ("::1", 7001, 2)


def test_the_path_of_a_socket_may_have_any_sign() -> None:
    one: Any = servers_of("unix:///run/redis@shop.sock?db=1", timeout=0.5)
    options = one._redis.connection_pool.connection_kwargs
    assert (options["path"], options["db"]) == ("/run/redis@shop.sock", 1)
    asyncio.run(one.close())


def test_only_the_password_and_the_options_are_hidden() -> None:
    assert hidden("redis://shop:secret@a:1/0") == "redis://shop@a:1/0"
    assert hidden("redis+cluster://:secret@a:1,[::1]:2") == "redis+cluster://@a:1,[::1]:2"
    assert hidden("shop:secret@a:1") == "shop@a:1"
    assert hidden("redis://a:1/0") == "redis://a:1/0"
    assert hidden("redis://a:1/0?password=secret") == "redis://a:1/0?…"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret?x@host:6379/0",
        "redis://:s3cret/x@host:6379/0",
        "redis://host:6379/0?password=s3@cret",
        "redis://:s3cret",
    ],
)
def test_nothing_is_shown_where_a_login_may_end_in_two_places(url: str) -> None:
    assert hidden(url) == "redis://…"
    assert hidden(url.replace("redis", "rediss+cluster")) == "rediss+cluster://…"
    assert hidden(url.replace("redis", "secret")) == "…"
    assert hidden(url.replace("://", ":")) == "…"
    assert hidden("redis://é") == "redis://…"
