"""Apache's mqadmin (rocketmq-tools 5.4.0), many commands in one JVM: see java/AdminShell.java."""

import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from bench.child_process import ChildError, end_by_input
from bench.java_programs import SERVER_JARS, build_server

SOURCE = Path(__file__).parent / "java" / "AdminShell.java"
COMMAND_SECONDS_MAX = 180.0
REGISTRATION_SECONDS = 60.0
_END = "\x01\n"


class AdminShell:
    """One JVM that runs one command after another. A context manager.

    Args:
        directory: where logs and exported files go.
    """

    def __init__(self, directory: Path) -> None:
        build_server()
        flags = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        homes = (f"-Duser.home={directory}", f"-Drocketmq.home.dir={directory}")
        self._errors = (directory / "AdminShell.stderr").open("w")
        self._child = subprocess.Popen(
            ["java", *flags, *homes, "-cp", f"{SERVER_JARS}/*", str(SOURCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=directory,
            text=True,
        )
        assert self._child.stdout is not None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self._child.stdout,))
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put("")

    def run(self, *words: object) -> str:
        """Run one command and return what it printed.

        Raises:
            ChildError: when nothing comes in time, or the JVM ends.
        """
        assert self._child.stdin is not None
        self._child.stdin.write("\t".join(str(word) for word in words) + "\n")
        self._child.stdin.flush()
        printed: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=COMMAND_SECONDS_MAX)
            except queue.Empty:
                raise ChildError(f"{words}: no end; so far:\n{''.join(printed)}") from None
            if not line:
                raise ChildError(f"the JVM ended; its errors are in {self._errors.name}")
            if line == _END:
                return "".join(printed).strip("\n")
            printed.append(line)

    @contextmanager
    def closing_clients(self) -> Iterator[None]:
        """Close at the end what commands as @consume have left running."""
        try:
            yield
        finally:
            self.run("@close")

    def wait_for_broker(self, name_server: str, name: str) -> None:
        """Return when a name server tells of a broker: Apache's registers ten seconds late."""
        deadline = time.monotonic() + REGISTRATION_SECONDS
        while f'"{name}"' not in self.run("topicRoute", "-n", name_server, "-t", "TBW102"):
            assert time.monotonic() < deadline, f"broker {name} does not register"

    def close(self) -> None:
        """End the JVM and the clients in it."""
        end_by_input(self._child, 30)
        self._reader.join()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
