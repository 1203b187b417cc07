"""Apache's consumer as a member of a group, beside ours: see tests/interop/java/Member.java."""

import queue
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple, Self

from bench.child_process import ChildError, end_by_input
from bench.java_programs import CLIENT_JARS, build_client, java_command

SOURCE = Path(__file__).parent.parent / "interop" / "java" / "Member.java"
ANSWER_SECONDS_MAX = 60.0


class Delivery(NamedTuple):
    """One message in the hands of one member; times are milliseconds since the epoch."""

    member: str
    queue: str
    offset: int
    body: str
    begun: int
    ended: int


class JavaMember:
    """A JVM with a consumer that joins and leaves. A context manager.

    Args:
        directory: where its errors go.
        words: name servers, group, topic, "ordered", "concurrent" or "broadcast", and perhaps the
            host that it says it is on; its home is `directory`.
        deliveries: gets what the consumer got, from another thread.
    """

    def __init__(self, directory: Path, words: tuple[str, ...], deliveries: list[Delivery]) -> None:
        build_client()
        self._deliveries = deliveries
        self._errors = (directory / "Member.stderr").open("w")
        command = java_command(
            str(SOURCE),
            class_path=f"{CLIENT_JARS}/*",
            home=directory,
            flags=("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        )
        self._child = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._child.stdout is not None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self._child.stdout,))
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            kind, *fields = line.split()
            if kind == "got":
                place, offset, body, begun, ended = fields
                got = Delivery("java", place, int(offset), body, int(begun), int(ended))
                self._deliveries.append(got)
            else:
                self._answers.put(line)
        self._answers.put("")

    def ask(self, word: str) -> list[str]:
        """Give the JVM a word, and return those of its answer.

        Raises:
            ChildError: when none comes in time, or the JVM ends.
        """
        assert self._child.stdin is not None
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()
        try:
            line = self._answers.get(timeout=ANSWER_SECONDS_MAX)
        except queue.Empty:
            raise ChildError(f"no answer to {word!r}; errors are in {self._errors.name}") from None
        if not line:
            raise ChildError(f"the JVM ended; its errors are in {self._errors.name}")
        return line.split()

    def queues(self) -> set[str]:
        """Return the queues that are the member's own now, as BROKER:ID."""
        return set(self.ask("queues")[1:])

    def close(self) -> None:
        """End the JVM."""
        end_by_input(self._child, 10)
        self._reader.join()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def now_ms() -> int:
    return int(time.time() * 1000)
