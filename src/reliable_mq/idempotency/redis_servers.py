"""The Redis servers that hold leases: one Redis, the primary of a Sentinel, or a cluster.

Receives a URL. Returns an object that runs a script over many keys in one round trip (in a cluster:
one for each of its servers, at the same time). Does not know what the scripts do.

    redis://[user:password@]host:6379/0           rediss:// over TLS, unix:///path?db=0
    redis+sentinel://[user:password@]host:26379,host:26379/primary-name/0
    redis+cluster://[user:password@]host:6379,host:6379
                                                  rediss+sentinel://, rediss+cluster:// over TLS

The query may have all options of redis-py (`?ssl_ca_certs=…`); `sentinel_username` and
`sentinel_password` are for the Sentinels themselves. `/?#[]@` in the login and the query are
percent-encoded. An IPv6 address has brackets: `[::1]:6379`, with a zone `[fe80::1%25eth0]`.
"""

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import NotAPlace, hosts_and_ports_of

FAULTS = (RedisError, RedisClusterException, OSError, TimeoutError)
"""The errors of a server that is away, loading or not yet promoted."""

_SENTINEL_PORT, _PORT = 26379, 6379

_HOST = r" *(?:[\w.-]+|\[[\da-fA-F:.]+(?:%25[\w.-]+)?\])(?::\d+)? *"
_PLAIN = re.compile(
    r"(?P<scheme>(?:[a-z+]+://)?)(?:(?P<user>[^:@/?#\[\]]*)(?::[^@/?#\[\]]*)?(?P<at>@))?"
    rf"(?P<place>(?:{_HOST}(?:,{_HOST})*)?(?:/[^@?#]*)?)(?P<options>\?[^@]*)?"
)
"""A URL with each of `/?#[]@` only in its proper place, or encoded."""
_AUTHORITY = re.compile(r"[^/?#]*")
"""The text between `://` and the path, RFC 3986, section 3.2."""
_AS_IT_IS_WRITTEN = (
    "write redis://user:password@host:6379/0, and /?#[]@ in the login and the options"
    " as %2F %3F %23 %5B %5D %40"
)


class Script(NamedTuple):
    """A Lua script, and the digest by which a server that has loaded it calls it."""

    text: str
    digest: str


class ScriptCall(NamedTuple):
    """A script over some keys: `shared` arguments come first, then `parts[i]` of `keys[i]`.

    It returns a text: an answer for each key, separated by blanks. redis-py reads arrays element by
    element, with a coroutine for each, which would cost more than the rest of a claim.
    """

    script: Script
    shared: tuple[Any, ...]
    keys: Sequence[str]
    parts: Sequence[tuple[Any, ...]]


class ServerState(NamedTuple):
    """What one server reports about itself.

    `name`: its address, if there are several servers. `role`: "master" or "slave". `clock_ahead`:
    how far its clock is ahead of this machine's, in seconds. `answer_seconds`: how long it took to
    answer.
    """

    name: str
    role: str
    clock_ahead: float
    answer_seconds: float


class RedisServers(Protocol):
    """One or many servers; each key is in one place."""

    async def load(self, script: Script) -> None:
        """Load a script into every server that may run it."""
        ...

    async def run(self, calls: Sequence[ScriptCall]) -> list[list[bytes]]:
        """Run scripts, in their order for each key; return the answers by call and key.

        Raises one of `FAULTS` if any part may not have been done.
        """
        ...

    async def server_states(self) -> list[ServerState]:
        """Ask every server that accepts writes for its state; in a cluster, all primaries.

        Raises one of `FAULTS` if a server does not answer.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def script_of(text: str) -> Script:
    """Return a script with its digest."""
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class _OneServer:
    """One Redis, or a Sentinel's current primary: all keys of a call go in one command."""

    def __init__(self, redis: Redis, sentinel: Sentinel | None = None) -> None:
        self._redis: Any = redis
        self._sentinel = sentinel

    async def load(self, script: Script) -> None:
        await self._redis.script_load(script.text)

    async def run(self, calls: Sequence[ScriptCall]) -> list[list[bytes]]:
        if len(calls) == 1:  # a pipeline of one command costs a third more than the command alone
            return [(await self._redis.execute_command(*_evalsha(calls[0]))).split()]
        pipeline = self._redis.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*_evalsha(call))
        return [answers.split() for answers in await pipeline.execute()]

    async def server_states(self) -> list[ServerState]:
        return [await _server_state("", self._redis.execute_command)]

    async def close(self) -> None:
        await self._redis.aclose()
        if self._sentinel is not None:
            for each in self._sentinel.sentinels:
                await each.aclose()


