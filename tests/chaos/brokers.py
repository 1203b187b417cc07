"""The brokers that chaos kills and stops: ours, and Apache's with its name server beside it.

Receives a directory; hands on a broker that can be started again. Apache's name server lives on:
what holds for its broker's death is asked here, not what holds for both.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker

HASTY = {"transactionTimeOut": "3000", "transactionCheckInterval": "1000"}
"""The broker asks soon for the halves of producers that were killed."""


class Broker(Protocol):
    """A broker on ports and with a store of its own, which it keeps over restarts."""

    name_server_address: str
    store: Path

    @property
    def address(self) -> str:
        """Where it answers, while it runs."""
        ...

    @property
    def pid(self) -> int:
        """The process id of the broker, while it runs."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        ...

    def start(self) -> None:
        """Start it, the first time or again; returns when it serves."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...

    def end(self) -> None:
        """End everything that was started."""
        ...


class OurBroker:
    """`reliable-mq broker`, with its name server inside unless there are others."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str], name_servers: str = ""
    ) -> None:
        settings = {**HASTY, **settings}
        self._server = ReliableMQBroker(directory, settings=settings, name_servers=name_servers)
        self.name_server_address = self._server.name_server_address
        self.store = self._server.store

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def pid(self) -> int:
        return self._server.process.child.pid

    @property
    def is_running(self) -> bool:
        return self._server.process.alive

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        self._server.kill()

    def end(self) -> None:
        self.kill()


class ApacheBroker:
    """Apache RocketMQ's broker, and a name server that nobody kills."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._servers = ApacheRocketMQ(
            directory, "SYNC_FLUSH", settings={**HASTY, **settings}, flags=SMALL_BROKER_FLAGS
        )
        self.name_server_address = self._servers.name_server_address
        self.store = directory / "store"
        self._was_started = False

    @property
    def address(self) -> str:
        return self._servers.address

    @property
    def pid(self) -> int:
        return self._servers.broker.child.pid

    @property
    def is_running(self) -> bool:
        return self._servers.broker.alive

    def start(self) -> None:
        if self._was_started:
            self._servers.start_broker()
        else:
            self._servers.start()
            self._was_started = True

    def kill(self) -> None:
        self._servers.broker.kill()

    def end(self) -> None:
        self._servers.kill()


BROKERS: dict[str, Callable[[Path, Mapping[str, str]], Broker]] = {
    "ours": OurBroker,
    "apache": ApacheBroker,
}
