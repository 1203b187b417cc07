"""Several Valkey servers that belong together: a cluster, or a primary watched by a Sentinel.

Receives a directory; hands on a URL as `reliable_mq` takes it. Like `local_servers`: child
processes on free loopback ports that keep nothing on disk and can be killed.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from reliable_mq.testing.local_servers import (
    POLL_SECONDS,
    START_SECONDS_MAX,
    LocalServerFailed,
    LocalValkey,
    free_port,
)

_SLOTS = 16384
_PRIMARY_NAME = "main"


class _Node(LocalValkey):
    """One server of a group, with options of its own."""

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory)
        self._options = options

    def client(self) -> Any:
        return Redis.from_url(self.url, protocol=2)

    def _command(self) -> list[str]:
        return [*super()._command(), *self._options]


class _SentinelNode(LocalValkey):
    """The Sentinel, which keeps what it knows in its configuration file."""

    name = "Sentinel"

    def __init__(self, directory: Path, primary: LocalValkey) -> None:
        super().__init__(directory)
        self._primary = primary

    def _command(self) -> list[str]:
        settings = self.directory / "sentinel.conf"
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor {_PRIMARY_NAME} 127.0.0.1 {self._primary.port} 1",
            f"sentinel down-after-milliseconds {_PRIMARY_NAME} 300",
            f"sentinel failover-timeout {_PRIMARY_NAME} 3000",
        )
        settings.write_text("\n".join(lines) + "\n")
        return [str(self._program()), str(settings), "--sentinel"]


class LocalValkeyCluster:
    """A Valkey cluster of some primaries without replicas.

    Args:
        directory: made if missing.
        primaries: how many servers share the keys; 3 at least, as a cluster needs them to agree.
    """

    def __init__(self, directory: Path | str, primaries: int = 3) -> None:
        top = Path(directory)
        self.nodes = [
            _Node(
                top / f"node-{number}",
                *("--cluster-enabled", "yes"),
                *("--cluster-port", str(free_port())),
                *("--cluster-node-timeout", "15000"),
            )
            for number in range(primaries)
        ]

    @property
    def url(self) -> str:
        """The `redis+cluster://` URL that names every server."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> str:
        """Start the servers, give each its keys, and return `url` when they agree.

        Raises:
            LocalServerFailed: when they do not within 30 seconds.
        """
        first, *others = self.nodes
        for number, node in enumerate(self.nodes):
            node.start()
            begin = _SLOTS * number // len(self.nodes)
            end = _SLOTS * (number + 1) // len(self.nodes) - 1
            node.client().execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end)
        for node in others:
            port = node.client().config_get("cluster-port")["cluster-port"]
            node_at = ("127.0.0.1", node.port, port)
            first.client().execute_command("CLUSTER", "MEET", *node_at)
        _wait(
            lambda: all(
                b"cluster_state:ok" in _raw_info(node)
                and f"cluster_known_nodes:{len(self.nodes)}".encode() in _raw_info(node)
                for node in self.nodes
            ),
            f"the cluster of {first.directory.parent}",
        )
        return self.url

    def flush(self) -> None:
        """Empty every server."""
        for node in self.nodes:
            node.flush()

    def stop(self) -> None:
        """Stop the servers."""
        for node in self.nodes:
            node.stop()


class LocalValkeySentinel:
    """A primary, a replica of it, and a Sentinel that makes the replica primary in need."""

    def __init__(self, directory: Path | str) -> None:
        top = Path(directory)
        self.primary: LocalValkey = _Node(top / "primary", "--repl-diskless-sync-delay", "0")
        address = ("127.0.0.1", str(self.primary.port))
        self._replica = _Node(top / "replica", "--replicaof", " ".join(address))
        self.sentinel: LocalValkey = _SentinelNode(top / "sentinel", self.primary)

    @property
    def url(self) -> str:
        """The `redis+sentinel://` URL."""
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{_PRIMARY_NAME}/0"

    def start(self) -> str:
        """Start all three and return `url` when the Sentinel could let the replica take over.

        Raises:
            LocalServerFailed: when it could not within 30 seconds.
        """
        for server in (self.primary, self._replica, self.sentinel):
            server.start()
        client = Redis.from_url(self.sentinel.url, protocol=2)
        _wait(lambda: _has_replica(client), "the Sentinel's replica")
        return self.url

    def stop(self) -> None:
        """Stop all that run."""
        for server in (self.sentinel, self._replica, self.primary):
            server.stop()


def _raw_info(node: _Node) -> bytes:
    client = node.client()
    client.set_response_callback("CLUSTER INFO", bytes)
    answer: bytes = client.execute_command("CLUSTER INFO")
    return answer


def _has_replica(sentinel: Redis) -> bool:
    replicas = sentinel.sentinel_slaves(_PRIMARY_NAME)
    return any(each["master-link-status"] == "ok" for each in replicas)


def _wait(is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            if is_there():
                return
        except (RedisError, KeyError):
            pass  # not yet
        time.sleep(POLL_SECONDS)
    raise LocalServerFailed(f"{what} did not come up within {START_SECONDS_MAX:g} s")
