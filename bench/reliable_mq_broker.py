"""Our broker as users start it: `reliable-mq broker` in a process of its own."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from bench.child_process import LoggedProcess, port_beside
from reliable_mq.access.access_settings import SECRET_PROPERTIES
from reliable_mq.testing.local_servers import free_port

START_SECONDS = 60
READY_LINE = r"^ready broker=(\S+) namesrv=(\S+) store=(.*?)( grpc=(\S+))?$"
PROXY_READY_LINE = r"^ready namesrv=(\S+) grpc=(\S+)$"
COMMAND = (sys.executable, "-m", "reliable_mq.cli.main")


class ReliableMQBroker:
    """A broker with its name server inside, on free ports that it keeps over restarts.

    A context manager.

    Args:
        directory: holds the store, `store/`, and the log of the n-th start, `broker-n.log`.
        flush_disk_type: SYNC_FLUSH or ASYNC_FLUSH.
        command: what stands for `reliable-mq` in the command line.
        settings: further properties of the broker.
        name_servers: "host:port;…" of other name servers; then none runs in this process.
        has_grpc: whether it has a gRPC endpoint, at `grpc_address`.
    """

    label = "reliable_mq"

    def __init__(
        self,
        directory: Path,
        flush_disk_type: str = "SYNC_FLUSH",
        command: Sequence[str] = COMMAND,
        settings: Mapping[str, str] | None = None,
        name_servers: str = "",
        *,
        has_grpc: bool = False,
    ) -> None:
        self.grpc_address = f"127.0.0.1:{free_port()}" if has_grpc else ""
        self.directory = directory
        self.store = directory / "store"
        self.flush_disk_type = flush_disk_type
        self.address = f"127.0.0.1:{port_beside(-2, 1)}"  # a master has three ports
        self.name_server_address = f"127.0.0.1:{free_port()}"
        self.starts = 0
        self._command = command
        self._settings = {"flushDiskType": flush_disk_type, **(settings or {})}
        self._name_servers = name_servers

    def _words_of_settings(self) -> list[str]:
        """Return the options for the settings; those that are secrets come from a file."""
        secrets = {k: self._settings[k] for k in SECRET_PROPERTIES if k in self._settings}
        open_ones = [f"{k}={v}" for k, v in self._settings.items() if k not in secrets]
        words = [word for each in open_ones for word in ("--set", each)]
        if secrets:
            file = self.directory / "broker.conf"
            file.write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
            words += ["--config", str(file)]
        return words

    def start(self) -> None:
        """Start the process; returns when its ready line has come."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        name_server = ("--namesrv-port", self.name_server_address.rpartition(":")[2])
        if self._name_servers:
            name_server = ("--namesrv", self._name_servers)
        self.process = LoggedProcess(
            [
                *self._command,
                "broker",
                *("--store", str(self.store)),
                *("--port", self.address.rpartition(":")[2]),
                *name_server,
                *(
                    ("--grpc-port", self.grpc_address.rpartition(":")[2])
                    if self.grpc_address
                    else ()
                ),
                *self._words_of_settings(),
            ],
            self.directory / f"broker-{self.starts}.log",
        )
        try:
            ready = self.process.wait_for(READY_LINE, START_SECONDS)
        except BaseException:
            self.process.kill()
            raise
        self.address, self.name_server_address = ready[1], ready[2]

    @property
    def pids(self) -> list[int]:
        """The process id, while it runs."""
        return [self.process.child.pid]

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, closed or said goodbye to."""
        self.process.kill()

    def stop(self) -> None:
        self.process.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ReliableMQProxy:
    """Our gRPC endpoint before a running cluster, as users start it. A context manager.

    Args:
        directory: for its log.
        name_servers: "host:port;…" of the cluster.
        settings: further properties.
        command: what stands for `reliable-mq` in the command line.
    """

    def __init__(
        self,
        directory: Path,
        name_servers: str,
        settings: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._directory = directory
        self._name_servers = name_servers
        self._settings = dict(settings or {})
        self._command = command
        self.address = f"127.0.0.1:{free_port()}"
        self.process: LoggedProcess

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        words: list[str] = []
        if self._settings:
            file = self._directory / "proxy.conf"
            file.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
            file.chmod(0o600)
            words = ["--config", str(file)]
        names = ("--namesrv", self._name_servers)
        port = ("--port", self.address.rpartition(":")[2])
        self.process = LoggedProcess(
            [*self._command, "proxy", *names, *port, *words], self._directory / "proxy.log"
        )
        try:
            self.address = self.process.wait_for(PROXY_READY_LINE, START_SECONDS)[2]
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    @property
    def pids(self) -> list[int]:
        """The process id, while it runs."""
        return [self.process.child.pid]
