"""The most that a client can send: a server in C that answers at once and stores nothing."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bench.child_process import LoggedProcess
from bench.send_tables import SEND_CEILING
from reliable_mq.testing.local_servers import free_port

SOURCE = Path(__file__).with_suffix(".c")
START_SECONDS = 10


def missing_compiler() -> str | None:
    """What keeps the server from being built, as one sentence, or None."""
    return None if shutil.which("gcc") else "not installed: gcc, for bench/*_ceiling.c"


class CeilingProgram:
    """A server in C that is built when it starts. A context manager.

    Args:
        directory: where its program and its log go.
        source: its text in C.
    """

    label = SEND_CEILING

    def __init__(self, directory: Path, source: Path) -> None:
        self._directory, self._source = directory, source

    def _start(self, arguments: Sequence[str], *options: str) -> None:
        """Build it with these options of the compiler, and start it."""
        program = self._directory / self._source.stem
        subprocess.run(["gcc", "-O2", "-o", program, self._source, *options], check=True)
        command = [str(program), *arguments]
        self._process = LoggedProcess(command, self._directory / "ceiling.log")
        self._process.wait_for("ready", START_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    @property
    def pids(self) -> list[int]:
        """The process id, while it runs."""
        return [self._process.child.pid]


class SendCeiling(CeilingProgram):
    """The running server: name server and broker at one port. A context manager.

    Args:
        directory: where its program and its log go.
        flush_disk_type: nothing here; what starts a broker takes it.
    """

    def __init__(self, directory: Path, flush_disk_type: str = "") -> None:
        super().__init__(directory, SOURCE)
        self._flush_disk_type = flush_disk_type
        self.name_server_address = f"127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._start([self.name_server_address.rpartition(":")[2]])
        return self
