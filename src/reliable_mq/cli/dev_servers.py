"""The servers of `reliable-mq dev`: our broker, PostgreSQL and Valkey, each only if it is needed.

Their data stay in a folder between two runs; their ports are new in each run, unless one is given.
A server that ends is started again at its port, so that its clients find it.
"""

import hashlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from reliable_mq.cli.credentials import without_credentials
from reliable_mq.cli.dev_guard import DevGuard
from reliable_mq.cli.dev_log import DevLog, FollowedFile
from reliable_mq.cli.dev_probe import PLACEHOLDERS, DevNeeds
from reliable_mq.cli.dev_process import DevFailed, DevProcess, end_of
from reliable_mq.cli.dev_restarts import Restarts
from reliable_mq.host_and_port import host_and_port_of
from reliable_mq.testing.local_servers import (
    LocalPostgres,
    LocalServer,
    LocalServerFailed,
    LocalValkey,
)

FOLDER = ".reliable-mq"
_WHOLE_ERRORS = MappingProxyType({"RELIABLE_MQ_ERROR_TEXTS": "whole"})


def _check_free(name: str, port: int) -> None:
    """Check that a port can be listened at.

    Raises:
        DevFailed: another process does.
    """
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            raise DevFailed(
                f"{name}: port {port} is taken ({error.strerror}): stop the process that listens "
                f"there, or give another --{name}-port"
            ) from error


class DevServers:
    """Starts servers when they are first needed, and stops all of them at the end.

    Args:
        folder: the folder of their data.
        given: URLs that the user gave, by variable: these servers are not started.
        log: gets their lines.
        guard: stops them if `dev` is killed.
        ports: the fixed ports of "postgres" and "valkey". These servers are started also if the
            application has an address of its own. Default: none.
    """

    def __init__(
        self,
        folder: Path,
        given: Mapping[str, str],
        log: DevLog,
        guard: DevGuard,
        ports: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self._given = frozenset(given)
        self.addresses = dict(given)
        self._log = log
        self._guard = guard
        self._ports = ports
        self._local: list[LocalServer] = []
        self._pids: dict[str, int] = {}  # by the name of the server
        self._followed: list[FollowedFile] = []
        self._broker: DevProcess | None = None
        self._broker_ports = ("0", "0")  # its own, and that of its name server; 0: a free one
        self._restarts = Restarts()
        self._told: set[str] = set()  # servers that the application names itself
        self.returns = 0
        """How often a server has been started again."""

    @property
    def made(self) -> list[str]:
        """The addresses of the servers that were started here."""
        return [url for name, url in self.addresses.items() if name not in self._given]

    def start_needed(self, needs: DevNeeds) -> None:
        """Start the servers that are needed and do not run yet.

        Raises:
            LocalServerFailed, DevFailed: one did not start; the text says where its log is.
        """
        is_wanted = needs.database or "postgres" in self._ports
        if is_wanted and "RELIABLE_MQ_DATABASE" not in self.addresses:
            self._start("RELIABLE_MQ_DATABASE", "postgres", LocalPostgres(self._of_postgres()))
        is_wanted = needs.redis or "valkey" in self._ports
        if is_wanted and "RELIABLE_MQ_REDIS" not in self.addresses:
            self._start("RELIABLE_MQ_REDIS", "valkey", LocalValkey(self.folder / "valkey"))
        if needs.broker and "RELIABLE_MQ_BROKER" not in self.addresses:
            self._start_broker()
        self._tell_named("broker", is_needed=needs.broker or needs.is_embedded)
        self._tell_named("database", is_needed=needs.database)

    def _tell_named(self, server: str, *, is_needed: bool) -> None:
        """Say once that a server is not started, because the application names its address."""
        is_ours = is_needed or f"RELIABLE_MQ_{server.upper()}" in self.addresses
        if not is_ours and server not in self._told:
            self._told.add(server)
            self._log.write_line("dev", f"the application names its {server}: none is started")

    def _of_postgres(self) -> Path:
        """Return the folder of PostgreSQL, which as root runs as `nobody` and must enter it."""
        if os.geteuid() != 0:
            return self.folder / "postgres"
        name = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"reliable-mq-dev-{name}" / "postgres"

    def _start(self, variable: str, name: str, server: LocalServer) -> None:
        if port := self._ports.get(name):
            _check_free(name, port)
            server.port = port
        self._local.append(server)
        self.addresses[variable] = server.start(lambda pid: self._note(server, pid))
        self._followed.append(FollowedFile(name, server.log_file))  # not the lines of its start
        self._log.write_line(name, f"ready at {server.url}; its data: {server.directory}")

    def _note(self, server: LocalServer, pid: int) -> None:
        if (former := self._pids.get(server.name)) is not None:
            self._guard.remove(former)
        self._pids[server.name] = pid
        self._guard.add(pid, server.stop_signal)

    def _start_broker(self) -> None:
        port, namesrv_port = self._broker_ports
        words = ("broker", "--store", str(self.folder / "broker"))
        at = ("--port", port, "--namesrv-port", namesrv_port)
        command = [sys.executable, "-m", "reliable_mq.cli.entry", *words, *at]
        around = without_credentials(os.environ)
        self._broker = DevProcess("broker", command, around, self._log, self._guard)
        ready = dict(
            part.partition("=")[::2] for part in self._broker.wait_for_first_line().split()
        )
        self.addresses["RELIABLE_MQ_BROKER"] = ready["namesrv"]
        broker, names = (host_and_port_of(ready[each]).port for each in ("broker", "namesrv"))
        self._broker_ports = (str(broker), str(names))

    def check(self) -> None:
        """Copy new lines of the servers' logs; start a server again that has ended.

        Raises:
            DevFailed: a server ends again and again.
        """
        for server, followed in zip(self._local, self._followed, strict=False):
            followed.copy_new_lines(self._log)
            if not server.is_running:
                self._restart_local(server, followed)
        if self._broker is not None and (code := self._broker.exit_code) is not None:
            self._broker.stop()
            self._again("broker", end_of(code), self._start_broker, "its lines above say why")

    def _restart_local(self, server: LocalServer, followed: FollowedFile) -> None:
        def start() -> None:
            server.start(lambda pid: self._note(server, pid))
            followed.pass_over()  # the lines of its start

        said = "has ended" if server.exit_code is None else end_of(server.exit_code)
        self._again(server.name, said, start, f"see {server.log_file}")

    def _again(self, name: str, said: str, start: Callable[[], None], where: str) -> None:
        """Start a server again; one that does not start is tried again at the next check."""
        if not self._restarts.allow(name, time.monotonic()):
            raise DevFailed(f"{Restarts.too_many(name)}; {where}")
        self._log.write_line("dev", f"{name} {said}; starting it again at the same port")
        try:
            start()
            self.returns += 1
        except (DevFailed, LocalServerFailed) as error:
            self._log.write_line("dev", str(error))

    def environment(self) -> dict[str, str]:
        """Return the variables of processes: they find the servers, and write whole errors.

        A developer's data need no mask. The variable, or the application, may say otherwise.
        """
        return {**_WHOLE_ERRORS, **os.environ, **self.addresses}

    def probe_environment(self) -> dict[str, str]:
        """Return variables with which an application shows which servers it needs."""
        return {**os.environ, **PLACEHOLDERS}

    def stop(self) -> None:
        """Stop all of them: the broker first, as it may still serve."""
        if self._broker is not None:
            self._broker.stop()
        for server in reversed(self._local):
            server.stop()
        for pid in self._pids.values():
            self._guard.remove(pid)
