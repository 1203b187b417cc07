"""What servers of Redis are told, over connections in memory: one server, and a cluster."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio.cluster import RedisCluster

from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.redis_servers import (
    ScriptCall,
    ServerState,
    script_of,
    servers_of,
)
from reliable_mq.idempotency.redis_urls import hidden

CLAIM, SETTLE = script_of("claim"), script_of("settle")
CALLS = [
    ScriptCall(SETTLE, (9, 9), ["a"], [("t", "done")]),
    ScriptCall(CLAIM, (9,), ["b", "c"], [("u", 1), ("v", 2)]),
]


class Pipeline:
    def __init__(self, server: "Server", **options: Any) -> None:
        self.server, self.options = server, options
        self.commands: list[tuple[Any, ...]] = []

    def execute_command(self, *command: Any) -> None:
        self.commands.append(command)

    async def execute(self) -> list[Any]:
        self.server.pipelines.append((self.options, self.commands))
        return [self.server.answer(command) for command in self.commands]


class Server:
    """A Redis, or a cluster of two."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.commands: list[tuple[Any, ...]] = []
        self.pipelines: list[tuple[dict[str, Any], list[tuple[Any, ...]]]] = []
        self.loaded: list[str] = []
        self.was_initialized = self.is_closed = False
        self.role: Any = b"master"
        self.rounds: list[list[tuple[Any, ...]]] = []
        self.connection_pool = SimpleNamespace(
            connection_class=lambda **_kwargs: None,
            connection_kwargs={},
            make_connection=lambda: OneConnection(self),
        )

    def answer(self, command: tuple[Any, ...]) -> bytes:
        keys = command[3 : 3 + command[2]]
        return b" ".join(f"{key}!".encode() for key in keys)

    async def script_load(self, text: str) -> None:
        self.loaded.append(text)

    async def execute_command(self, *command: Any, target_nodes: Any = None) -> Any:
        self.commands.append((*command, target_nodes))
        if command[0] == "TIME":
            return (b"4102444800", b"500000")
        if command[0] == "ROLE":
            return [self.role, 1, []]
        return self.answer(command) if command[0] == "EVALSHA" else None

    def pipeline(self, **options: Any) -> Pipeline:
        return Pipeline(self, **options)

    async def initialize(self) -> None:
        self.was_initialized = True

    def get_primaries(self) -> list[Any]:
        return [SimpleNamespace(name="a:1"), SimpleNamespace(name="b:2")]

    async def aclose(self) -> None:
        self.is_closed = True


class OneConnection:
    """The connection that rounds of one server keep."""

    socket_timeout: float | None = 1.0

    def __init__(self, server: Server) -> None:
        self.server = server
        self.unread: list[tuple[Any, ...]] = []

    async def connect(self) -> None:
        self.server.was_initialized = True

    def pack_command(self, *command: Any) -> list[Any]:
        return [command]

    async def send_packed_command(self, packed: list[Any], *, check_health: bool) -> None:
        assert not check_health
        self.server.rounds.append(packed)
        self.unread += packed

    async def read_response(self, *, disable_decoding: bool) -> bytes:
        assert disable_decoding
        return self.server.answer(self.unread.pop(0))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    own = SimpleNamespace(from_pool=lambda _pool: made, from_url=lambda _url, **_options: made)
    monkeypatch.setattr("reliable_mq.idempotency.redis_servers.Redis", own)
    return made


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()

    def cluster_of(**options: Any) -> Server:
        made.options = options
        return made

    cluster_of.PRIMARIES = RedisCluster.PRIMARIES  # type: ignore[attr-defined]
    monkeypatch.setattr("reliable_mq.idempotency.redis_servers.RedisCluster", cluster_of)
    return made


def test_one_call_is_one_command_with_all_keys(server: Server) -> None:
    servers = servers_of("redis://a", timeout=1.0)
    assert asyncio.run(servers.run(CALLS[1:])) == [[b"b!", b"c!"]]
    assert server.rounds == [[("EVALSHA", CLAIM.digest, 2, "b", "c", 9, "u", 1, "v", 2)]]


def test_several_calls_are_one_round_trip_in_their_order(server: Server) -> None:
    servers = servers_of("redis://a", timeout=1.0)
    assert asyncio.run(servers.run(CALLS)) == [[b"a!"], [b"b!", b"c!"]]
    (commands,) = server.rounds
    assert [command[:4] for command in commands] == [
        ("EVALSHA", SETTLE.digest, 1, "a"),
        ("EVALSHA", CLAIM.digest, 2, "b"),
    ]


def test_a_script_is_loaded_and_a_server_closed(server: Server) -> None:
    servers = servers_of("redis://a", timeout=1.0)
    asyncio.run(servers.load(CLAIM))
    assert server.loaded == ["claim"]
    asyncio.run(servers.close())
    assert server.is_closed


@pytest.mark.parametrize("role", [b"slave", "slave"])
def test_a_server_tells_its_role_and_how_far_its_clock_is_ahead(
    server: Server, monkeypatch: pytest.MonkeyPatch, role: Any
) -> None:
    """The clock is compared with the middle of the question and the answer."""
    times = iter([4102444799.0, 4102444800.0])
    monkeypatch.setattr(
        "reliable_mq.idempotency.redis_servers.time", SimpleNamespace(time=lambda: next(times))
    )
    server.role = role
    servers = servers_of("redis://a", timeout=1.0)
    (state,) = asyncio.run(servers.server_states())
    assert state == ServerState("", "slave", 1.0, 1.0)
    assert [command[0] for command in server.commands] == ["PING", "TIME", "ROLE"]