def _evalsha(call: ScriptCall) -> tuple[Any, ...]:
    tail = [part for parts in call.parts for part in parts]
    return ("EVALSHA", call.script.digest, len(call.keys), *call.keys, *call.shared, *tail)


class _Cluster:
    """A Redis cluster. A script may touch keys of one slot only, so each key has a command."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster = cluster

    async def load(self, script: Script) -> None:
        await self._cluster.initialize()
        await self._cluster.execute_command(
            "SCRIPT LOAD", script.text, target_nodes=RedisCluster.PRIMARIES
        )

    async def run(self, calls: Sequence[ScriptCall]) -> list[list[bytes]]:
        pipeline = self._cluster.pipeline()
        for call in calls:
            for key, parts in zip(call.keys, call.parts, strict=True):
                pipeline.execute_command(
                    "EVALSHA", call.script.digest, 1, key, *call.shared, *parts
                )
        flat = iter(await pipeline.execute())
        return [[next(flat) for _ in call.keys] for call in calls]

    async def server_states(self) -> list[ServerState]:
        await self._cluster.initialize()
        return [
            await _server_state(
                node.name, partial(self._cluster.execute_command, target_nodes=node)
            )
            for node in self._cluster.get_primaries()
        ]

    async def close(self) -> None:
        await self._cluster.aclose()


async def _server_state(name: str, ask: Callable[..., Awaitable[Any]]) -> ServerState:
    await ask("PING")  # this opens the connection, outside of the measured time
    before = time.time()
    seconds, microseconds = await ask("TIME")
    after = time.time()
    ahead = int(seconds) + int(microseconds) / 1e6 - (before + after) / 2
    role, *_ = await ask("ROLE")
    role = role.decode() if isinstance(role, bytes) else str(role)
    return ServerState(name, role, ahead, after - before)


class _Place(NamedTuple):
    """The contents of a URL with several servers."""

    hosts: list[tuple[str, int]]
    path: list[str]
    options: dict[str, Any]


def servers_of(url: str, *, timeout: float) -> RedisServers:
    """Return the servers of a URL, not connected yet.

    Args:
        url: see the head of this module.
        timeout: seconds after which a server counts as away.

    Raises:
        ConfigurationError: the URL has none of these forms.
    """
    known: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
    }
    scheme = url.partition("://")[0]
    if scheme not in _OPENED:
        why = f"it must begin with {', '.join(f'{each}://' for each in _OPENED)}"
        raise ConfigurationError(f"redis={hidden(url)!r} is not a Redis URL: {why}")
    try:
        _check_login(url)
        return _OPENED[scheme](url, known)
    except NotAPlace as error:  # its text shows nothing of the URL
        why = str(error) if _plain(url) else f"{_AS_IT_IS_WRITTEN}; {error}"
        raise ConfigurationError(f"redis={hidden(url)!r} is not a Redis URL: {why}") from None
    except (ValueError, RedisError, RedisClusterException) as error:
        why = str(error)
    except TypeError as error:  # "Connection.__init__() got an unexpected keyword argument 'x'"
        _, _, what = str(error).rpartition("keyword argument ")
        why = f"it has an option that redis-py does not know: {what}"
    if _plain(url) is None:  # the password may have been read as another part
        why = _AS_IT_IS_WRITTEN
    # Not `from error`: a traceback would show its text.
    raise ConfigurationError(f"redis={hidden(url)!r} is not a Redis URL: {why}")


def hidden(url: str) -> str:
    """Return the parts of a URL that are certainly no password and no option, for error texts."""
    found = _plain(url)
    if found is None:
        scheme, slashes, _ = url.partition("://")
        return f"{scheme}://…" if slashes and scheme in _OPENED else "…"
    shown = "".join(found[part] or "" for part in ("scheme", "user", "at", "place"))
    return f"{shown}{'?…' if found['options'] else ''}"


def _plain(url: str) -> re.Match[str] | None:
    """Return the parts of a URL; None: the end of its login is ambiguous."""
    return _PLAIN.fullmatch(url) if url.isascii() else None


def _check_login(url: str) -> None:
    """Refuse an `@` behind the hosts: a person may mean it as the end of the login.

    redis-py would read `user:123?x@host` as a server `user` at port 123, and show it in its errors.
    """
    parts, hosts = _parts_of(url)
    is_file = parts.scheme == "unix" and not hosts
    if "@" in f"{parts.path}{parts.query}{parts.fragment}" and not is_file:
        raise ValueError(_AS_IT_IS_WRITTEN)


def _one(url: str, known: dict[str, Any]) -> RedisServers:
    parts, hosts = _parts_of(url)
    if parts.scheme == "unix":
        if hosts:
            raise NotAPlace("the path of a socket begins with a slash: unix:///path")
        redis: Redis = Redis.from_url(url, retry=None, **known)
    else:
        place = _place(url, _PORT, "localhost")
        if len(place.hosts) > 1:
            raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
        ((host, port),) = place.hosts
        options = {"db": _database(place.path)} | known | place.options
        redis = Redis.from_pool(ConnectionPool(host=host, port=port, retry=None, **options))
    _check_options(redis)
    return _OneServer(redis)


def _database(path: list[str]) -> int:
    """Return the database number in a path. (redis-py reads a wrong number as 0.)"""
    if len(path) > 1 or not all(each.isdecimal() for each in path):
        raise ValueError(f"/{'/'.join(path)} is not the number of a database")
    return int(path[0]) if path else 0


def _check_options(redis: Redis) -> None:
    """Raise at once the error that redis-py would raise at its first connection for its options."""
    pool: Any = redis.connection_pool
    pool.connection_class(**pool.connection_kwargs)


def _sentinel(url: str, known: dict[str, Any]) -> RedisServers:
    place = _place(url, _SENTINEL_PORT)
    if not place.path:
        raise ValueError("it names no primary: use redis+sentinel://host:26379/primary-name/0")
    name, *database = place.path
    options = place.options | known
    if database:
        options["db"] = _database(database)
    own = {
        each: options.pop(f"sentinel_{each}")
        for each in ("username", "password")
        if f"sentinel_{each}" in options
    }
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = own["ssl"] = True
    own |= {each: value for each, value in options.items() if each.startswith("ssl_")}
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        place.hosts, sentinel_kwargs=own | known | {"retry": None}
    )
    primary: Redis = sentinel.master_for(unquote(name), retry=None, **options)
    for each in (primary, *sentinel.sentinels):
        _check_options(each)
    return _OneServer(primary, sentinel)


def _cluster(url: str, known: dict[str, Any]) -> RedisServers:
    place = _place(url, _PORT)
    if place.path and place.path != ["0"]:
        raise ValueError("a cluster has database 0 only")
    options = place.options | known
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    # The caller tries again itself; the cluster client's own retries would outlast a lease.
    cluster = RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in place.hosts],
        retry=Retry(NoBackoff(), 0),
        **options,
    )
    return _Cluster(cluster)


def _place(url: str, port: int, host: str = "") -> _Place:
    """Split a URL; redis-py reads the options. `port` and `host` are the defaults."""
    parts, hosts = _parts_of(url)
    if not (hosts.strip() or host):
        raise ValueError("it names no host")
    found = [(each.host, each.port or port) for each in hosts_and_ports_of(unquote(hosts or host))]
    login, at, _ = parts.netloc.rpartition("@")
    asked = parse_qsl(parts.query)
    if {"host", "port"} & dict(asked).keys():
        raise ValueError("write hosts and ports before the path, not among the options")
    scheme = parts.scheme.partition("+")[0]
    options: dict[str, Any] = dict(parse_url(f"{scheme}://{login}{at}host/?{urlencode(asked)}"))
    del options["host"]
    return _Place(found, [each for each in parts.path.split("/") if each], options)


def _parts_of(url: str) -> tuple[SplitResult, str]:
    """Return the parts of a URL without its hosts, and the list of hosts as written.

    The list of hosts is removed before `urlsplit` reads the URL. Newer Pythons accept an IPv6
    address only if it is the whole host (CPython gh-105704), so `a:1,[::1]` is an error there.
    """
    scheme, slashes, rest = url.partition("://")
    authority = _AUTHORITY.match(rest)[0]  # type: ignore[index]  # it matches the empty text, too
    login, at, hosts = authority.rpartition("@")
    if "[" in login or "]" in login:  # some Pythons would read it as a host
        raise ValueError(_AS_IT_IS_WRITTEN)
    parts = urlsplit(f"{scheme}{slashes}{login}{at}{rest.removeprefix(authority)}")
    return parts, hosts


_OPENED = {
    "redis": _one,
    "rediss": _one,
    "unix": _one,
    **{f"{scheme}+sentinel": _sentinel for scheme in ("redis", "rediss")},
    **{f"{scheme}+cluster": _cluster for scheme in ("redis", "rediss")},
}
"""The function that opens the servers of a URL, by its scheme."""
