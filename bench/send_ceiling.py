"""The most that a client can send: a server in C that answers at once and stores nothing."""

import shutil
import subprocess
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


class SendCeiling:
    """The running server: name server and broker at one port. A context manager.

    Args:
        directory: where its program and its log go.
        flush_disk_type: nothing here; what starts a broker takes it.
    """

    label = SEND_CEILING

    def __init__(self, directory: Path, flush_disk_type: str = "") -> None:
        self._directory, self._flush_disk_type = directory, flush_disk_type
        self.name_server_address = f"127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        program = self._directory / "send_ceiling"
        subprocess.run(["gcc", "-O2", "-o", program, SOURCE], check=True)
        port = self.name_server_address.rpartition(":")[2]
        self._process = LoggedProcess([str(program), port], self._directory / "ceiling.log")
        self._process.wait_for("ready", START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    @property
    def pids(self) -> list[int]:
        """The process id, while it runs."""
        return [self._process.child.pid]
