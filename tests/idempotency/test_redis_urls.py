"""The hosts in a Redis URL mean the same on every Python, and with every scheme."""

import asyncio
from typing import Any

import pytest
from redis.asyncio.connection import SSLConnection

from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.redis_servers import servers_of
from reliable_mq.idempotency.redis_urls import hidden

SCHEMES = {"redis://{}/0": "one", "redis+sentinel://{}/main": "sentinel", "rediss+cluster://{}": ""}


def places_of(url: str) -> list[tuple[str, int]]:
    async def read() -> list[tuple[str, int]]:
        made: Any = servers_of(url, timeout=0.5)
        if "cluster" in url:
            nodes = made._cluster.nodes_manager.startup_nodes.values()
            return [(each.host, each.port) for each in nodes]
        servers = made._sentinel.sentinels if made._sentinel else [made._redis]
        kwargs = [each.connection_pool.connection_kwargs for each in servers]
        return [(each["host"], each["port"]) for each in kwargs]

    return asyncio.run(read())


@pytest.mark.parametrize("url", SCHEMES)
@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("a:1", ("a", 1)),
        ("[::1]:7000", ("::1", 7000)),
        ("[fe80::1%25eth0]:1", ("fe80::1%eth0", 1)),
        ("shop:s3cret@[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        (" a:1 ", ("a", 1)),
    ],
)
def test_one_host_is_read_alike_by_every_scheme(
    url: str, host: str, place: tuple[str, int]
) -> None:
    assert places_of(url.format(host)) == [place]


@pytest.mark.parametrize("url", [each for each in SCHEMES if "+" in each])
def test_blanks_between_hosts_belong_to_none_of_them(url: str) -> None:
    assert places_of(url.format("a:1, b:2 ,[::1]:3")) == [("a", 1), ("b", 2), ("::1", 3)]


@pytest.mark.parametrize("url", SCHEMES)
@pytest.mark.parametrize(
    "hosts",
    [
        *("[::1]x:80", "x[::1]:80", "[::1].:7", "[::1]7000", "[]:1", "[x]:1", "[::1", "::1:80"),
        *("a,", ",a", "a,,b", "a, ,b", "a:0", "a:", "a:65536", "a b:1", "[fe80::1%25]:1"),
    ],
)
def test_hosts_that_do_not_read_are_refused_alike_by_every_scheme(url: str, hosts: str) -> None:
    for login in ("", "shop:s3cret@"):
        with pytest.raises(ConfigurationError, match=r"a (host|port) is a") as refused:
            servers_of(url.format(login + hosts), timeout=0.5)
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("url", ["unix://a:1,[::1]/x", "unix://[::1]x/y", "unix://run/redis.sock"])
def test_a_socket_has_no_host(url: str) -> None:
    with pytest.raises(ConfigurationError, match="unix:///path"):
        servers_of(url, timeout=0.5)


@pytest.mark.parametrize("url", SCHEMES)
def test_a_host_among_the_options_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="before the path"):
        servers_of(url.format("a") + "?host=b&password=s3cret", timeout=0.5)


def test_a_url_of_one_server_has_a_login_options_and_defaults() -> None:
    async def scenario() -> None:
        made: Any = servers_of(
            "rediss://u:s%40c@/?socket_timeout=3&ssl_cert_reqs=none", timeout=0.5
        )
        pool = made._redis.connection_pool
        options = pool.connection_kwargs
        assert pool.connection_class is SSLConnection
        assert (options["host"], options["port"], options["db"]) == ("localhost", 6379, 0)
        assert (options["username"], options["password"]) == ("u", "s@c")
        assert (options["socket_timeout"], options["socket_connect_timeout"]) == (3.0, 0.5)
        made = servers_of("redis://a/3?db=4", timeout=0.5)
        assert made._redis.connection_pool.connection_kwargs["db"] == 4

    asyncio.run(scenario())


def test_hosts_with_blanks_and_zones_are_shown() -> None:
    url = "redis+cluster://{}a, [fe80::1%25eth0]:1"
    assert hidden(url.format(":s3cret@")) == url.format("@")