def test_in_a_cluster_each_key_has_a_command_and_all_go_at_once(cluster: Server) -> None:
    servers = servers_of("redis+cluster://a:1,b:2", timeout=1.0)
    assert asyncio.run(servers.run(CALLS)) == [[b"a!"], [b"b!", b"c!"]]
    ((_, commands),) = cluster.pipelines
    assert commands == [
        ("EVALSHA", SETTLE.digest, 1, "a", 9, 9, "t", "done"),
        ("EVALSHA", CLAIM.digest, 1, "b", 9, "u", 1),
        ("EVALSHA", CLAIM.digest, 1, "c", 9, "v", 2),
    ]


def test_in_a_cluster_all_primaries_load_a_script_and_tell_their_state(cluster: Server) -> None:
    servers = servers_of("redis+cluster://a:1,b:2", timeout=1.0)
    asyncio.run(servers.load(CLAIM))
    assert cluster.was_initialized
    assert cluster.commands == [("SCRIPT LOAD", "claim", RedisCluster.PRIMARIES)]
    cluster.was_initialized = False
    states = asyncio.run(servers.server_states())
    assert [state.name for state in states] == ["a:1", "b:2"]
    assert cluster.was_initialized
    asked = [command[-1].name for command in cluster.commands[1:]]
    assert asked == ["a:1"] * 3 + ["b:2"] * 3
    asyncio.run(servers.close())
    assert cluster.is_closed


def test_a_cluster_has_its_places_and_options_and_makes_no_tries_of_its_own(
    cluster: Server,
) -> None:
    """Tries of the client would outlast a lease."""
    servers_of("rediss+cluster://u:s%40c@a,b:2/0?socket_timeout=3", timeout=0.5)
    options = cluster.options
    nodes = [(node.host, node.port) for node in options["startup_nodes"]]
    assert nodes == [("a", 6379), ("b", 2)]
    assert (options["username"], options["password"], options["ssl"]) == ("u", "s@c", True)
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (0.5, 0.5)
    assert options["protocol"] == 2
    assert options["retry"].get_retries() == 0
    servers_of("redis+cluster://a", timeout=0.5)
    assert "ssl" not in cluster.options


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a", "it must begin with redis://, rediss://, unix://"),
        ("a:6379", "it must begin with redis://"),
        ("redis+sentinel://a", "it names no primary: use redis+sentinel://host:26379"),
        ("redis+sentinel://a/main/x", "/x is not the number of a database"),
        ("redis+sentinel://a/main/1/2", "/1/2 is not the number of a database"),
        ("redis+cluster://a/1", "a cluster has database 0 only"),
        ("redis+cluster://", "it names no host"),
        ("redis+sentinel:///main", "it names no host"),
        ("redis://a/x", "/x is not the number of a database"),
        ("redis://a/1/2", "/1/2 is not the number of a database"),
        ("redis://a,b", "several hosts need redis"),
        ("redis://a?colour=red", "an option that redis-py does not know: 'colour'"),
        ("redis://a?port=7", "write hosts and ports before the path"),
        ("redis://u:p[x@a", "%5B"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_what_to_write(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        servers_of(url, timeout=1.0)
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"redis={hidden(url)!r} is not a Redis URL: ")


def test_a_sentinel_url_names_the_primary_its_database_and_the_sentinels_login() -> None:
    async def scenario() -> None:
        url = "rediss+sentinel://u:p@a,b:2/ma%2Fin/3?sentinel_username=su&sentinel_password=sp"
        made: Any = servers_of(url, timeout=0.5)
        primary = made._redis.connection_pool
        assert primary.service_name == "ma/in"
        options = primary.connection_kwargs
        assert (options["db"], options["username"], options["password"]) == (3, "u", "p")
        assert options["socket_timeout"] == options["socket_connect_timeout"] == 0.5
        own = [each.connection_pool.connection_kwargs for each in made._sentinel.sentinels]
        assert [(each["host"], each["port"]) for each in own] == [("a", 26379), ("b", 2)]
        assert {(each["username"], each["password"]) for each in own} == {("su", "sp")}
        assert {each["socket_timeout"] for each in own} == {0.5}
        plain: Any = servers_of("redis+sentinel://u:p@a/main", timeout=0.5)
        assert plain._redis.connection_pool.connection_kwargs.get("db", 0) == 0
        (sentinel,) = plain._sentinel.sentinels
        assert sentinel.connection_pool.connection_kwargs.get("username") is None

    asyncio.run(scenario())


def test_what_to_encode_is_told_only_where_the_login_is_in_question() -> None:
    urls = {"redis://a:0": False, "redis://u:p@a:0": False, "redis://u:é@a:0": True}
    for url, is_told in urls.items():
        with pytest.raises(ConfigurationError) as refused:
            servers_of(url, timeout=1.0)
        assert ("as %2F %3F" in str(refused.value)) == is_told


def test_a_sentinel_is_closed_with_its_primary(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, watcher = Server(), Server()
    of_sentinel = SimpleNamespace(sentinels=[watcher], master_for=lambda _name, **_options: primary)
    monkeypatch.setattr(
        "reliable_mq.idempotency.redis_servers.Sentinel", lambda *_args, **_options: of_sentinel
    )
    servers = servers_of("redis+sentinel://a/main", timeout=1.0)
    asyncio.run(servers.close())
    assert primary.is_closed
    assert watcher.is_closed
