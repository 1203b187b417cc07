"""The Redis servers that hold leases: one Redis, the primary of a Sentinel, or a cluster.

Receives a URL, see `redis_urls`. Returns an object that runs a script over many keys in one round
trip (in a cluster: one for each of its servers, at the same time). Does not know what the scripts
do. The import of redis-py takes a tenth of a second: import this module where Redis is used.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from reliable_mq.idempotency.redis_urls import CLUSTER, ONE, SENTINEL, RedisPlace, place_of, refusal

FAULTS = (RedisError, RedisClusterException, OSError, TimeoutError)
"""The errors of a server that is away, loading or not yet promoted."""


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
    """One Redis, or a Sentinel's current primary: all keys of a call go in one command.

    Rounds keep a connection. Each round through redis-py's client would take one from the pool,
    look whether it is sound, make a task for the time limit of the write, and note its duration.
    That costs more than the round itself.

    Invariant: the kept connection has no answer that nobody has read.
    """

    def __init__(self, redis: Redis, sentinel: Sentinel | None = None) -> None:
        self._redis: Any = redis
        self._sentinel = sentinel
        self._kept: Any = None  # no round uses it now
        self._timeout: float | None = None  # seconds for a round

    async def load(self, script: Script) -> None:
        await self._redis.script_load(script.text)

    async def run(self, calls: Sequence[ScriptCall]) -> list[list[bytes]]:
        connection, self._kept = self._kept, None
        is_new = connection is None
        if is_new:
            connection = self._redis.connection_pool.make_connection()
            # One limit for the whole round: redis-py would make a task for each write.
            self._timeout, connection.socket_timeout = connection.socket_timeout, None
        packed = [part for call in calls for part in connection.pack_command(*_evalsha(call))]
        try:
            async with asyncio.timeout(self._timeout):
                if is_new:
                    await connection.connect()
                await connection.send_packed_command(packed, check_health=False)
                answers = [await connection.read_response(disable_decoding=True) for _ in calls]
        except BaseException:
            await connection.disconnect(nowait=True)  # answers of this round may still come
            raise
        if self._kept is None:
            self._kept = connection
        else:  # another round went on meanwhile, with a connection of its own
            await connection.disconnect(nowait=True)
        return [answer.split() for answer in answers]

    async def server_states(self) -> list[ServerState]:
        return [await _server_state("", self._redis.execute_command)]

    async def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.disconnect()
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


def servers_of(url: str, *, timeout: float) -> RedisServers:
    """Return the servers of a URL, not connected yet.

    Args:
        url: see the head of `redis_urls`.
        timeout: seconds after which a server counts as away.

    Raises:
        ConfigurationError: the URL has none of these forms, or an option that redis-py refuses.
    """
    known: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
    }
    place = place_of(url)
    try:
        return _OPENED[place.kind](url, place, known)
    except (ValueError, RedisError, RedisClusterException) as error:
        why = str(error)
    except TypeError as error:  # "Connection.__init__() got an unexpected keyword argument 'x'"
        _, _, what = str(error).rpartition("keyword argument ")
        why = f"it has an option that redis-py does not know: {what}"
    raise refusal(url, why)  # not `from error`: a traceback would show its text


def _one(url: str, place: RedisPlace, known: dict[str, Any]) -> RedisServers:
    if place.scheme == "unix":
        redis: Redis = Redis.from_url(url, retry=None, **known)
    else:
        ((host, port),) = place.hosts
        options = {"db": place.database or 0} | known | _options(place)
        redis = Redis.from_pool(ConnectionPool(host=host, port=port, retry=None, **options))
    _check_options(redis)
    return _OneServer(redis)


def _check_options(redis: Redis) -> None:
    """Raise at once the error that redis-py would raise at its first connection for its options."""
    pool: Any = redis.connection_pool
    pool.connection_class(**pool.connection_kwargs)


def _sentinel(_url: str, place: RedisPlace, known: dict[str, Any]) -> RedisServers:
    options = _options(place) | known
    if place.database is not None:
        options["db"] = place.database
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
    primary: Redis = sentinel.master_for(place.primary, retry=None, **options)
    for each in (primary, *sentinel.sentinels):
        _check_options(each)
    return _OneServer(primary, sentinel)


def _cluster(_url: str, place: RedisPlace, known: dict[str, Any]) -> RedisServers:
    options = _options(place) | known
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    # The caller tries again itself; the cluster client's own retries would outlast a lease.
    cluster = RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in place.hosts],
        retry=Retry(NoBackoff(), 0),
        **options,
    )
    return _Cluster(cluster)


def _options(place: RedisPlace) -> dict[str, Any]:
    """Return the login and the options of a URL as redis-py reads them."""
    url = f"{place.scheme}://{place.login}host/?{urlencode(place.query)}"
    options: dict[str, Any] = dict(parse_url(url))
    del options["host"]
    return options


_OPENED = {ONE: _one, SENTINEL: _sentinel, CLUSTER: _cluster}
"""The function that opens the servers of a URL, by what the URL leads to."""
