"""Programs of one file in `tests/interop/java`, run over Apache's jars by Java itself."""

import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from bench.child_process import ChildError, end_by_input
from bench.java_programs import CLIENT_JARS, SERVER_JARS, build_client, build_server, java_command
from tests.waiting import run_process
from tests.with_java import skipped_without_java

SOURCES = Path(__file__).parent / "java"
PROGRAM_SECONDS_MAX = 400


def source_command(
    name: str,
    home: Path,
    *words: object,
    jars: Path = CLIENT_JARS,
    flags: tuple[str, ...] = (),
) -> list[str]:
    """Return the command that runs `name`.java with these arguments; its jars are there then.

    Skips the test where they cannot be fetched.
    """
    with skipped_without_java():
        (build_server if jars == SERVER_JARS else build_client)()
    command = java_command(
        str(SOURCES / f"{name}.java"),
        class_path=f"{jars}/*",
        home=home,
        flags=("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *flags),
    )
    return [*command, *map(str, words)]


def run_source(name: str, home: Path, *words: object, jars: Path = CLIENT_JARS) -> list[str]:
    """Run `name`.java with these arguments to its end, and return what it printed, by line."""
    reply = run_process(
        source_command(name, home, *words, jars=jars),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PROGRAM_SECONDS_MAX,
    )
    assert reply.returncode == 0, reply.stdout[-3000:] + reply.stderr[-3000:]
    return reply.stdout.splitlines()


class TalkingProgram:
    """A running program that is told lines, and tells lines. A context manager.

    Args:
        command: runs it.
        directory: it runs there, and its errors go there.
        name: of the file of its errors.
        end_seconds: so long it has to end when its input ends.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, name: str, *, end_seconds: float
    ) -> None:
        self._end_seconds = end_seconds
        self._errors = (directory / f"{name}.stderr").open("w")
        self._child = subprocess.Popen(
            command,
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
            self.heard(line)
        self._lines.put("")

    def heard(self, line: str) -> None:
        """Keep a line for `line`; called in another thread."""
        self._lines.put(line)

    def tell(self, words: str) -> None:
        """Give the program a line."""
        assert self._child.stdin is not None
        self._child.stdin.write(words + "\n")
        self._child.stdin.flush()

    def line(self, seconds: float) -> str:
        """Return the next line, as soon as it comes.

        Raises:
            ChildError: when the program ends.
            TimeoutError: when nothing comes in so many seconds.
        """
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"nothing in {seconds:g} s; errors: {self._errors.name}") from None
        if not line:
            raise ChildError(f"the JVM ended; its errors are in {self._errors.name}")
        return line

    def close(self) -> None:
        """End the program."""
        end_by_input(self._child, self._end_seconds)
        self._reader.join()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
